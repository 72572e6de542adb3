"""Trees of conditions as SQL text: equal trees have equal texts, and others have others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace_server.filters.tree import (
    Comparison,
    Constant,
    Distinction,
    Family,
    Junction,
    Likeness,
    Membership,
    Negation,
    NullTest,
    Parameter,
)

if TYPE_CHECKING:
    from tailrace_server.filters.tree import Condition, Value

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
    """Return a condition as text."""
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
    elif isinstance(value, Constant) and _stands_alone(value.text, value.family):
        return value.text
    else:
        text = _quoted(value.text)
    return text if value.family is None else f"CAST({text} AS {_CASTS[value.family]})"


def _stands_alone(text: str, family: Family | None) -> bool:
    """Whether a constant needs no quotes: it may have been cast to what its text is not."""
    if family is Family.NUMBER:
        return _NUMBER.fullmatch(text) is not None
    return family is Family.BOOLEAN and text in ("true", "false")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
