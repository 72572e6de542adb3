"""The rows of an entity type as of one version, as an async iterator that ends.

::

    async with client.state("shop", "product") as state:
        async for row in state:
            table[row.primary_key] = row.image
    async with client.subscribe("shop", after=state.header.cursor) as captures:    # resumes from there
        ...
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tailrace import wire
from tailrace.criteria import Transition
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken
from tailrace.position import Position, TimestampMicros
from tailrace.reads.pinned_read import PinnedRead
from tailrace.schema import Schema
from tailrace.typed.row_reader import untyped_row
from tailrace.typed.schemas import KnownSchemas
from tailrace.v1.capture_fields_pb2 import ReadStateResponseParts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tailrace.capture import Capture
    from tailrace.transport import Stream
    from tailrace.typed.row_reader import RowReader
    from tailrace.typed.schemas import Ask


class TypedState:
    """Knows what reads the rows of a table, by the version that they came with."""

    def __init__(
        self, catalog: str, catalog_uuid: UUID, entity_type: str, version: int, ask: Ask
    ) -> None:
        """Keep what is read.

        Args:
            catalog: Its name.
            catalog_uuid: Its log.
            entity_type: The name of the table as of the version that is read.
            version: That version.
            ask: Asks for the schema of a version.
        """
        self._entity_type = entity_type
        self._version = version
        self._ids: frozenset[int] | None = None
        """Of its columns, which tell the table where it has another name; None: not asked yet."""
        self._schemas = KnownSchemas(catalog, catalog_uuid, ask, part_of=self._part_of)

    async def reader(self, version: int) -> RowReader:
        """Return what reads a row that came with a version; raises as `KnownSchemas.reader`."""
        if self._ids is None:
            await self._schemas.schema(self._version)
        return await self._schemas.reader(version, self._entity_type)

    def _part_of(self, schema: Schema) -> Schema:
        """Return the columns of the table in a schema, under its name as of the version that is read."""
        columns = schema.entity_types.get(self._entity_type, ())
        if self._ids is None:
            self._ids = frozenset(column.id for column in columns if column.id)
        elif self._ids:
            columns = ()
            for each in schema.entity_types.values():
                if any(column.id in self._ids for column in each):
                    columns = each
        return Schema(schema.id, {self._entity_type: columns}, schema.placeholders)


@dataclass(frozen=True, slots=True)
class StateHeader:
    """The log and version that a read of state is pinned to."""

    catalog: str
    catalog_uuid: UUID
    entity_type: str
    """Of the rows; where a view was asked for, the one that it shows, by its name as of V."""
    version: int
    """V: every version up to it is in the rows, and nothing above it."""
    commit_timestamp: TimestampMicros
    """When V was committed, µs; 0 before the first version."""
    cursor: Cursor
    """Subscribe ``after`` it: the first change is of V + 1."""
    columns: tuple[str, ...] = ()
    """Names, as of V, of the columns that images have, where the request or a view says which; empty: all."""


@dataclass(frozen=True, slots=True)
class StateEnd:
    """How a read of state ended."""

    next_page: str | None
    """With ``limit``: ``page`` of the next read; None: there are no more rows."""
    rows: int
    """Rows read."""


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of a table, as its last change left it."""

    primary_key: str
    """Canonical text."""
    position: Position
    """Of its last change."""
    commit_timestamp: TimestampMicros
    """Of its last change, µs; 0 where the log no longer knows."""
    image: bytes | None
    """The row as the source wrote it: a JSON object. None with ``keys_only``, if the source sent none, or
    with ``omitted_bytes``."""
    omitted_bytes: int = 0
    """Size of an image that was left out, as it exceeds ``max_message_bytes``."""
    count: int = 1
    """How often the row exists; of tables without a key it may be more than one."""
    is_undecided: bool = False
    """With ``where``: the row may meet the condition or not, as a value that it needs is not known."""
    reader: RowReader | None = field(default=None, repr=False, compare=False)
    """With ``typed=True``: knows the columns as of the row's version."""
    entity_type: str = field(default="", repr=False, compare=False)
    """As `StateHeader.entity_type`."""

    def values(self) -> dict[str, Any] | None:
        """Return the row's values, as `Capture.row`; None without an image.

        Raises:
            ValueNotHeld: As `Capture.row`.
        """
        if self.image is None:
            return None
        if self.reader is not None:
            return self.reader.read(self.image)
        return untyped_row(self.entity_type, self.image)


class State(PinnedRead[ReadStateResponseParts, StateHeader, StateEnd, StateRow]):
    """One read of state; made by ``Client.state``. Iterate it once, under ``async with``.

    The server sends as fast as you take, in an order of its own. A read that breaks raises: read again, at
    ``header.version`` if the rows that came are to stay. One that waits for a version that is not published in
    time raises ``DeadlineExceeded`` as it is entered.
    """

    def __init__(
        self, open_stream: Callable[[], Stream], patience_s: float, ask: Ask | None = None
    ) -> None:
        """Keep how to begin; nothing is sent before the context is entered.

        Args:
            open_stream: Begins the read.
            patience_s: For its header.
            ask: Asks for the schema of a version, where rows are to be typed.
        """
        super().__init__(open_stream, patience_s)
        self._came = 0
        self._ask = ask
        self._typing: TypedState | None = None

    async def batches(self) -> AsyncIterator[list[StateRow]]:
        """Yield the rows message by message, none empty; raises as the iteration by row."""
        while True:
            if self._current:
                batch = [*self._current]
                self._current.clear()
                yield batch
            if self._end is not None:
                return
            await self._advance()

    async def _prepare(self) -> None:
        if self._ask is None or not self._current:
            return
        if self._typing is None:
            header = self.header
            self._typing = TypedState(
                header.catalog, header.catalog_uuid, header.entity_type, header.version, self._ask
            )
        for place, row in enumerate(self._current):
            reader = await self._typing.reader(row.position.version)
            self._current[place] = replace(row, reader=reader)

    def _parsed(self, data: bytes) -> ReadStateResponseParts:
        return wire.parsed(ReadStateResponseParts, data)

    def _header_of(self, message: ReadStateResponseParts) -> StateHeader:
        header = message.header
        return StateHeader(
            catalog=header.catalog,
            catalog_uuid=UUID(header.catalog_uuid),
            entity_type=header.entity_type,
            version=header.version,
            commit_timestamp=TimestampMicros(header.commit_timestamp),
            cursor=Cursor.parse(header.resume_cursor),
            columns=tuple(header.column),
        )

    def _take(self, message: ReadStateResponseParts) -> None:
        if message.rows:
            captures = wire.captures(message.rows, self.header.catalog_uuid)
            rows = _rows(captures, self.header.entity_type)
            self._current.extend(rows)
            self._came += len(rows)
        if message.HasField("end"):
            end = message.end
            if end.rows != self._came:
                raise SubscriptionBroken(f"the server sent {end.rows} rows, {self._came} came")
            self._end = StateEnd(next_page=end.next_page or None, rows=end.rows)


def _rows(captures: Sequence[Capture], entity_type: str) -> list[StateRow]:
    return [
        StateRow(
            each.primary_key or "",
            each.position,
            each.commit_timestamp,
            each.after,
            each.omitted_bytes,
            1 if each.change is None else int(json.loads(each.change)["diff"]),
            each.transition is Transition.UNKNOWN,
            entity_type=entity_type,
        )
        for each in captures
    ]
