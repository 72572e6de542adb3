"""The answer to an SQL statement, as an async iterator that ends: rows, or pieces of an Arrow stream.

::

    async with client.sql("shop", "SELECT name, price FROM product WHERE price > $least",
                          parameters={"least": 100}) as answer:
        async for row in answer:
            print(row["name"], row["price"])

Values are converted to Python by the type of their column.

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
others                            as in JSON, mostly texts; intervals in the form of ISO 8601
================================  ==============================================================
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from tailrace import wire
from tailrace.conditions import refuse_large
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken
from tailrace.position import TimestampMicros
from tailrace.reads.pinned_read import PinnedRead
from tailrace.v1.sql_pb2 import QuerySqlResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

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
    """Parser of the rows of one answer."""

    def __init__(self, columns: Sequence[SqlColumn]) -> None:
        """Prepare a conversion for each column."""
        self._names = [column.name for column in columns]
        converts = [*map(_convert_of, columns)]
        self._converts = [*zip(self._names, converts, strict=True)]

    def read(self, lines: bytes) -> list[dict[str, Any]]:
        """Return rows as dicts by column name; each line of JSON is a row."""
        names = self._names
        rows = [dict(zip(names, json.loads(line), strict=True)) for line in lines.split(b"\n")[:-1]]
        # Column by column: most columns need no conversion, and their values are not looked at again.
        for name, convert in self._converts:
            if convert is not None:
                for row in rows:
                    if (value := row[name]) is not None:
                        row[name] = convert(value)
        return rows


def _convert_of(column: SqlColumn) -> Convert | None:
    """Return a function that converts a value of a column, other than null; None: JSON's value is used."""
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

    Dates, times and UUIDs become texts; the statement has to cast them, as in ``$since::TIMESTAMPTZ``.

    Raises:
        TypeError: The value's type is not supported.
        ValueError: A number is not finite or has too many digits, or a text cannot be encoded as UTF-8.
    """
    if isinstance(value, str):
        value.encode()  # raises ValueError for lone surrogates, which JSON would escape
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
            f"JSON has no number {value}: give it as text, and cast it in the statement: "
            "$name::DOUBLE"
        )
    if isinstance(value, UUID):
        return json.dumps(str(value))
    if not isinstance(value, str | int | float | None):
        raise TypeError(
            f"{type(value).__name__} is not a type of a parameter: give a number, a text, a day "
            "or time, True, False, None, or a list of these; give other values as text, and cast "
            "them in the statement: $name::INTERVAL"
        )
    return json.dumps(value)


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    """The log and version that an answer is pinned to."""

    catalog: str
    catalog_uuid: UUID
    version: int
    """Version of the answer: it has all changes up to it, and none after it."""
    commit_timestamp: TimestampMicros
    """Commit time of ``version``, in µs; 0 before the first version."""
    closed_until: int
    """Commit time in µs below which no new version can appear."""
    cursor: Cursor
    """Cursor at the end of ``version``; a subscription ``after`` it delivers the changes of later versions."""
    since_version: int | None
    """First version of the answer, if the statement has ``$from``; else None."""
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column; the type in Arrow's notation."""


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The end of an answer."""

    rows: int


class Answer(PinnedRead[QuerySqlResponse, AnswerHeader, AnswerEnd, _Item], Generic[_Item]):
    """The common part of both forms of an answer. Iterate it once, under ``async with``."""

    _rows = 0
    """Number of rows received; not used for Arrow streams."""

    def _parsed(self, data: bytes) -> QuerySqlResponse:
        return wire.parsed(QuerySqlResponse, data)

    def _header_of(self, message: QuerySqlResponse) -> AnswerHeader:
        header = message.header
        self._know(tuple(header.columns))
        return AnswerHeader(
            catalog=header.catalog,
            catalog_uuid=UUID(header.catalog_uuid),
            version=header.version,
            commit_timestamp=TimestampMicros(header.commit_timestamp),
            closed_until=header.closed_until,
            cursor=Cursor.parse(header.resume_cursor),
            since_version=header.since_version if header.HasField("since_version") else None,
            columns=tuple((each.name, each.type) for each in header.columns),
        )

    def _know(self, columns: tuple[SqlColumn, ...]) -> None:
        """Receive the columns, before the first row."""


class SqlRows(Answer[dict[str, Any]]):
    """An answer as rows, which are dicts of Python values by column; made by ``Client.sql``."""

    def _know(self, columns: tuple[SqlColumn, ...]) -> None:
        self._reader = RowsReader(columns)

    async def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the rows of one message after another, at least one row each.

        Raises:
            TailraceError: The read failed; the same errors as for the iteration over rows.
        """
        while True:
            if self._current:
                batch = [*self._current]
                self._current.clear()
                yield batch
            if self._end is not None:
                return
            await self._advance()

    def _take(self, message: QuerySqlResponse) -> None:
        if message.rows:
            rows = self._reader.read(message.rows)
            self._current.extend(rows)
            self._rows += len(rows)
        if message.HasField("end"):
            if message.end.rows != self._rows:
                raise SubscriptionBroken(
                    f"the server sent {message.end.rows} rows, but {self._rows} were received"
                )
            self._end = AnswerEnd(self._rows)


class SqlArrow(Answer[bytes]):
    """An answer as pieces of bytes that together are an Arrow IPC stream; made by ``Client.sql_arrow``."""

    def _take(self, message: QuerySqlResponse) -> None:
        if message.arrow:
            self._current.append(message.arrow)
        if message.HasField("end"):
            self._end = AnswerEnd(message.end.rows)

    async def to_arrow(self) -> Any:
        """Return the whole answer as a ``pyarrow.Table``, which needs memory for all of it.

        Raises:
            ImportError: pyarrow is not installed; the client does not depend on it.
            TailraceError: The read failed; the same errors as for the iteration.
        """
        import importlib

        arrow = importlib.import_module("pyarrow")
        pieces = [piece async for piece in self]
        with arrow.ipc.open_stream(arrow.BufferReader(b"".join(pieces))) as stream:
            return stream.read_all()
