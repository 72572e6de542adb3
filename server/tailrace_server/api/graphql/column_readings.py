"""How the values of a column come where its type has changed: each by its version's type, all as one scalar.

A column's type holds for the versions that were written with it. A field has one type for all of them: the
scalar that holds what each of the others shows.

==================================  ==========  =========================================================
scalars of the column's types       the field   a value of another of them
==================================  ==========  =========================================================
one, whatever the types             that one    as its own type and encoding say
Int, BigInt                         BigInt      string of its digits
Int, Float                          Float       the same number
other numbers                       Decimal     string of its digits
any with JSON                       JSON        as the source wrote it
anything else                       String      what the other scalar shows, as a string
==================================  ==========  =========================================================

A subscription goes on with the scalars that it began with. A value of a type that came later is shown if it is
a number, and the field's scalar can hold it; else it is unfit.
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
"""Scalars of numbers, each with the form that makes one of a JSON number."""
_JSON: Final = Column("", sql_type="JSON")
_BOOLEAN: Final = column_form(Column("", sql_type="BOOLEAN"))
_JSON_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_AS_STRING: Final = (BigInt, Decimal, str)
"""Scalars that are strings in JSON, and that a number can become."""


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """How the values of one field come."""

    scalar: object
    """Its annotation."""
    now: Column
    """The column as it is, for values of versions that do not have it."""
    stated: Column | None
    """The column as it was first stated, for values of versions that had only inferred its type."""
    placeholders: tuple[str, ...] = ()
    """The replacements of values that were not sent, beside the default."""

    @property
    def name(self) -> str:
        """Readings of equal name give equal text for a value of the same version."""
        stated = None if self.stated is None else column_form(self.stated).name
        scalar = getattr(self.scalar, "__name__", self.scalar)
        return f"{scalar} {self.now.id} {column_form(self.now).name} {stated} {self.placeholders}"

    def is_of(self, column: Column | None) -> bool:
        """Return whether a column of an earlier version is this one: two may have had one name, at times.

        Args:
            column: The column that has one of the names in that version; None if none has.
        """
        return column is None or column.id == self.now.id

    def of(self, column: Column | None) -> Callable[[bytes], bytes]:
        """Return what makes the answer's JSON text of the text in an image, which is not null.

        It raises `ValueUnfit` for a value that the scalar cannot hold; one that was not sent is null.

        Args:
            column: The column as of the image's version; None if that does not have it.
        """
        form = column_form(read_as(column or self.now, self.stated), self.placeholders)
        if self.scalar is Json:
            return column_form(_JSON, self.placeholders).text
        if form.scalar is self.scalar:
            return form.text
        if joined(form.scalar, self.scalar) is self.scalar:
            return partial(_widened, form, self.scalar)
        return partial(_narrowed, form, self.scalar)

    def value(self, raw: bytes, column: Column | None) -> object:
        """Return the same as a resolver returns it.

        Raises:
            ValueUnfit: As `of`.
        """
        text = raw if raw == NULL else self.of(column)(raw)
        if text == NULL:
            return None
        return msgspec.Raw(text) if self.scalar is Json else msgspec.json.decode(text)


def reading_of(
    now: Column, earlier: Iterable[Column], placeholders: tuple[str, ...] = ()
) -> ColumnReading:
    """Return how the values of a column come.

    Args:
        now: The column.
        earlier: The column as it was, oldest first.
        placeholders: The placeholders for values that were not sent, beside the default.
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
    """Return the columns of schemas by id, each type and encoding of one once."""
    found: dict[int, dict[tuple[str | None, str, bool], Column]] = {}
    every = (*schemas,)  # kept, so that no other columns get the identity of those that were seen
    seen: set[int] = set()
    for schema in every:
        for columns in schema.entity_types.values():
            if id(columns) in seen:
                continue  # as in an earlier schema: a log has as many schemas as entity types
            seen.add(id(columns))
            for column in columns:
                stated = (column.sql_type, column.encoding, column.inferred)
                found.setdefault(column.id, {})[stated] = column
    return {id: columns.values() for id, columns in found.items()}


def joined(one: object, other: object) -> object:
    """Return the scalar that holds what two scalars show."""
    if one is other:
        return one
    pair: tuple[Any, ...] = (one, other)
    if Json in pair:
        return Json
    if all(each in _NUMBERS for each in pair):
        if Decimal not in pair and float not in pair:
            return BigInt
        return float if int in pair and float in pair else Decimal
    return str


def _widened(form: ColumnForm, scalar: object, raw: bytes) -> bytes:
    """Return a value in a scalar that holds it."""
    text = form.text(raw)
    if scalar in _AS_STRING and text != NULL and text[:1] != b'"':
        return b'"%b"' % text
    return text


def _narrowed(form: ColumnForm, scalar: object, raw: bytes) -> bytes:
    """Return a value of a type that came after the field, if its scalar holds it all the same."""
    text = form.text(raw)
    if text == NULL:
        return text
    if form.scalar in _NUMBERS and scalar in _NUMBERS:
        text = text.strip(b'"')
    if scalar in _NUMBERS and _JSON_NUMBER.fullmatch(text):
        return _NUMBERS[scalar].convert(text)
    if form.scalar is Json and scalar is bool:
        return _BOOLEAN.convert(text)
    if form.scalar is Json and scalar is str and text[:1] == b'"':
        return text
    shown = raw[:40].decode(errors="replace")
    raise ValueUnfit(f"{shown} is of a type that the column did not have; subscribe again")
