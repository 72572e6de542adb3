"""The policy for a subscription that is behind: it receives all, the latest of each key, or ends.

======================  =====================================================================
begins behind           ``catch_up`` LATEST: a phase. ALL: it reads the log
is overtaken, live      ``overrun`` LATEST: a phase. DISCONNECT: it ends. RESYNC: it reads the log
has had a phase         live, if the ring reaches back to its end; else another phase
======================  =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.criteria import CatchUp, OverrunPolicy
from tailrace_server.capture.delivery.live_and_resync import RefillResult
from tailrace_server.capture.latest.overrun import overrun_behind
from tailrace_server.capture.latest.phase import LatestPhase
from tailrace_server.capture.matching.run import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.cursor import Cursor
    from tailrace.errors import PositionCompacted
    from tailrace_server.capture.delivery.followed_log import FollowedLog
    from tailrace_server.capture.delivery.live_and_resync import Intake
    from tailrace_server.capture.delivery.options import DeliveryOptions
    from tailrace_server.capture.delivery.publisher import Publisher


class WhenBehind:
    """The policy for one subscription that is behind, if it is not the default."""

    __slots__ = ("_due", "_log", "_options", "_phase", "_publisher", "_until_live")

    def __init__(
        self, log: FollowedLog, publisher: Publisher[Any], options: DeliveryOptions
    ) -> None:
        """Begin behind what is published, or not."""
        self._log = log
        self._publisher = publisher
        self._options = options
        self._due = options.catch_up is CatchUp.LATEST
        """Whether a phase begins, should there be anything to catch up with."""
        self._until_live = self._due
        """Whether what the ring does not reach back to is caught up with by another phase."""
        self._phase: LatestPhase | None = None

    @classmethod
    def of(
        cls, log: FollowedLog, publisher: Publisher[Any], options: DeliveryOptions
    ) -> WhenBehind | None:
        """Return that of a subscription; None where it gets everything, from the log."""
        if options.catch_up is CatchUp.ALL and options.overrun is OverrunPolicy.RESYNC:
            return None
        return cls(log, publisher, options)

    def judged(self, result: RefillResult, cursor: Callable[[], Cursor]) -> RefillResult:
        """Return the result of a refill, LATEST where a phase begins.

        Raises:
            SubscriptionOverrun: It is to end; ``cursor`` returns the one behind all that it was sent.
        """
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
        """Bring the next of the newest records into an empty queue, or nearer; False: there is no phase.

        Args:
            intake: That of the subscription.
            compacted: Returns the error of a next record that is no longer retained.
            wake: Ends a wait.
            wait: Waits for that, or for the next heartbeat.

        Raises:
            PositionCompacted: A newest record has been trimmed.
            SegmentMissing: A file has gone since the view was taken.
            TailraceError: The newest records cannot be found out.
        """
        # 1. A phase begins where something is published behind the next mark. What the ring alone has is not in
        #    the log any more, and comes from there.
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
        # 2. Behind its last record the subscription goes on where the phase ends, live or by another phase.
        row = phase.next_row(intake.next.row)
        if row is None:
            intake.pass_to(phase.end)
            self.close()
            return True
        # 3. What lies before the next one is not wanted, and may be trimmed.
        if row > intake.next.row:
            intake.next = Mark(row)
        if (gone := compacted()) is not None:
            raise gone
        await log.turns.turn(self._options.peer)  # those who are live come first
        window = await phase.window(row)
        if self._phase is phase:  # else it has ended meanwhile, and its queue stays empty
            intake.accept(window)
        return True

    def close(self) -> None:
        """End the phase, if there is one. Idempotent."""
        if self._phase is not None:
            self._phase.close()
            self._phase = None
