"""One catalog's log as the engine follows it: what is published, how far it is routed, how it is read.

The observer moves it on. Subscriptions, starts and history reads are given this, and not the observer. It also
knows the states that its subscriptions are being sent, so that the next state is of the same version.
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
"""For so long others begin with the version of a state that is being sent, so that they share its blocks."""


class _Phase(Protocol):
    version: int


class StatePhases:
    """The phases of one catalog that are under way. Lives on the event loop."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: WeakSet[_Phase] = WeakSet()
        self._version, self._since = 0, float("-inf")

    def version(self, view: LogView, at_least: int) -> int:
        """Return the version of a state that begins now: the newest, or that of others which began just now.

        Either gives the same in the end, as every change behind it follows. Those of one version share the
        scan. It is not below ``at_least``, which is published.
        """
        now = asyncio.get_running_loop().time()
        shared = any(each.version == self._version for each in self._open)
        kept = Position(self._version + 1) >= view.oldest and self._version >= at_least
        if not shared or not kept or now - self._since > _JOINED_S:
            self._version, self._since = view.published, now
        return self._version

    def add(self, phase: _Phase) -> None:
        """Note one that begins."""
        self._open.add(phase)

    def remove(self, phase: _Phase) -> None:
        """Forget one that is over."""
        self._open.discard(phase)


_NEWEST_AT_ONCE: Final = 2


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
        """Begin at the end of a view: older records are read from the log by the subscriptions that need them.

        Args:
            view: What is published now.
            reading: Reads the log's records.
            refresh: Looks into the log's folder, and returns the newest view.
            on_view: Called after each new view.
            turns: Of the event loop, for whoever reads what is not live.
        """
        self._refresh = refresh
        self._on_view = on_view
        self.reading = reading
        self.turns = turns
        self.retention = NO_TERMS
        """The part of the log that the catalog's settings keep, as read last."""
        self.excess: Excess | None = None
        """By how much the log is larger than they want, as seen last."""
        self.definitions = KnownDefinitions(reading.batches.store, view.uuid)
        """The views of the catalog."""
        self.states = StatePhases()
        """The states that subscriptions are being sent."""
        self.newest_turns = asyncio.Semaphore(_NEWEST_AT_ONCE)
        """Of those who look for newest records: each has the keys that it met in memory."""
        self.waits = VersionWaits()
        """Whoever waits until a version is published."""
        self.view = view
        """The published view; replaced as a whole, in one step."""
        self.newest_at = committed_at(view, view.published)
        """Monotonic time at which the newest published version appeared, for the age of the log."""
        self.routed = view.end_row
        """First row that the live path has not seen."""
        self.routed_position = Position(view.published, END)
        """Everything at or before it is routed."""

    @property
    def newest(self) -> Position:
        """The end of what is published."""
        return Position(self.view.published, END)

    @property
    def newest_age_s(self) -> float | None:
        """Seconds since the newest published version appeared; None where no version is known."""
        return None if self.newest_at == NEVER else time.monotonic() - self.newest_at

    def see(self, view: LogView) -> None:
        """Take a view, unless a newer one has come already: views come from the tailer and from ``recover``."""
        held = self.view
        if (view.published, view.revision) >= (held.published, held.revision):
            if view.published > held.published:
                # Not by the commit timestamp: the writer's clock may be days ahead or behind.
                self.newest_at = time.monotonic()
            self.view = view
            self._on_view()
            self.waits.see(view)

    def pass_to(self, row: int, position: Position) -> None:
        """Move the end of the routed part to a row; ``position`` is the last one before it."""
        self.routed = row
        # Versions without records behind the last row are routed with it.
        self.routed_position = self.newest if row == self.view.end_row else position

    async def view_with(self, version: int | VersionWait) -> LogView:
        """Return a view that shows a version, if the log's folder has it, or once it is there.

        A reader may come with a cursor of another server that has read the folder a moment earlier.

        Raises:
            DeadlineExceeded: A version that is waited for was not published in time.
        """
        if isinstance(version, VersionWait):
            await self.reach(*version)
            return self.view
        if version > self.view.published:
            self.see(await self._refresh())
        return self.view

    async def reach(self, version: int, patience_s: float) -> None:
        """Return once a version is published: at once, if the log's folder has it.

        Raises:
            DeadlineExceeded: It was not, for so long.
        """
        if version <= (await self.view_with(version)).published:
            return
        try:
            await self.waits.wait(version, patience_s)
        except TimeoutError:
            view = self.view
            raise DeadlineExceeded(view.name, version, view.published, patience_s) from None

    async def recover(self, missing: SegmentMissing, row: int) -> None:
        """Take the newest view, in which the records of a missing segment lie in another one.

        Raises:
            LogCorrupted: The newest view still names the file that is missing.
            PositionCompacted: ``row`` was trimmed. The error names the newest position that is gone: which
                one the row had is no longer known here.
        """
        self.see(await self._refresh())
        # The tailer may have brought a view that is newer still.
        view = self.view
        # A trimmed segment is missing too: only one that should be retained is damage.
        if row < view.first_row:
            raise PositionCompacted(view.oldest.preceding(), view.oldest, self.newest)
        if refs := view.batches_in(missing.path):
            reason = "the segment is missing from the log's folder"
            damaged = LogCorrupted(missing.path, 0, reason, refs[0].first, refs[-1].last)
            self.reading.damage.add(damaged, partial(self.reading.batches.head, refs[0]))
            raise damaged
