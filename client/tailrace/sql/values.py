"""How the values of an answer become Python's, by the type of their column.

================================  ==============================================================
type, as Arrow writes it          Python
================================  ==============================================================
int8 … uint64, bool, string       int, bool, str
float, double                     float
decimal128(p, s)                  Decimal
date32[day]                       date
time64[us]                        time
timestamp[us], …tz=…]             datetime, aware where it has a zone
binary                            bytes
struct, list, map                 dict, list, dict
others                            what JSON has for them: texts, of an interval as in ISO 8601
================================  ==============================================================
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tailrace.conditions.numbers import refuse_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.v1.sql_pb2 import SqlColumn

    Convert = Callable[[Any], object]

_BY_BEGINNING: Final[tuple[tuple[str, Convert], ...]] = (
    ("decimal", Decimal),
    ("date32", date.fromisoformat),
    ("time64[us]", time.fromisoformat),
    ("timestamp[us", datetime.fromisoformat),
    ("binary", base64.b64decode),
    ("float", float),
    ("double", float),
)


class RowsReader:
    """Reads the rows of one answer."""

    def __init__(self, columns: Sequence[SqlColumn]) -> None:
        """Know how the values of each column are read."""
        self._names = [column.name for column in columns]
        converts = [*map(_convert_of, columns)]
        self._converts = [*zip(self._names, converts, strict=True)]

    def read(self, lines: bytes) -> list[dict[str, Any]]:
        """Return rows by name of their columns; each line is one."""
        names = self._names
        rows = [dict(zip(names, json.loads(line), strict=True)) for line in lines.split(b"\n")[:-1]]
        for name, convert in self._converts:
            if convert is not None:
                for row in rows:
                    if (value := row[name]) is not None:
                        row[name] = convert(value)
        return rows


def _convert_of(column: SqlColumn) -> Convert | None:
    """Return what makes Python's value of one that is not null; None: it is what JSON has."""
    members = [*map(_convert_of, column.members)]
    match column.type:
        case "struct":
            parts = {
                each.name: convert
                for each, convert in zip(column.members, members, strict=True)
                if convert is not None
            }
            return lambda value: {
                name: each if each is None or name not in parts else parts[name](each)
                for name, each in value.items()
            }
        case "list":
            (element,) = members
            if element is None:
                return None
            return lambda value: [each if each is None else element(each) for each in value]
        case "map":
            of_key, of_value = (each or _as_it_is for each in members)
            return lambda value: {
                of_key(key): each if each is None else of_value(each) for key, each in value
            }
    return next((of for start, of in _BY_BEGINNING if column.type.startswith(start)), None)


def _as_it_is(value: Any) -> object:
    return value


def parameter_text(value: object) -> str:
    """Return the value of a parameter as JSON.

    Days, times and UUIDs become texts, which the statement casts: ``$since::TIMESTAMPTZ``.

    Raises:
        TypeError: JSON has no such value.
        ValueError: A float is no number, a number has too many digits, or UTF-8 cannot hold a text.
    """
    if isinstance(value, str):
        value.encode()
    if isinstance(value, int | Decimal):
        refuse_large(value)
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(parameter_text, value))}]"
    if isinstance(value, date | time):
        return json.dumps(value.isoformat())
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"JSON has no number {value}: give the text, and cast it in the statement: $name::DOUBLE"
        )
    if isinstance(value, UUID):
        return json.dumps(str(value))
    if not isinstance(value, str | int | float | None):
        raise TypeError(
            f"{type(value).__name__} is no type of a parameter: give a number, a text, a day or time, True, "
            "False, None, or a list of them; others as texts, which the statement casts: $name::INTERVAL"
        )
    return json.dumps(value)
