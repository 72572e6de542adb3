"""The rows of an entity type as of one version, as an async iterator that ends.

::

    async with client.state("shop", "product") as state:
        async for row in state:
            table[row.primary_key] = row.image
    async with client.subscribe("shop", after=state.header.cursor) as captures:    # goes on from there
        ...
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from tailrace import wire
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken, SubscriptionClosed, TransportError
from tailrace.position import Position, TimestampMicros
from tailrace.transport.event_loop import OnOneLoop
from tailrace.v1.capture_fields_pb2 import ReadStateResponseParts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from tailrace.capture import Capture
    from tailrace.transport import Stream

_JSON: Final = json.JSONDecoder(parse_float=Decimal)


@dataclass(frozen=True, slots=True)
class StateHeader:
    """What a read of state is pinned to."""

    catalog: str
    catalog_uuid: UUID
    entity_type: str
    version: int
    """V: every version up to it is in the rows, and nothing above it."""
    commit_timestamp: TimestampMicros
    """When V was committed, µs; 0 before the first version."""
    cursor: Cursor
    """Subscribe ``after`` it: the first change is of V + 1."""


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

    def values(self) -> dict[str, Any] | None:
        """Return the image's members; numbers with a point or an exponent are Decimals. None without one."""
        if self.image is None:
            return None
        found: dict[str, Any] = _JSON.decode(self.image.decode())
        return found


class State(OnOneLoop):
    """One read of state; made by ``Client.state``. Iterate it once, under ``async with``.

    The server sends as fast as you take. A read that breaks raises: read again, at ``header.version`` if the
    rows that came are to stay.
    """

    def __init__(self, open_stream: Callable[[], Stream], patience_s: float) -> None:
        """Keep how to begin; nothing is sent before the context is entered."""
        self._open_stream = open_stream
        self._patience_s = patience_s
        self._stream: Stream | None = None
        self._header: StateHeader | None = None
        self._end: StateEnd | None = None
        self._current: deque[StateRow] = deque()
        self._came = 0

    async def __aenter__(self) -> Self:
        """Begin the read and wait for its header.

        Raises:
            DeadlineExceeded: The version that it waits for was not published in time.
            TailraceError: The server refused, or could not be reached.
        """
        if self._stream is not None:
            raise SubscriptionClosed("a read is entered once; read again")
        self._note_loop()
        self._stream = self._open_stream()
        try:
            try:
                async with asyncio.timeout(self._patience_s):
                    message = await self._receive()
            except TimeoutError:
                raise TransportError(f"no header came for {self._patience_s:g} s") from None
            if not message.HasField("header"):
                raise TransportError("the first message is not a header")
        except BaseException:
            self._stream.close()
            raise
        header = message.header
        self._header = StateHeader(
            catalog=header.catalog,
            catalog_uuid=UUID(header.catalog_uuid),
            entity_type=header.entity_type,
            version=header.version,
            commit_timestamp=TimestampMicros(header.commit_timestamp),
            cursor=Cursor.parse(header.resume_cursor),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the call, also in the middle."""
        self._check_loop()
        if self._stream is not None:
            self._stream.close()

    @property
    def header(self) -> StateHeader:
        """What the read is pinned to."""
        if self._header is None:
            raise SubscriptionClosed("the read has not been entered")
        return self._header

    @property
    def end(self) -> StateEnd:
        """How it ended; only once iteration is over."""
        if self._end is None:
            raise SubscriptionClosed("the read has not been iterated to its end")
        return self._end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateRow:
        """Return the next row, in the server's order; cancelling it ends the read.

        Raises:
            SubscriptionBroken: The connection failed.
            SubscriptionClosed: The read or its client was closed under it, or it was not entered.
            TailraceError: The server ended the read.
        """
        while not self._current:
            if self._end is not None:
                raise StopAsyncIteration
            await self._advance()
        return self._current.popleft()

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

    async def _advance(self) -> None:
        self._check_loop()
        if self._stream is None:
            raise SubscriptionClosed("the read has not been entered: iterate inside async with")
        try:
            message = await self._receive()
        except TransportError as error:
            raise SubscriptionBroken(str(error)) from error
        if message.rows:
            rows = _rows(wire.captures(message.rows, self.header.catalog_uuid))
            self._current.extend(rows)
            self._came += len(rows)
        if message.HasField("end"):
            end = message.end
            if end.rows != self._came:
                raise SubscriptionBroken(f"the server sent {end.rows} rows, {self._came} came")
            self._end = StateEnd(next_page=end.next_page or None, rows=end.rows)

    async def _receive(self) -> ReadStateResponseParts:
        # As of history: between two messages the server may have the whole log to look at.
        assert self._stream is not None
        data = await self._stream.receive()
        if data is None:
            raise TransportError("the server completed the read without its last message")
        return wire.parsed(ReadStateResponseParts, data)


def _rows(captures: Sequence[Capture]) -> list[StateRow]:
    return [
        StateRow(
            each.primary_key or "",
            each.position,
            each.commit_timestamp,
            each.after,
            each.omitted_bytes,
            1 if each.change is None else int(json.loads(each.change)["diff"]),
        )
        for each in captures
    ]
