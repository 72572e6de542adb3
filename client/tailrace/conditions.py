"""Conditions on rows in their JSON form, and the values and numbers in them.

::

    {"and": [{"column": "price", "gt": 100},
             {"column": "state", "in": ["paid", "sent"]},
             {"not": {"column": "note", "isNull": true}}]}

The JSON form has the JSON names of the message ``Condition`` in proto/tailrace/v1/capture.proto. Texts, whole
numbers, true and false may be written directly: ``100`` is short for ``{"number": "100"}``.

Numbers have at most 1,000 digits, in conditions and parameters of all transports. The bound protects memory:
``1e200000000`` has eleven bytes, but 200 million digits once it is written out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1.capture_pb2 import Condition, ConditionType, ConditionValue

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

_SHOWN: Final = 60
"""Maximum number of characters of a value or path in an error."""


def checked_text(value: object, path: str) -> str:
    """Return a value after checking that it is a text.

    Args:
        value: The value.
        path: Path of the value, for errors.

    Raises:
        InvalidRequest: The value is not a text, or cannot be encoded as UTF-8.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}: must be a text, not {shown_value(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path}: the text cannot be encoded as UTF-8") from None
    return value


def shown_value(value: object) -> str:
    """Return a value as an error prints it: at most 60 characters, or "an object", or "a list"."""
    if isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "a list"
    text = repr(value) if not isinstance(value, bool | type(None)) else str(value).lower()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


_DIGITS_MAX: Final = 1_000
"""Maximum number of digits of a number, the zeros of its exponent included."""
_ABOVE: Final = 10**_DIGITS_MAX
_TOO_MANY: Final = (
    f"a number may have at most {_DIGITS_MAX:,} digits, including the zeros of its exponent"
)


def refuse_large(number: Decimal | int) -> None:
    """Refuse a number of more than 1,000 digits, without writing it out.

    Raises:
        ValueError: The number has more than 1,000 digits.
    """
    if isinstance(number, int):
        fits = -_ABOVE < number < _ABOVE
    else:
        fits = not number.is_finite() or (
            len(number.as_tuple().digits) <= _DIGITS_MAX and abs(number.adjusted()) < _DIGITS_MAX
        )
    if not fits:
        raise ValueError(_TOO_MANY)


def decimal_of(text: str) -> Decimal:
    """Return a JSON number of any length as a Decimal.

    Raises:
        ValueError: The exponent has more than 18 digits.
    """
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(_TOO_MANY) from None


def number_of(text: str) -> int | Decimal:
    """Return a JSON number: an int if it is whole, a Decimal if it has a point or an exponent.

    Raises:
        ValueError: The number has more than 1,000 digits.
    """
    # Check the length before `int`: its cost is quadratic in the number of digits.
    is_whole = text.removeprefix("-").isdigit()
    if is_whole and len(text) > 1 + _DIGITS_MAX:
        raise ValueError(_TOO_MANY)
    number = int(text) if is_whole else decimal_of(text)
    refuse_large(number)
    return number


def number_text(number: float | Decimal) -> str:
    """Return a number as text in the form that conditions use.

    Raises:
        ValueError: The number has more than 1,000 digits.
    """
    if isinstance(number, int | Decimal):
        refuse_large(number)
    if isinstance(number, Decimal) and number.is_nan():
        return "NaN"
    if math.isfinite(number):
        return str(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


_DEPTH_MAX: Final = 64
"""Maximum depth of nested conditions, the same as in the server; protobuf itself reads at most 100 levels."""

_TYPE_PREFIX: Final = "CONDITION_TYPE_"
_KINDS: Final = ("text", "number", "boolean", "parameter", "null")
"""The alternatives of a value in its long form; a value has exactly one of them."""


@dataclass(frozen=True, slots=True, repr=False)
class ConditionTree:
    """A condition as an immutable tree. Two instances are equal if their trees are."""

    data: bytes
    """The message ``Condition``, serialised deterministically."""

    @classmethod
    def of(cls, form: Mapping[str, object], path: str = "where") -> ConditionTree:
        """Return the tree of a JSON form.

        Its values may also be Python's numbers, dates, times, datetimes and UUIDs.

        Args:
            form: The JSON form.
            path: Path of the form, for errors.

        Raises:
            InvalidRequest: ``form`` is not a condition; the error names the path.
            Unsupported: ``form`` has an unknown name.
        """
        message = Condition()
        fill(message, form, path, takes_floats=True)
        return cls.of_message(message)

    @classmethod
    def of_message(cls, message: Condition) -> ConditionTree:
        """Return the tree of a message."""
        return cls(message.SerializeToString(deterministic=True))

    @property
    def message(self) -> Condition:
        """The condition as a protobuf message."""
        return Condition.FromString(self.data)

    @property
    def form(self) -> dict[str, Any]:
        """The JSON form, with all values in their long form, such as ``{"number": "100"}``."""
        return _form(self.message)

    def __str__(self) -> str:
        """Return the JSON form as text."""
        return json.dumps(self.form, ensure_ascii=False, separators=(",", ":"))

    def __repr__(self) -> str:
        """Return a text that is the same for equal trees; `canonical` sorts criteria by it."""
        return f"ConditionTree({self})"


Where = str | ConditionTree | Mapping[str, object]
"""A condition: SQL text, a tree, or the JSON form of a tree."""


def read_where(where: Where | None, path: str = "where") -> str | ConditionTree | None:
    """Return a condition in an immutable form; ``path`` names it in errors.

    Raises:
        InvalidRequest: ``where`` is neither a text nor a tree nor a dict, or the dict is not a condition.
        Unsupported: The dict has an unknown name.
    """
    if where is None or isinstance(where, str | ConditionTree):
        return where
    if not isinstance(where, Mapping):
        raise InvalidRequest(f"{path}: must be a text or a dict, not {shown_value(where)}")
    return ConditionTree.of(where, path)


def where_fields(where: str | ConditionTree | None) -> dict[str, Any]:
    """Return the request fields that carry a condition; empty without one."""
    if where is None:
        return {}
    return {"where": where} if isinstance(where, str) else {"where_tree": where.message}


def where_of(message: Any) -> str | ConditionTree | None:
    """Return the condition of a request message; None without one.

    Raises:
        InvalidRequest: The message has both a text and a tree.
    """
    if not message.HasField("where_tree"):
        return message.where if message.HasField("where") else None
    if message.HasField("where"):
        raise InvalidRequest("give where or where_tree, not both")
    return ConditionTree.of_message(message.where_tree)


def fill(
    message: Condition, form: object, path: str, *, takes_floats: bool = False, depth: int = 0
) -> None:
    """Fill an empty message from a JSON form.

    Args:
        message: The message to fill; partly filled if this raises.
        form: A decoded JSON value.
        path: Path of the form, for errors.
        takes_floats: True to accept floats. A float that was parsed from JSON may have lost digits.
        depth: Number of conditions around this one.

    Raises:
        InvalidRequest: ``form`` is not a condition; the error names the path.
        Unsupported: ``form`` has an unknown name.
    """
    # Stop before Python's recursion limit, and before the limits of protobuf and of the server.
    if depth > _DEPTH_MAX:
        raise InvalidRequest(
            f"{path[:_SHOWN]}…: conditions may be nested at most {_DEPTH_MAX} deep"
        )
    for field, part, at in _members(message, form, path):
        if field.message_type is Condition.DESCRIPTOR:
            for inner, each, place in _messages(message, field, part, at):
                fill(inner, each, place, takes_floats=takes_floats, depth=depth + 1)
        elif field.message_type is ConditionValue.DESCRIPTOR:
            for inner, each, place in _messages(message, field, part, at):
                _fill_value(inner, each, place, takes_floats)
        elif field.type == FieldDescriptor.TYPE_BOOL:
            if not isinstance(part, bool):
                raise InvalidRequest(f"{at}: must be true or false, not {shown_value(part)}")
            setattr(message, field.name, part)
        else:
            setattr(message, field.name, checked_text(part, at))


def _number(value: float | Decimal, path: str) -> str:
    try:
        return number_text(value)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}") from None


def _fill_value(message: ConditionValue, value: object, path: str, takes_floats: bool) -> None:
    # bool first, since a bool is an int for Python.
    if isinstance(value, bool):
        message.boolean = value
    elif isinstance(value, int | Decimal) or (takes_floats and isinstance(value, float)):
        message.number = _number(value, path)
    elif isinstance(value, str):
        message.text = checked_text(value, path)
    elif isinstance(value, date | time):
        message.text = value.isoformat()
    elif isinstance(value, UUID):
        message.text = str(value)
    elif isinstance(value, Mapping):
        _fill_written(message, value, path)
    elif value is None:
        raise InvalidRequest(f"{path}: NULL is equal to no value; use isNull")
    else:
        hint = f'; write {{"number": "{value}"}}' if isinstance(value, float) else ""
        raise InvalidRequest(
            f"{path}: must be a text, a whole number, true, false or an object, not {shown_value(value)}{hint}"
        )


def _fill_written(message: ConditionValue, form: Mapping[str, object], path: str) -> None:
    """Fill a value from its long form, such as ``{"text": "2024-02-29", "type": "DATE"}``."""
    kinds = []
    for field, part, at in _members(message, form, path):
        if field.name == "type":
            names = [name.removeprefix(_TYPE_PREFIX) for name in ConditionType.keys()[1:]]
            if part not in names:
                raise InvalidRequest(
                    f"{at}: must be one of {', '.join(names)}, not {shown_value(part)}"
                )
            message.type = ConditionType.Value(f"{_TYPE_PREFIX}{part}")
            continue
        kinds.append(field.name)
        if field.type != FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, checked_text(part, at))
        elif not isinstance(part, bool) or (field.name == "null" and not part):
            what = "true" if field.name == "null" else "true or false"
            raise InvalidRequest(f"{at}: must be {what}, not {shown_value(part)}")
        else:
            setattr(message, field.name, part)
    if len(kinds) != 1:
        raise InvalidRequest(f"{path}: give exactly one of {', '.join(_KINDS)}")


