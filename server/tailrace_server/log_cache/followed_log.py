"""One catalog's log while the engine follows it: the published view, the routed part, and access to records.

The observer updates it. Subscriptions, starts and history reads get this object instead of the observer. It
also knows which state phases are open (a subscription first receives the state of a table), so that new ones
can share the version.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from tailrace.errors import DeadlineExceeded, LogCorrupted, PositionCompacted
from tailrace.position import END, Position
from tailrace_server.log_cache.definitions import KnownDefinitions
from tailrace_server.log_cache.loss import NO_TERMS
from tailrace_server.resources.statistics import NEVER, committed_at
from tailrace_server.resources.version_waits import VersionWait, VersionWaits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace_server.log_cache.catalog_reader import CatalogReader
    from tailrace_server.resources.event_loop import LoopTurns
    from tailrace_server.wal.segment.reader import SegmentMissing
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.upkeep.keeping import Excess

_JOINED_S: Final = 1.0
"""Seconds for which new state phases use the version of an open one, so that they share its blocks."""


class _Phase(Protocol):
    version: int


class StatePhases:
    """The open state phases of one catalog. Lives on the event loop."""

    def __init__(self) -> None:
        """Create an empty collection."""
        self._open: WeakSet[_Phase] = WeakSet()
        self._version, self._since = 0, float("-inf")

    def version(self, view: LogView, at_least: int) -> int:
        """Return the version for a state phase that begins now.

        That is the newest version, or that of phases which began within the last second: phases with one
        version share a scan. Both are correct, as all changes after the version follow the state.

        Args:
            view: The newest view.
            at_least: The lowest version to return; it is published.
        """
        # The shared version can be used while a phase with it is open, if its state is still readable.
        now = asyncio.get_running_loop().time()
        shared = any(each.version == self._version for each in self._open)
        kept = Position(self._version + 1) >= view.oldest and self._version >= at_least
        if not shared or not kept or now - self._since > _JOINED_S:
            self._version, self._since = view.published, now
        return self._version

    def add(self, phase: _Phase) -> None:
        """Add a phase that begins."""
        self._open.add(phase)

    def remove(self, phase: _Phase) -> None:
        """Remove a phase that has ended."""
        self._open.discard(phase)


_NEWEST_AT_ONCE: Final = 2
"""The most subscriptions of a catalog that search for the newest records of keys at once."""


class FollowedLog:
    """The newest view of a log and the routed part of it. Lives on the event loop."""

    __slots__ = (
        "_on_view",
        "_refresh",
        "definitions",
        "excess",
        "newest_at",
        "newest_turns",
        "reading",
        "retention",
        "routed",
        "routed_position",
        "states",
        "turns",
        "view",
        "waits",
    )

    def __init__(
        self,
        view: LogView,
        reading: CatalogReader,
        refresh: Callable[[], Awaitable[LogView]],
        on_view: Callable[[], None],
        turns: LoopTurns,
    ) -> None:
        """Begin to follow at the end of a view; subscriptions read older records from the log.

        Args:
            view: The view with the currently published versions.
            reading: Reads the log's records.
            refresh: Reads the log's folder, and returns the newest view.
            on_view: Called after each new view.
            turns: Turns of the event loop, for readers of records that are not live.
        """
        self._refresh = refresh
        self._on_view = on_view
        self.reading = reading
        self.turns = turns
        self.retention = NO_TERMS
        """The retention settings of the catalog, when they were last read."""
        self.excess: Excess | None = None
        """The excess of the log over these settings, when it was last computed; None for none."""
        self.definitions = KnownDefinitions(reading.batches.store, view.uuid)
        """The views and change tables of the catalog."""
        self.states = StatePhases()
        """The open state phases of subscriptions."""
        self.newest_turns = asyncio.Semaphore(_NEWEST_AT_ONCE)
        """Limits how many subscriptions search for the newest record of each key at once, because a search has
        all its keys in memory."""
        self.waits = VersionWaits()
        """The requests that wait until a version is published."""
        self.view = view
        """The newest published view; always replaced as a whole."""
        self.newest_at = committed_at(view, view.published)
        """Monotonic time at which the newest published version appeared, for the age of the log."""
        self.routed = view.end_row
        """First row that the live path has not routed yet."""
        self.routed_position = Position(view.published, END)
        """Last position that the live path has routed."""

    @property
    def newest(self) -> Position:
        """The position at the end of the published versions, after all their records."""
        return Position(self.view.published, END)

    @property
    def newest_age_s(self) -> float | None:
        """Seconds since the newest published version appeared; None if there is no version."""
        return None if self.newest_at == NEVER else time.monotonic() - self.newest_at

    def see(self, view: LogView) -> None:
        """Take a new view, unless the current one is newer: both the tailer and ``recover`` bring views."""
        held = self.view
        if (view.published, view.revision) >= (held.published, held.revision):
            if view.published > held.published:
                # The commit timestamp is not used: the writer's clock may be days ahead or behind.
                self.newest_at = time.monotonic()
            self.view = view
            self._on_view()
            self.waits.see(view)

    def pass_to(self, row: int, position: Position) -> None:
        """Move the end of the routed part forward to a row; ``position`` is the last position before it."""
        self.routed = row
        # At the end of the view, versions without records after the last row are routed too.
        self.routed_position = self.newest if row == self.view.end_row else position

    async def view_with(self, version: int | VersionWait) -> LogView:
        """Return a view that includes a version, if the version is published.

        If the current view does not have it, the log's folder is read again: the reader may have a cursor from
        another server that has read the folder a moment earlier. With a ``VersionWait``, wait for the version.

        Raises:
            DeadlineExceeded: The version of a ``VersionWait`` was not published in time.
        """
        if isinstance(version, VersionWait):
            await self.reach(*version)
            return self.view
        if version > self.view.published:
            self.see(await self._refresh())
        return self.view

    async def reach(self, version: int, patience_s: float) -> None:
        """Wait until a version is published; return at once if it is.

        Raises:
            DeadlineExceeded: The version was not published within ``patience_s`` seconds.
        """
        if version <= (await self.view_with(version)).published:
            return
        try:
            await self.waits.wait(version, patience_s)
        except TimeoutError:
            view = self.view
            raise DeadlineExceeded(view.name, version, view.published, patience_s) from None

    async def recover(self, missing: SegmentMissing, row: int) -> None:
        """Read the newest view after a segment was missing: it has the records in another segment.

        Args:
            missing: The error.
            row: The row that the caller needs next.

        Raises:
            LogCorrupted: The newest view still names the missing file.
            PositionCompacted: ``row`` was trimmed. The error has the newest trimmed position, because the
                position of the row is no longer known.
        """
        self.see(await self._refresh())
        # The tailer may have brought an even newer view meanwhile.
        view = self.view
        # A trimmed segment is missing rightly. It is damage only if the log still names the segment.
        if row < view.first_row:
            raise PositionCompacted(view.oldest.preceding(), view.oldest, self.newest)
        if refs := view.batches_in(missing.path):
            reason = "the segment is missing from the log's folder"
            damaged = LogCorrupted(missing.path, 0, reason, refs[0].first, refs[-1].last)
            self.reading.damage.add(damaged, partial(self.reading.batches.head, refs[0]))
            raise damaged
