"""Conversion between a condition's tree and the Protobuf message of a request, in both directions.

A message gives the same tree as an SQL text with the same meaning. Several tests of one column are joined by
AND in the order of their fields: ``gte`` with ``lte`` is BETWEEN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tailrace.conditions import ConditionTree
from tailrace.errors import Unsupported
from tailrace.v1 import capture_pb2
from tailrace_server.filters.tree import (
    ColumnName,
    Comparison,
    ConditionRefused,
    Constant,
    Distinction,
    Family,
    Given,
    Junction,
    Likeness,
    Membership,
    Negation,
    NullTest,
    Operator,
    Parameter,
    TermCount,
    refuse_deep,
    refuse_long,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import FieldDescriptor

    from tailrace_server.filters.tree import Condition, Value

_OPERATORS: Final = {
    "eq": Operator.EQUAL,
    "ne": Operator.UNEQUAL,
    "gt": Operator.GREATER,
    "gte": Operator.GREATER_OR_EQUAL,
    "lt": Operator.LESS,
    "lte": Operator.LESS_OR_EQUAL,
}
_FIELDS: Final = {operator: name for name, operator in _OPERATORS.items()}
_TYPES: Final = {
    Family.NUMBER: capture_pb2.CONDITION_TYPE_NUMBER,
    Family.TEXT: capture_pb2.CONDITION_TYPE_TEXT,
    Family.BOOLEAN: capture_pb2.CONDITION_TYPE_BOOLEAN,
    Family.DATE: capture_pb2.CONDITION_TYPE_DATE,
    Family.TIME: capture_pb2.CONDITION_TYPE_TIME,
    Family.TIMESTAMP: capture_pb2.CONDITION_TYPE_TIMESTAMP,
    Family.INSTANT: capture_pb2.CONDITION_TYPE_TIMESTAMPTZ,
}
_FAMILIES: Final = {number: family for family, number in _TYPES.items()}
_JOINED: Final = ("all_of", "any_of", "negated")
_TRUTHS: Final = {"true": True, "false": False}
_ESCAPE: Final = "\\"
"""The default escape character of LIKE, as in SQL."""


def tree_of(asked: ConditionTree) -> Condition:
    """Convert a message to a tree.

    Raises:
        ConditionRefused: The message is not a valid condition, or is too large. The error has the path of the
            fault, as ``and[1].gt``.
        Unsupported: The message has a field or a type that this server does not know; the error has its path.
    """
    refuse_long(len(asked.data))
    try:
        message = asked.message
    except DecodeError as error:
        raise ConditionRefused(f"where: no condition can be read: {error}") from None
    return _MessageReader().condition(message, "", 0)


def message_of(tree: Condition) -> ConditionTree:
    """Convert a tree to a message; raises TypeError if it has a value of a claim (``Given``)."""
    message = capture_pb2.Condition()
    _write(message, tree)
    return ConditionTree.of_message(message)


class _MessageReader:
    """Converts one message to a tree and counts its terms, whose number is bounded."""

    def __init__(self) -> None:
        self._terms = TermCount()

    def condition(self, message: capture_pb2.Condition, path: str, depth: int) -> Condition:
        """Convert a message, or a part of it, to a tree; raises like ``tree_of``."""
        refuse_deep(depth)
        _refuse_unknown(message, path)
        # A message is either a column with its tests, or one of `all_of`, `any_of` and `negated`.
        fields = [*message.ListFields()]
        if message.HasField("column") and fields[0][0].name == "column":
            return self._tests(message, fields, path)
        if len(fields) != 1 or fields[0][0].name not in _JOINED:
            raise refused(
                path or "the whole",
                "a condition is one of and, or, not, and a column with its tests",
            )
        field, value = fields[0]
        at = _within(path, field.json_name)
        if field.name == "negated":
            return Negation(self.condition(value, at, depth + 1))
        parts = tuple(
            self.condition(each, f"{at}[{place}]", depth + 1) for place, each in enumerate(value)
        )
        return parts[0] if len(parts) == 1 else Junction(field.name == "all_of", parts)

    def _tests(
        self,
        message: capture_pb2.Condition,
        fields: list[tuple[FieldDescriptor, Any]],
        path: str,
    ) -> Condition:
        column = ColumnName(message.column, _within(path, "column"))
        escape = message.escape if message.HasField("escape") else _ESCAPE
        if len(escape) != 1:
            raise refused(_within(path, "escape"), "must be one character")
        parts = []
        for field, value in fields:
            if field.name not in ("column", "escape"):
                self._terms.count(column.place)
                parts.append(
                    self._test(field, value, column, _within(path, field.json_name), escape)
                )
        if not parts:
            raise refused(column.place, f"the column {message.column!r} has no test")
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _test(
        self, field: FieldDescriptor, value: Any, column: ColumnName, at: str, escape: str
    ) -> Condition:
        if (operator := _OPERATORS.get(field.name)) is not None:
            return Comparison(column, operator, self._value(value, at))
        match field.name:
            case "one_of":
                values = (self._value(each, f"{at}[{place}]") for place, each in enumerate(value))
                return Membership(column, tuple(values))
            case "like" | "ilike":
                return Likeness(column, self._value(value, at), field.name == "ilike", escape)
            case "is_null":
                return NullTest(column) if value else Negation(NullTest(column))
            case "is_distinct_from":
                return Distinction(column, self._value(value, at))
        assert field.name == "is_not_distinct_from"
        return Negation(Distinction(column, self._value(value, at)))

    def _value(self, message: capture_pb2.ConditionValue, place: str) -> Value:
        """Convert a value; raises like ``tree_of``."""
        self._terms.count(place)
        _refuse_unknown(message, place)
        family = _FAMILIES.get(message.type)
        if message.type and family is None:
            raise Unsupported(
                f"where_tree.{place}.type", f"this server does not know the type {message.type}"
            )
        match message.WhichOneof("kind"):
            case "text":
                return Constant(message.text, family, place)
            case "parameter" if message.parameter:
                return Parameter(message.parameter, family, place)
            case "number" if family is None:
                return Constant(message.number, Family.NUMBER, place)
            case "boolean" if family is None:
                return Constant("true" if message.boolean else "false", Family.BOOLEAN, place)
            case "null" if family is None and message.null:
                return Constant(None, None, place)
        raise refused(
            place,
            "a value is one of text, number, boolean, parameter and null; only text and parameter have "
            "a type",
        )


def _refuse_unknown(message: Message, path: str) -> None:
    """Raise Unsupported if a condition has unknown fields: ignoring them would change its meaning."""
    unknown_fields: Iterable[Any] = UnknownFieldSet(message)  # type: ignore[assignment]  # a sequence
    for unknown in unknown_fields:
        raise Unsupported(
            f"where_tree.{path or 'the whole'}",
            f"this server does not know field {unknown.field_number} of {message.DESCRIPTOR.name}",
        )


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _write(message: capture_pb2.Condition, tree: Condition) -> None:
    """Write a tree into an empty message."""
    match tree:
        case Junction(is_and=is_and, parts=parts):
            target = message.all_of if is_and else message.any_of
            for part in parts:
                _write(target.add(), part)
            return
        case Negation(part=part):
            message.negated.SetInParent()
            _write(message.negated, part)
            return
        case NullTest():
            message.is_null = True
        case Comparison(operator=operator, value=value):
            _write_value(getattr(message, _FIELDS[operator]), value)
        case Membership(values=values):
            for value in values:
                _write_value(message.one_of.add(), value)
        case Distinction(value=value):
            _write_value(message.is_distinct_from, value)
        case Likeness(pattern=pattern, ignores_case=ignores_case, escape=escape):
            _write_value(message.ilike if ignores_case else message.like, pattern)
            if escape != _ESCAPE:
                message.escape = escape
    # All that is left are tests of one column.
    message.column = tree.column.text


def _write_value(message: capture_pb2.ConditionValue, value: Value) -> None:
    if isinstance(value, Given):
        raise TypeError("the value of a claim has no place in a request")
    family = value.family
    if isinstance(value, Parameter):
        message.parameter = value.name
    elif value.text is None:
        message.null = True
        return
    elif family is Family.NUMBER:
        message.number = value.text
        return
    elif family is Family.BOOLEAN and value.text in _TRUTHS:
        message.boolean = _TRUTHS[value.text]
        return
    else:
        message.text = value.text
    if family is not None:
        message.type = _TYPES[family]
