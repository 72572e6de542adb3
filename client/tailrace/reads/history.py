"""A closed range of a catalog's history, as an async iterator that ends.

Pages: with ``limit``, ``end.next_cursor`` is the bound of the next page and ``anchor`` pins it to the same log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from tailrace import wire
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken, SubscriptionClosed, TransportError
from tailrace.position import Position
from tailrace.transport.event_loop import OnOneLoop
from tailrace.v1.capture_fields_pb2 import ReadChangesResponseParts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tailrace.capture import Capture
    from tailrace.criteria import Criteria
    from tailrace.transport import Stream


@dataclass(frozen=True, slots=True)
class HistoryHeader:
    """What a read is pinned to."""

    catalog: str
    catalog_uuid: UUID
    anchor: int
    """Highest version that this read and its later pages can see."""
    closed_until: int
    """µs: nothing committed below it can still appear; a poll goes on with it as ``from_time``."""
    oldest: Position
    """Oldest retained position."""
    truncated: bool
    """Whether a bound by time reaches below what is retained, so that nothing before ``oldest`` is read."""
    unknown_changes: tuple[str, ...] = ()
    """As in `Acknowledgement`."""
    effective_criteria: tuple[Criteria, ...] = ()
    """As in `Acknowledgement`."""


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """How a read ended."""

    has_next: bool
    """Whether ``limit`` cut it."""
    next_cursor: Cursor | None
    """With ``has_next``: ``after`` of the next page reading forward, ``before`` in reverse."""
    captures: int
    """Captures read."""


class History(OnOneLoop):
    """One read of history; made by ``Client.read_changes``. Iterate it once, under ``async with``.

    The server sends as fast as you take; a read that breaks raises, and says where to go on.
    """

    def __init__(self, open_stream: Callable[[], Stream], patience_s: float) -> None:
        """Keep how to begin; nothing is sent before the context is entered."""
        self._open_stream = open_stream
        self._patience_s = patience_s
        self._stream: Stream | None = None
        self._header: HistoryHeader | None = None
        self._end: HistoryEnd | None = None
        self._current: deque[Capture] = deque()
        self._last: Capture | None = None
        self._taken = 0

    async def __aenter__(self) -> Self:
        """Begin the read and wait for its header.

        Raises:
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
        self._header = HistoryHeader(
            catalog=header.catalog,
            catalog_uuid=UUID(header.catalog_uuid),
            anchor=header.anchor,
            closed_until=header.closed_until,
            oldest=Position(header.oldest.version, header.oldest.index),
            truncated=header.truncated,
            unknown_changes=tuple(header.unknown_changes),
            effective_criteria=wire.criteria_of(header.effective_criteria),
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
    def header(self) -> HistoryHeader:
        """What the read is pinned to."""
        if self._header is None:
            raise SubscriptionClosed("the read has not been entered")
        return self._header

    @property
    def end(self) -> HistoryEnd:
        """How it ended; only once iteration is over."""
        if self._end is None:
            raise SubscriptionClosed("the read has not been iterated to its end")
        return self._end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Capture:
        """Return the next capture in the direction of the read; cancelling it ends the read.

        Raises:
            SubscriptionBroken: The connection failed; ``resume_cursor`` is the last capture taken.
            SubscriptionClosed: The read or its client was closed under it, or it was not entered.
            TailraceError: The server ended the read.
        """
        while not self._current:
            if self._end is not None:
                raise StopAsyncIteration
            if self._stream is None:
                raise SubscriptionClosed("the read has not been entered: iterate inside async with")
            await self._advance()
        self._last = self._current.popleft()
        self._taken += 1
        return self._last

    async def _advance(self) -> None:
        self._check_loop()
        try:
            message = await self._receive()
        except TransportError as error:
            last = None if self._last is None else str(self._last.cursor)
            raise SubscriptionBroken(str(error), last) from error
        if message.captures:
            self._current.extend(wire.captures(message.captures, self.header.catalog_uuid))
        if message.HasField("end"):
            text = message.end.next_cursor
            self._end = HistoryEnd(
                has_next=message.end.has_next,
                next_cursor=Cursor.parse(text) if text else None,
                captures=message.end.captures,
            )
            if self._end.captures != self._taken + len(self._current):
                raise SubscriptionBroken(
                    f"the server sent {self._end.captures} captures, "
                    f"{self._taken + len(self._current)} came"
                )

    async def _receive(self) -> ReadChangesResponseParts:
        # Between two matches lies as much of the log as there is: no silence is too long. A server that is no
        # longer there is found by the connection's own probes.
        assert self._stream is not None
        data = await self._stream.receive()
        if data is None:
            raise TransportError("the server completed the read without its last message")
        return wire.parsed(ReadChangesResponseParts, data)
