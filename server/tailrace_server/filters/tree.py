"""A filter as a tree: conditions on one column each, joined by AND, OR and NOT.

Every name and value knows its place in the text or the message that it was read from, for errors. Trees of
equal conditions are equal, at any place, and so are their texts (`words_of`). The bounds on the size of a
condition are here too, for text and message alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

Place = int | str
"""The number of a letter in a text, from 0; or a path in a message, as ``and[1].gt``."""


class Family(Enum):
    """Types whose values compare with each other; a value is written for one of them."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "truth"
    DATE = "day"
    TIME = "time of day"
    TIMESTAMP = "moment without a zone"
    INSTANT = "moment with a zone"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """The name of a column, as it is written."""

    text: str
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value, as it is written."""

    text: str | None
    """None: NULL."""
    family: Family | None
    """The type that it was written as, or cast to. None: a text that becomes what its column is; also of
    NULL."""
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """The name of a value that comes beside the text."""

    name: str
    family: Family | None
    """The type that it is cast to. None: it becomes what its column is."""
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a parameter, in the place of the parameter."""

    text: str
    family: Family | None
    """As of the parameter."""
    place: Place = field(default=0, compare=False)


Value = Constant | Parameter | Given


class Operator(Enum):
    """A comparison."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Comparison:
    """``price > 100``."""

    column: ColumnName
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """``state IN ('paid', 'sent')``."""

    column: ColumnName
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """``name LIKE 'A%'``."""

    column: ColumnName
    pattern: Value
    ignores_case: bool
    escape: str
    """Character that takes the meaning from the one behind it; empty: none does."""


@dataclass(frozen=True, slots=True)
class NullTest:
    """``note IS NULL``."""

    column: ColumnName


@dataclass(frozen=True, slots=True)
class Distinction:
    """``state IS DISTINCT FROM 'paid'``, where NULL is a value like others."""

    column: ColumnName
    value: Value


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions joined by AND, or by OR."""

    is_and: bool
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """``NOT …``."""

    part: Condition


Condition = Comparison | Membership | Likeness | NullTest | Distinction | Junction | Negation


def columns_in(condition: Condition) -> tuple[ColumnName, ...]:
    """Return the names of columns in a condition, each once, in their order."""
    found: dict[ColumnName, None] = {}
    waiting = [condition]
    while waiting:
        match waiting.pop():
            case Junction(parts=parts):
                waiting.extend(reversed(parts))
            case Negation(part=part):
                waiting.append(part)
            case leaf:
                found.setdefault(leaf.column)
    return (*found,)


def renamed(condition: Condition, names: Mapping[str, str]) -> Condition:
    """Return a condition with other names for its columns; ``names`` has each of them."""
    match condition:
        case Junction(is_and=is_and, parts=parts):
            return Junction(is_and, tuple(renamed(part, names) for part in parts))
        case Negation(part=part):
            return Negation(renamed(part, names))
        case leaf:
            column = replace(leaf.column, text=names[leaf.column.text])
            return replace(leaf, column=column)


class ConditionRefused(InvalidRequest):
    """A condition cannot be read, or asks for what is not there. Its text has names of the caller's."""

    place: Place | None = None
    """The place; None: the whole condition."""
    what: str = ""
    """The fault there."""


class ChangeNotJudged(ConditionRefused):
    """The server cannot say whether the row of a change was granted."""


class ValuesNotCarried(ConditionRefused):
    """A column that the condition compares has another type now, which need not hold its earlier values."""

    def __init__(self, column: str, now: str) -> None:
        """Keep the column and the type that it has now."""
        super().__init__(f"where: the column {column!r} is {now} now; ask anew")
        self.column, self.now = column, now


def refused(place: Place, what: str) -> ConditionRefused:
    """Return the error about something at a place."""
    at = f"character {place + 1}" if isinstance(place, int) else place
    error = ConditionRefused(f"where, at {at}: {what}")
    error.place, error.what = place, what
    return error


_BYTES_MAX: Final = 64 << 10
"""Bytes of a filter's text, or of its message."""
_TERMS_MAX: Final = 10_000
"""Columns and values that a filter names."""
_DEPTH_MAX: Final = 64
"""Conditions within conditions."""


class TermCount:
    """Counts the columns and values of one condition."""

    def __init__(self) -> None:
        """Begin with none."""
        self._terms = 0

    def count(self, place: Place) -> None:
        """Count one.

        Raises:
            ConditionRefused: It is one too many.
        """
        self._terms += 1
        if self._terms > _TERMS_MAX:
            raise refused(place, f"a filter has {_TERMS_MAX} columns and values at most")


def refuse_long(size: int) -> None:
    """Refuse a condition of so many bytes, if they are too many.

    Raises:
        ConditionRefused: They are.
    """
    if size > _BYTES_MAX:
        raise ConditionRefused(f"where: the condition is longer than {_BYTES_MAX} bytes")


def refuse_deep(depth: int) -> None:
    """Refuse a condition that lies within so many others, if they are too many.

    Raises:
        ConditionRefused: They are.
    """
    if depth > _DEPTH_MAX:
        raise too_deep()


def too_deep() -> ConditionRefused:
    """Return the error about conditions that lie too deep within others."""
    return ConditionRefused(f"where: conditions lie within others {_DEPTH_MAX} deep at most")


_CASTS: Final = {
    Family.NUMBER: "DECIMAL",
    Family.TEXT: "VARCHAR",
    Family.BOOLEAN: "BOOLEAN",
    Family.DATE: "DATE",
    Family.TIME: "TIME",
    Family.TIMESTAMP: "TIMESTAMP",
    Family.INSTANT: "TIMESTAMPTZ",
}
_NUMBER: Final = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


def words_of(condition: Condition) -> str:
    """Return the canonical SQL text of a condition; one text for each tree."""
    match condition:
        case Junction(is_and=is_and, parts=parts):
            return f"({(' AND ' if is_and else ' OR ').join(map(words_of, parts))})"
        case Negation(part=part):
            return f"NOT {words_of(part)}"
        case NullTest():
            found = "IS NULL"
        case Comparison(operator=operator, value=value):
            found = f"{operator.value} {_value(value)}"
        case Membership(values=values):
            found = f"IN ({', '.join(map(_value, values))})"
        case Distinction(value=value):
            found = f"IS DISTINCT FROM {_value(value)}"
        case Likeness(pattern=pattern, ignores_case=ignores_case, escape=escape):
            found = f"{'ILIKE' if ignores_case else 'LIKE'} {_value(pattern)}"
            if escape != "\\":
                found += f" ESCAPE {_quoted(escape)}"
    name = condition.column.text
    return '"' + name.replace('"', '""') + f'" {found}'


def _value(value: Value) -> str:
    if isinstance(value, Parameter):
        text = f":{value.name}"
    elif value.text is None:
        return "NULL"
    elif isinstance(value, Constant) and _is_bare(value.text, value.family):
        return value.text
    else:
        text = _quoted(value.text)
    return text if value.family is None else f"CAST({text} AS {_CASTS[value.family]})"


def _is_bare(text: str, family: Family | None) -> bool:
    """Return True if a constant needs no quotes; one that was cast may have any text."""
    if family is Family.NUMBER:
        return _NUMBER.fullmatch(text) is not None
    return family is Family.BOOLEAN and text in ("true", "false")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
