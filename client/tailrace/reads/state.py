"""The rows of an entity type as of one version, as an async iterator that ends.

::

    async with client.state("shop", "product") as state:
        async for row in state:
            table[row.primary_key] = row.image
    async with client.subscribe("shop", after=state.header.cursor) as captures:    # all later changes
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
    from collections.abc import Callable, Sequence

    from tailrace.capture import Capture
    from tailrace.transport import Stream
    from tailrace.typed.row_reader import RowReader
    from tailrace.typed.schemas import Ask


class TypedState:
    """The readers of a table's rows, by the version of each row's last change.

    A row keeps the columns of the version that wrote it, and the table may have had another name then.
    """

    def __init__(
        self, catalog: str, catalog_uuid: UUID, entity_type: str, version: int, ask: Ask
    ) -> None:
        """Store the table that is read.

        Args:
            catalog: Name of the catalog.
            catalog_uuid: Identity of its log.
            entity_type: Name of the table as of the version that is read.
            version: The version that is read.
            ask: Function that requests the schema of a version.
        """
        self._entity_type = entity_type
        self._version = version
        self._ids: frozenset[int] | None = None
        """Ids of the table's columns, which identify the table in versions where it has another name; None
        until its schema is known."""
        self._schemas = KnownSchemas(catalog, catalog_uuid, ask, part_of=self._part_of)

    async def reader(self, version: int) -> RowReader:
        """Return the reader of rows that were last changed in a version.

        Raises:
            TailraceError: The server refused the request for the schema, or could not be reached.
        """
        if self._ids is None:
            await self._schemas.schema(self._version)
        return await self._schemas.reader(version, self._entity_type)

    def _part_of(self, schema: Schema) -> Schema:
        """Return a schema with the table's columns only, under the table's name in the version that is read."""
        # The first schema is that of the version that is read: note the ids of the table's columns. In all
        # other versions find the table by these ids, since it may have another name there.
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
    """Entity type of the rows, by its name as of ``version``; for a view, the entity type below it."""
    version: int
    """Version of the rows: they have all changes up to it, and none after it."""
    commit_timestamp: TimestampMicros
    """Commit time of ``version``, in µs; 0 before the first version."""
    cursor: Cursor
    """Cursor at the end of ``version``; a subscription ``after`` it delivers the changes of later versions."""
    columns: tuple[str, ...] = ()
    """Names of the columns in the images, as of ``version``; empty if neither the request nor a view selects
    columns."""


@dataclass(frozen=True, slots=True)
class StateEnd:
    """The end of a read of state, with the page to continue from."""

    next_page: str | None
    """``page`` of the next read, if ``limit`` ended this one; None: there are no more rows."""
    rows: int
    """Number of rows read."""


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of a table, as its last change left it."""

    primary_key: str
    """Canonical text of the row's key."""
    position: Position
    """Position of the row's last change."""
    commit_timestamp: TimestampMicros
    """Commit time of the row's last change, in µs; 0 if the log no longer has it."""
    image: bytes | None
    """The row as the source wrote it, a JSON object. None with ``keys_only``, with ``omitted_bytes``, or if the
    source sent no image."""
    omitted_bytes: int = 0
    """Size in bytes of an image that was left out since it exceeds ``max_message_bytes``; 0: not left out."""
    count: int = 1
    """Number of equal rows; it may exceed 1 only in a table without a key."""
    is_undecided: bool = False
    """True if it is unknown whether the row meets ``where``, since a value that the condition needs is
    unknown."""
    reader: RowReader | None = field(default=None, repr=False, compare=False)
    """Converter of the image to Python values, by the columns of the row's version; set with ``typed=True``."""
    entity_type: str = field(default="", repr=False, compare=False)
    """Entity type of the row, as in `StateHeader.entity_type`."""

    def values(self) -> dict[str, Any] | None:
        """Return the values of the row by column, in the types of `Capture.row`; None without an image.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value, or the exponent of a number is too
                large for Decimal.
        """
        if self.image is None:
            return None
        if self.reader is not None:
            return self.reader.read(self.image)
        return untyped_row(self.entity_type, self.image)


class State(PinnedRead[ReadStateResponseParts, StateHeader, StateEnd, StateRow]):
    """One read of state; made by ``Client.state``. Iterate it once, under ``async with``.

    The server sends as fast as rows are taken, in any order. A broken read raises ``SubscriptionBroken`` and
    has to begin again; with ``at=header.version`` it returns the same rows. Entering the context raises
    ``DeadlineExceeded`` if the version of ``wait_for`` was not published in time.
    """

    def __init__(
        self, open_stream: Callable[[], Stream], patience_s: float, ask: Ask | None = None
    ) -> None:
        """Store how to begin; entering the context sends the request.

        Args:
            open_stream: Function that begins the read.
            patience_s: Maximum wait for the header, in seconds.
            ask: Function that requests the schema of a version; None if rows are not typed.
        """
        super().__init__(open_stream, patience_s)
        self._came = 0
        self._ask = ask
        self._typing: TypedState | None = None

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
            # The count of the server detects rows that were lost on the way.
            if end.rows != self._came:
                raise SubscriptionBroken(
                    f"the server sent {end.rows} rows, but {self._came} were received"
                )
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
