"""LATEST: a subscription that is behind receives only the newest record of each key, not all it missed.

::

    next                                     N, published as the phase began
      │  ·   ·   ■   ·   ·   ·   ■   ■   ·   │
      └── only the newest records (■) ───────┴── all, live

The records come in the order of the log, so a subscriber can resume from any cursor among them. The policy by
the situation of the subscription:

======================  =====================================================================
begins behind           ``catch_up`` LATEST: a phase. ALL: it reads the log
is overtaken, live      ``overrun`` LATEST: a phase. DISCONNECT: it ends. RESYNC: it reads the log
has had a phase         live, if the ring reaches back to the phase's end; else another phase
======================  =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.criteria import CaptureKind, CatchUp, OverrunPolicy
from tailrace.errors import SubscriptionOverrun
from tailrace_server.live.intake import RefillResult
from tailrace_server.log_cache.catalog_reader import Scan
from tailrace_server.rows.run import BatchSelection, Mark, Run, SafePoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.cursor import Cursor
    from tailrace.errors import PositionCompacted
    from tailrace_server.live.intake import Intake
    from tailrace_server.live.options import DeliveryOptions
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.log_cache.followed_log import FollowedLog


class LatestPhase:
    """The phase of one subscription. It lives on the event loop and must be closed."""

    __slots__ = ("_log", "_pass", "_passes", "_window", "_window_revision")

    def __init__(
        self,
        log: FollowedLog,
        publisher: Publisher[Any],
        row: int,
        wake: Callable[[], None],
    ) -> None:
        """Begin a phase from ``row`` to the newest published row; call ``wake`` when its records are known."""
        self._log = log
        self._passes = publisher.newest
        predicate, floor = publisher.predicate, publisher.ring.floor
        self._pass = self._passes.join(log, predicate, row, floor, wake)
        self._window: Scan | None = None
        """The newest records in the window that was read last."""
        self._window_revision = -1

    def close(self) -> None:
        """Leave the pass, which other subscriptions may share."""
        self._passes.leave(self._pass)

    @property
    def is_known(self) -> bool:
        """True if the newest records are known.

        Raises:
            TailraceError: The pass that looks for them has failed.
        """
        return self._pass.is_over()

    @property
    def end(self) -> SafePoint:
        """The end of the phase, where the subscription continues live or by another phase."""
        return SafePoint(self._pass.end_row, *self._pass.end)

    def next_row(self, row: int) -> int | None:
        """Return the row of the next newest record, at or after a row; None if there is none."""
        assert self._pass.rows is not None
        return self._pass.rows.first_at_or_after(row)

    async def window(self, row: int) -> Scan:
        """Return the newest records in the window of the log that contains a row.

        Raises:
            SegmentMissing: A file was deleted after the view was taken.
        """
        # Use the last window again as long as the view is the same and the row is inside of it: a message may
        # have taken only a part of the window.
        view, window = self._log.view, self._window
        if (
            window is None
            or self._window_revision != view.revision
            or not window.first_row <= row < window.end_row
        ):
            scan = await self._log.reading.scan(view, row, self._pass.predicate)
            runs = [run for each in scan.runs if (run := await self._newest_of(each)) is not None]
            window = Scan(tuple(runs), scan.first_row, scan.end_row, scan.end, scan.nbytes)
            # The window may reach beyond the end of the phase; the records there are delivered in full, later.
            if scan.end_row > (end := self.end).rows:
                window = Scan(tuple(runs), scan.first_row, end.rows, self._pass.end, scan.nbytes)
            self._window, self._window_revision = window, view.revision
        return window

    async def _newest_of(self, run: Run) -> Run | None:
        """Return the captures of a run that belong to newest records; None if there are none."""
        assert self._pass.rows is not None
        selection, first_row = run.selection, run.batch.first_row
        rows = self._pass.rows.within(run.first_row, run.last_row + 1) - first_row
        places = np.flatnonzero(np.isin(selection.rows, rows))
        if not len(places):
            return None
        ordinals, names = selection.ordinals, selection.names
        newest = BatchSelection(
            (CaptureKind.LATEST, self._pass.id, selection.identity),
            selection.rows[places],
            None if ordinals is None else ordinals[places],
            None if names is None else tuple([names[place] for place in places.tolist()]),
            None if selection.transitions is None else selection.transitions[places],
        )
        first = run.first
        if newest.rows.item(0) != selection.rows.item(0):
            row = first_row + newest.rows.item(0)
            first = await self._log.reading.position_of(self._log.view, row)
        return Run(run.batch, newest, first, committed_at=run.committed_at, kind=CaptureKind.LATEST)


def overrun_behind(cursor: Cursor) -> SubscriptionOverrun:
    """Return the error that ends an overrun subscription; ``cursor`` is after everything that it received."""
    return SubscriptionOverrun(
        "the subscription took fewer captures than were published, and its unread ones have left the "
        "server's ring; its overrun_policy is to disconnect: to get the missed changes, subscribe after "
        f"{cursor}",
        str(cursor),
    )


class WhenBehind:
    """The policy of one subscription that is behind, where the policy is not the default."""

    __slots__ = ("_due", "_log", "_options", "_phase", "_publisher", "_until_live")

    def __init__(
        self, log: FollowedLog, publisher: Publisher[Any], options: DeliveryOptions
    ) -> None:
        """Begin without a phase; ``fill`` begins one when the policy asks for it."""
        self._log = log
        self._publisher = publisher
        self._options = options
        self._due = options.catch_up is CatchUp.LATEST
        """True if a phase is to begin, unless there is nothing to catch up with."""
        self._until_live = self._due
        """True until the subscription is live: if the ring does not reach back to a phase's end, another one
        follows."""
        self._phase: LatestPhase | None = None

    @classmethod
    def of(
        cls, log: FollowedLog, publisher: Publisher[Any], options: DeliveryOptions
    ) -> WhenBehind | None:
        """Return the policy of a subscription; None for the default, to read everything from the log."""
        if options.catch_up is CatchUp.ALL and options.overrun is OverrunPolicy.RESYNC:
            return None
        return cls(log, publisher, options)

    def judged(self, result: RefillResult, cursor: Callable[[], Cursor]) -> RefillResult:
        """Return the result of a refill; LATEST in place of it if a phase begins.

        Raises:
            SubscriptionOverrun: The policy is to disconnect. The error carries the result of ``cursor``, the
                cursor after everything that was delivered.
        """
        # A first catch-up is due from the beginning. An overrun makes one due by its policy; so does a ring
        # that has moved on during a phase, as long as the subscription has not been live since.
        match result:
            case RefillResult.OVERRUN if self._options.overrun is OverrunPolicy.DISCONNECT:
                raise overrun_behind(cursor())
            case RefillResult.FILLED | RefillResult.CAUGHT_UP:
                self._until_live = False
            case RefillResult.OVERRUN if self._options.overrun is OverrunPolicy.LATEST:
                self._due = True
            case RefillResult.BEHIND if self._until_live:
                self._due = True
        return RefillResult.LATEST if self._due else result

    async def fill(
        self,
        intake: Intake,
        compacted: Callable[[], PositionCompacted | None],
        wake: Callable[[], None],
        wait: Callable[[], Awaitable[None]],
    ) -> bool:
        """Make one step of the phase towards captures in the empty queue; return False if there is no phase.

        Args:
            intake: The intake of the subscription.
            compacted: Returns an error if the next record is no longer retained, else None.
            wake: Ends a wait.
            wait: Waits until ``wake`` is called or the next heartbeat is due.

        Raises:
            PositionCompacted: A newest record has been trimmed.
            SegmentMissing: A file was deleted after the view was taken.
            TailraceError: The pass that looks for newest records has failed.
        """
        # 1. Begin a phase if the log has published rows at or after the next mark. Rows that only the ring
        #    still has are delivered from the ring.
        log = self._log
        if self._phase is None:
            if not self._due:
                return False
            self._due = False
            if intake.next.row >= log.view.end_row:
                return False
            if (gone := compacted()) is not None:
                raise gone
            if intake.next.row < log.view.first_row:
                return False
            self._phase = LatestPhase(log, self._publisher, intake.next.row, wake)
            self._until_live = True
        phase = self._phase
        if not phase.is_known:
            await wait()
            return True
        # 2. After the last newest record the subscription continues at the phase's end, live or by another
        # phase.
        row = phase.next_row(intake.next.row)
        if row is None:
            intake.pass_to(phase.end)
            self.close()
            return True
        # 3. Skip the rows before the next newest record: they are superseded, and may be trimmed.
        if row > intake.next.row:
            intake.next = Mark(row)
        if (gone := compacted()) is not None:
            raise gone
        await log.turns.turn(self._options.peer)  # live subscriptions come first
        window = await phase.window(row)
        if (
            self._phase is phase
        ):  # else the subscription has ended meanwhile, and its queue must stay empty
            intake.accept(window)
        return True

    def close(self) -> None:
        """End the phase, if there is one. Idempotent."""
        if self._phase is not None:
            self._phase.close()
            self._phase = None
