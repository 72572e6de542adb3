"""The newest record of each key, sent to a subscription that is behind in place of all that it missed.

::

    next                                     N, published as the phase began
      │  ·   ·   ■   ·   ·   ·   ■   ■   ·   │
      └── only the newest records (■) ───────┴── all, live

They come in the order of the log, so every cursor among them is one to resume from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.criteria import CaptureKind
from tailrace_server.capture.delivery.live_and_resync import SafePoint
from tailrace_server.capture.matching.run import BatchSelection, Run
from tailrace_server.capture.reading.catalog_reader import Scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.capture.delivery.followed_log import FollowedLog
    from tailrace_server.capture.delivery.publisher import Publisher


class LatestPhase:
    """The phase of one subscription. Lives on the event loop; ``close`` it."""

    __slots__ = ("_log", "_pass", "_passes", "_window", "_window_revision")

    def __init__(
        self,
        log: FollowedLog,
        publisher: Publisher[Any],
        row: int,
        wake: Callable[[], None],
    ) -> None:
        """Begin at a row, up to what is published now; ``wake`` is called once the newest records are known."""
        self._log = log
        self._passes = publisher.newest
        predicate, floor = publisher.predicate, publisher.ring.floor
        self._pass = self._passes.join(log, predicate, row, floor, wake)
        self._window: Scan | None = None
        """The newest records of the window that was read last."""
        self._window_revision = -1

    def close(self) -> None:
        """Leave the pass to the others that share it."""
        self._passes.leave(self._pass)

    @property
    def is_known(self) -> bool:
        """Whether the newest records are known.

        Raises:
            TailraceError: They cannot be found out.
        """
        return self._pass.is_over()

    @property
    def end(self) -> SafePoint:
        """The end of what it gives."""
        return SafePoint(self._pass.end_row, *self._pass.end)

    def next_row(self, row: int) -> int | None:
        """Return the row of the first newest record at or after a row; None: there is no more."""
        assert self._pass.rows is not None
        return self._pass.rows.first_at_or_after(row)

    async def window(self, row: int) -> Scan:
        """Return the newest records of the window of the log that holds a row.

        Raises:
            SegmentMissing: A file has gone since the view was taken.
        """
        view, window = self._log.view, self._window
        if (
            window is None
            or self._window_revision != view.revision
            or not window.first_row <= row < window.end_row
        ):
            scan = await self._log.reading.scan(view, row, self._pass.predicate)
            runs = [run for each in scan.runs if (run := await self._newest_of(each)) is not None]
            window = Scan(tuple(runs), scan.first_row, scan.end_row, scan.end, scan.nbytes)
            if scan.end_row > (end := self.end).rows:
                window = Scan(tuple(runs), scan.first_row, end.rows, self._pass.end, scan.nbytes)
            self._window, self._window_revision = window, view.revision
        return window

    async def _newest_of(self, run: Run) -> Run | None:
        """Return what of a run is of newest records; None: nothing."""
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