def _members(
    message: Message, form: object, path: str
) -> list[tuple[FieldDescriptor, object, str]]:
    """Return the fields that are present in a form, each with its value and path."""
    if not isinstance(form, Mapping):
        raise InvalidRequest(f"{path}: must be an object, not {shown_value(form)}")
    fields = _fields(message.DESCRIPTOR)
    found = []
    for name, part in form.items():
        at = f"{path}.{name}"
        if (field := fields.get(name)) is None:
            raise Unsupported(at[-_SHOWN:], f"there is {', '.join(fields)}")
        found.append((field, part, at))
    return found


def _messages(
    message: Message, field: FieldDescriptor, part: object, path: str
) -> list[tuple[Any, object, str]]:
    """Create the messages of a field and return them, each with its form and path."""
    target = getattr(message, field.name)
    if not field.is_repeated:
        # Mark the field as present: an empty message would not be sent otherwise.
        target.SetInParent()
        return [(target, part, path)]
    if isinstance(part, str | bytes) or not isinstance(part, Sequence):
        raise InvalidRequest(f"{path}: must be a list, not {shown_value(part)}")
    if not part:
        raise InvalidRequest(f"{path}: the list is empty")
    return [(target.add(), each, f"{path}[{place}]") for place, each in enumerate(part)]


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {field.json_name: field for field in descriptor.fields}


def _form(message: Message) -> dict[str, Any]:
    return {field.json_name: _part(field, value) for field, value in message.ListFields()}


def _part(field: FieldDescriptor, value: Any) -> object:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return [_form(each) for each in value] if field.is_repeated else _form(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return ConditionType.Name(value).removeprefix(_TYPE_PREFIX)
    return value
