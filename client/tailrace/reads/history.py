"""A range of a catalog's history, as an async iterator that ends.

To read in pages, pass ``limit``. ``end.next_cursor`` is the bound of the next page, and ``header.anchor`` pins
all pages to the same version of the log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from tailrace import wire
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionBroken
from tailrace.position import Position
from tailrace.reads.pinned_read import PinnedRead
from tailrace.typed.schemas import TypedCaptures
from tailrace.v1.capture_fields_pb2 import ReadChangesResponseParts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.capture import Capture
    from tailrace.criteria import Criteria
    from tailrace.transport import Stream
    from tailrace.typed.schemas import Ask


@dataclass(frozen=True, slots=True)
class HistoryHeader:
    """The log and version that a read is pinned to."""

    catalog: str
    catalog_uuid: UUID
    anchor: int
    """Highest version that this read and its later pages can see."""
    closed_until: int
    """Commit time in µs below which no new version can appear; a poll passes it as the next ``from_time``."""
    oldest: Position
    """Oldest retained position."""
    truncated: bool
    """True if a bound by time is before the oldest retained position, so that the read begins at ``oldest``."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose updates come without ``before``, as in `Acknowledgement.unknown_changes`."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria as narrowed by the caller's grants; empty if the grants cover all of the criteria."""


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """The end of a read, with the place to continue from."""

    has_next: bool
    """True if the read stopped at ``limit`` and there may be more."""
    next_cursor: Cursor | None
    """Bound of the next page if ``has_next``: pass it as ``after``, or as ``before`` in reverse order."""
    captures: int
    """Number of captures read."""


class History(PinnedRead[ReadChangesResponseParts, HistoryHeader, HistoryEnd, "Capture"]):
    """One read of history; made by ``Client.read_changes``. Iterate it once, under ``async with``.

    The server sends as fast as captures are taken. A broken read raises ``SubscriptionBroken``; the error's
    ``resume_cursor`` is the cursor of the last capture taken, after which a new read can continue.
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
        self._last: Capture | None = None
        self._count = 0
        self._ask = ask
        self._typing: TypedCaptures | None = None

    async def _prepare(self) -> None:
        if self._ask is None:
            return
        if self._typing is None:
            self._typing = TypedCaptures(self.header.catalog, self._ask)
        self._current = deque(await self._typing.with_readers(self._current))

    def _parsed(self, data: bytes) -> ReadChangesResponseParts:
        return wire.parsed(ReadChangesResponseParts, data)

    def _header_of(self, message: ReadChangesResponseParts) -> HistoryHeader:
        header = message.header
        return HistoryHeader(
            catalog=header.catalog,
            catalog_uuid=UUID(header.catalog_uuid),
            anchor=header.anchor,
            closed_until=header.closed_until,
            oldest=Position(header.oldest.version, header.oldest.index),
            truncated=header.truncated,
            unknown_changes=tuple(header.unknown_changes),
            effective_criteria=wire.criteria_of(header.effective_criteria),
        )

    def _take(self, message: ReadChangesResponseParts) -> None:
        if message.captures:
            self._current.extend(wire.captures(message.captures, self.header.catalog_uuid))
        if message.HasField("end"):
            text = message.end.next_cursor
            self._end = HistoryEnd(
                has_next=message.end.has_next,
                next_cursor=Cursor.parse(text) if text else None,
                captures=message.end.captures,
            )
            # The count of the server detects captures that were lost on the way.
            if self._end.captures != self._count + len(self._current):
                raise SubscriptionBroken(
                    f"the server sent {self._end.captures} captures, but "
                    f"{self._count + len(self._current)} were received"
                )

    def _taken(self, last: Capture, count: int) -> None:
        self._last = last
        self._count += count

    def _resume_cursor(self) -> str | None:
        return None if self._last is None else str(self._last.cursor)
