"""Reading of columns whose type has changed: each value by the type of its version, all as one scalar.

A column's type applies to the versions that were written with it. But a GraphQL field has one scalar for all
versions. It is the scalar that can represent the values of all of the column's types:

==================================  ===============  ====================================================
scalars of the column's types       field's scalar   value of another scalar is returned as
==================================  ===============  ====================================================
all equal                           that scalar      (decoded by its own type and encoding)
Int, BigInt                         BigInt           string of its digits
Int, Float                          Float            the same number
other numbers                       Decimal          string of its digits
any with JSON                       JSON             the source's text
anything else                       String           the other scalar's form, as a string
==================================  ===============  ====================================================

A subscription keeps the scalars that it began with. A value of a type that the column got later is converted if
the field's scalar can represent it, for example a number; else it is an error (`ValueUnfit`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.schema import Column
from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.api.graphql.scalars import (
    NULL,
    BigInt,
    ColumnForm,
    Decimal,
    Json,
    column_form,
)
from tailrace_server.wal.schema.restating import read_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace.schema import Schema

_NUMBERS: Final[Mapping[object, ColumnForm]] = {
    int: column_form(Column("", sql_type="INTEGER")),
    BigInt: column_form(Column("", sql_type="BIGINT")),
    float: column_form(Column("", sql_type="DOUBLE")),
    Decimal: column_form(Column("", sql_type="DECIMAL")),
}
"""Scalars of numbers → the form that converts a JSON number to the scalar."""
_JSON: Final = Column("", sql_type="JSON")
_BOOLEAN: Final = column_form(Column("", sql_type="BOOLEAN"))
_JSON_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_AS_STRING: Final = (BigInt, Decimal, str)
"""Scalars that are JSON strings and can represent a number."""


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """The conversion of a column's values to the scalar of its field."""

    scalar: object
    """The field's scalar, as a Python annotation."""
    now: Column
    """The current column; used for versions whose schema does not have the column."""
    stated: Column | None
    """The column with its first declared type; used for versions that had only inferred a type."""
    placeholders: tuple[str, ...] = ()
    """Texts that replace values that the source did not send, in addition to the default text."""

    @property
    def name(self) -> str:
        """Identity of the reading: readings with equal names convert equal values of a version equally."""
        stated = None if self.stated is None else column_form(self.stated).name
        scalar = getattr(self.scalar, "__name__", self.scalar)
        return f"{scalar} {self.now.id} {column_form(self.now).name} {stated} {self.placeholders}"

    def is_of(self, column: Column | None) -> bool:
        """Return True if a column of an earlier version is this column, and not another with the same name.

        Args:
            column: The column that has this name in that version; None, if there is none, counts as this
                column.
        """
        return column is None or column.id == self.now.id

    def of(self, column: Column | None) -> Callable[[bytes], bytes]:
        """Return the function that converts a value's JSON text in an image to its JSON text in the answer.

        The text must not be null. The function raises `ValueUnfit` if the scalar cannot represent the value,
        and returns null for a value that the source did not send.

        Args:
            column: The column as of the image's version; None if that version does not have it.
        """
        # The form converts a value by the type of its own version. If that gives another scalar than the
        # field's, the result is widened, or narrowed if the type came after the field.
        form = column_form(read_as(column or self.now, self.stated), self.placeholders)
        if self.scalar is Json:
            return column_form(_JSON, self.placeholders).text
        if form.scalar is self.scalar:
            return form.text
        if joined(form.scalar, self.scalar) is self.scalar:
            return partial(_widened, form, self.scalar)
        return partial(_narrowed, form, self.scalar)

    def value(self, raw: bytes, column: Column | None) -> object:
        """Return the converted value as a resolver returns it.

        Raises:
            ValueUnfit: The scalar cannot represent the value.
        """
        text = raw if raw == NULL else self.of(column)(raw)
        if text == NULL:
            return None
        return msgspec.Raw(text) if self.scalar is Json else msgspec.json.decode(text)


def reading_of(
    now: Column, earlier: Iterable[Column], placeholders: tuple[str, ...] = ()
) -> ColumnReading:
    """Return the conversion of a column's values, for all of its versions.

    Args:
        now: The current column.
        earlier: Earlier states of the column, oldest first.
        placeholders: Texts that replace values that the source did not send, in addition to the default text.
    """
    history = [*earlier, now]
    stated = next((each for each in history if not each.inferred), None)
    scalars = [
        column_form(read_as(each, stated)).scalar
        for each in history
        if each is now or not each.inferred or each.sql_type is not None
    ]
    return ColumnReading(reduce(joined, scalars), now, stated, placeholders)


def histories(schemas: Iterable[Schema]) -> Mapping[int, Iterable[Column]]:
    """Return column id → states of the column in the schemas, one for each type and encoding."""
    found: dict[int, dict[tuple[str | None, str, bool], Column]] = {}
    # The tuple keeps all schemas alive: `id` of a freed object could be that of another one.
    every = (*schemas,)
    seen: set[int] = set()
    for schema in every:
        for columns in schema.entity_types.values():
            # Schemas share unchanged columns, and a log has about as many schemas as entity types.
            if id(columns) in seen:
                continue
            seen.add(id(columns))
            for column in columns:
                stated = (column.sql_type, column.encoding, column.inferred)
                found.setdefault(column.id, {})[stated] = column
    return {id: columns.values() for id, columns in found.items()}


def joined(one: object, other: object) -> object:
    """Return the scalar that can represent the values of two scalars."""
    if one is other:
        return one
    pair: tuple[Any, ...] = (one, other)
    if Json in pair:
        return Json
    # BigInt or Decimal with Float becomes Decimal: a double would lose digits.
    if all(each in _NUMBERS for each in pair):
        if Decimal not in pair and float not in pair:
            return BigInt
        return float if int in pair and float in pair else Decimal
    return str


def _widened(form: ColumnForm, scalar: object, raw: bytes) -> bytes:
    """Convert a value to a wider scalar, which can represent all values of the form."""
    text = form.text(raw)
    if scalar in _AS_STRING and text != NULL and text[:1] != b'"':
        return b'"%b"' % text
    return text


def _narrowed(form: ColumnForm, scalar: object, raw: bytes) -> bytes:
    """Convert a value of a type that the column got later, if the field's scalar can represent the value."""
    text = form.text(raw)
    if text == NULL:
        return text
    # BigInt and Decimal are strings of digits: compare them as numbers.
    if form.scalar in _NUMBERS and scalar in _NUMBERS:
        text = text.strip(b'"')
    if scalar in _NUMBERS and _JSON_NUMBER.fullmatch(text):
        return _NUMBERS[scalar].convert(text)
    if form.scalar is Json and scalar is bool:
        return _BOOLEAN.convert(text)
    if form.scalar is Json and scalar is str and text[:1] == b'"':
        return text
    shown = raw[:40].decode(errors="replace")
    raise ValueUnfit(
        f"{shown} has a type that the column did not have at the start; subscribe again"
    )
