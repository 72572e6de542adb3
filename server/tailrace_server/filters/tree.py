"""The tree of a condition: conditions on single columns, joined by AND, OR and NOT.

Every name and value has its place in the text or the message that it was parsed from, for errors. Places are
ignored in comparisons: equal conditions have equal trees and equal canonical texts (``words_of``). The limits
on the size of a condition are here too, because text and message share them.
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
"""Place for errors: the index of a character in a text, or a path in a message, as ``and[1].gt``."""


class Family(Enum):
    """Groups of types whose values can be compared with each other."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "truth"
    DATE = "day"
    TIME = "time of day"
    TIMESTAMP = "moment without a zone"
    INSTANT = "moment with a zone"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """The name of a column, as it was written."""

    text: str
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value, as it was written."""

    text: str | None
    """The value as text; None: NULL."""
    family: Family | None
    """The family of the literal or of its cast; None for NULL, and for a text that takes the column's type."""
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, whose value is not part of the condition."""

    name: str
    family: Family | None
    """The family of its cast; None: the value takes the column's type."""
    place: Place = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a caller's claim, which has replaced a parameter in a policy's condition."""

    text: str
    family: Family | None
    """The family of the parameter's cast; None: the value takes the column's type."""
    place: Place = field(default=0, compare=False)


Value = Constant | Parameter | Given


class Operator(Enum):
    """Operators of comparisons."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with a value: ``price > 100``."""

    column: ColumnName
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """A test against a list of values: ``state IN ('paid', 'sent')``."""

    column: ColumnName
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """A test against a pattern: ``name LIKE 'A%'``."""

    column: ColumnName
    pattern: Value
    ignores_case: bool
    """True for ILIKE."""
    escape: str
    """Escape character; the character after it has no special meaning. Empty: there is no escape character."""


@dataclass(frozen=True, slots=True)
class NullTest:
    """A test for NULL: ``note IS NULL``."""

    column: ColumnName


@dataclass(frozen=True, slots=True)
class Distinction:
    """A comparison that treats NULL like other values: ``state IS DISTINCT FROM 'paid'``."""

    column: ColumnName
    value: Value


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions joined by AND, or by OR."""

    is_and: bool
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """A condition after NOT."""

    part: Condition


Condition = Comparison | Membership | Likeness | NullTest | Distinction | Junction | Negation


def columns_in(condition: Condition) -> tuple[ColumnName, ...]:
    """Return the names of the columns in a condition, each once, in order of appearance."""
    found: dict[ColumnName, None] = {}
    waiting = [condition]
    while waiting:
        match waiting.pop():
            # Reversed, as the last item of the list is taken next.
            case Junction(parts=parts):
                waiting.extend(reversed(parts))
            case Negation(part=part):
                waiting.append(part)
            case leaf:
                found.setdefault(leaf.column)
    return (*found,)


def renamed(condition: Condition, names: Mapping[str, str]) -> Condition:
    """Return a condition with its columns renamed; ``names`` is old name → new name, for all columns."""
    match condition:
        case Junction(is_and=is_and, parts=parts):
            return Junction(is_and, tuple(renamed(part, names) for part in parts))
        case Negation(part=part):
            return Negation(renamed(part, names))
        case leaf:
            column = replace(leaf.column, text=names[leaf.column.text])
            return replace(leaf, column=column)


class ConditionRefused(InvalidRequest):
    """A condition is invalid, or cannot be bound to the columns. The message repeats names of the request."""

    place: Place | None = None
    """The place of the fault; None: the whole condition."""
    what: str = ""
    """The fault, without its place."""


class ChangeNotJudged(ConditionRefused):
    """It is unknown whether the row of a change was granted, so the change can be neither sent nor left out."""


class ValuesNotCarried(ConditionRefused):
    """The new type of a compared column may not hold the column's earlier values."""

    def __init__(self, column: str, now: str) -> None:
        """Create the error for a column and its new type."""
        super().__init__(f"where: the column {column!r} is {now} now; send the request again")
        self.column, self.now = column, now


def refused(place: Place, what: str) -> ConditionRefused:
    """Return the error for a fault at a place."""
    at = f"character {place + 1}" if isinstance(place, int) else place
    error = ConditionRefused(f"where, at {at}: {what}")
    error.place, error.what = place, what
    return error


_BYTES_MAX: Final = 64 << 10
"""The most bytes of a condition's text or message."""
_TERMS_MAX: Final = 10_000
"""The most columns and values in a condition, counted with repetitions."""
_DEPTH_MAX: Final = 64
"""The most levels of nested conditions."""


class TermCount:
    """Counter of the columns and values of one condition, with a limit."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._terms = 0

    def count(self, place: Place) -> None:
        """Count one column or value; ``place`` is its place.

        Raises:
            ConditionRefused: The condition has more than ``_TERMS_MAX`` of them.
        """
        self._terms += 1
        if self._terms > _TERMS_MAX:
            raise refused(place, f"a filter may have at most {_TERMS_MAX} columns and values")


def refuse_long(size: int) -> None:
    """Check the size of a condition in bytes.

    Raises:
        ConditionRefused: The condition is too long.
    """
    if size > _BYTES_MAX:
        raise ConditionRefused(f"where: the condition is longer than {_BYTES_MAX} bytes")


def refuse_deep(depth: int) -> None:
    """Check the depth of a nested condition.

    Raises:
        ConditionRefused: The condition is nested too deeply.
    """
    if depth > _DEPTH_MAX:
        raise too_deep()


def too_deep() -> ConditionRefused:
    """Return the error for conditions that are nested too deeply."""
    return ConditionRefused(f"where: conditions may be nested at most {_DEPTH_MAX} deep")


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
    """Return True if a constant needs no quotes; a constant with a cast may be any text."""
    if family is Family.NUMBER:
        return _NUMBER.fullmatch(text) is not None
    return family is Family.BOOLEAN and text in ("true", "false")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
