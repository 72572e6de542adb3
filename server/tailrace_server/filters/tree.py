"""A filter as a tree: conditions on one column each, joined by AND, OR and NOT.

Every name and value knows its place in the text or the message that it was read from, for errors. Trees of
equal conditions are equal, at any place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

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
    """The value of a parameter, in its place: the tree says by itself what it asks for."""

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
