"""The answer to a statement in SQL, as an async iterator that ends: rows, or pieces of an Arrow stream.

::

    async with client.sql("shop", "SELECT name, price FROM product WHERE price > $least",
                          parameters={"least": 100}) as answer:
        async for row in answer:
            print(row["name"], row["price"])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from tailrace import wire
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken
from tailrace.position import TimestampMicros
from tailrace.reads.pinned_read import PinnedRead
from tailrace.sql.values import RowsReader
from tailrace.v1.sql_pb2 import QuerySqlResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.v1.sql_pb2 import SqlColumn

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    """The log and version that an answer is pinned to."""

    catalog: str
    catalog_uuid: UUID
    version: int
    """Every version up to it is in the answer, and nothing above it."""
    commit_timestamp: TimestampMicros
    """Of that version, µs; 0 before the first."""
    closed_until: int
    """Commit timestamp, µs: nothing below it can still appear."""
    cursor: Cursor
    """Subscribe ``after`` it: the first change is of the next version."""
    since_version: int | None
    """Of a poll: its first version."""
    columns: tuple[tuple[str, str], ...]
    """Name and type, as Arrow writes it."""


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """How an answer ended."""

    rows: int


class Answer(PinnedRead[QuerySqlResponse, AnswerHeader, AnswerEnd, _Item], Generic[_Item]):
    """The common part of both forms of an answer. Iterate it once, under ``async with``."""

    _rows = 0
    """That came; an Arrow stream counts its own."""

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
        """Take the columns, before the first row comes."""


class SqlRows(Answer[dict[str, Any]]):
    """Rows, each a dictionary of Python's values by column; made by ``Client.sql``."""

    def _know(self, columns: tuple[SqlColumn, ...]) -> None:
        self._reader = RowsReader(columns)

    async def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the rows message by message, none empty; raises as the iteration by row."""
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
                    f"the server sent {message.end.rows} rows, {self._rows} came"
                )
            self._end = AnswerEnd(self._rows)


class SqlArrow(Answer[bytes]):
    """Pieces of an Arrow IPC stream, which they are once they are joined; made by ``Client.sql_arrow``."""

    def _take(self, message: QuerySqlResponse) -> None:
        if message.arrow:
            self._current.append(message.arrow)
        if message.HasField("end"):
            self._end = AnswerEnd(message.end.rows)

    async def to_arrow(self) -> Any:
        """Return all of the answer as a ``pyarrow.Table``, which takes memory for all of it.

        Raises:
            ImportError: pyarrow is not installed; the client does without.
            TailraceError: As the iteration.
        """
        import importlib

        arrow = importlib.import_module("pyarrow")
        pieces = [piece async for piece in self]
        with arrow.ipc.open_stream(arrow.BufferReader(b"".join(pieces))) as stream:
            return stream.read_all()
