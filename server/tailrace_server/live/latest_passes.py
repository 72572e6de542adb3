"""Passes over one catalog's log that find the newest record of each key, shared by readers that are behind.

A record is the newest of its key in a range of the log, wherever in the range a reader begins. So readers with
the same criteria share a pass. The pass must begin at the reader's place or before it, and the reader's ring
must cover the end of the pass, where the reader continues live.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final

from tailrace.criteria import Area
from tailrace.errors import again, kept
from tailrace.position import END, Position
from tailrace_server.live.latest_rows import NewestRecords, RowSet
from tailrace_server.wal.base.winners import HASHES_END
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead

    Rows = NDArray[np.int64]
    Matched = list[tuple[BatchHead, BatchSelection]]

_IDS: Final = count(1)
_IN_THREAD: Final = 1_024
"""From this many matched captures on, a window is processed in a thread, so that the event loop does not
wait."""


class NewestPass:
    """One pass and its readers. It lives on the event loop; its task begins at once."""

    def __init__(self, log: FollowedLog, predicate: Predicate, low: int) -> None:
        """Begin a pass over the rows from ``low`` up to the newest published row."""
        self.id = next(_IDS)
        """A number unique in the process; part of the cache key of the frames of this pass."""
        self.predicate = predicate
        self.low = low
        self.end_row = log.view.end_row
        """End of the range of rows, exclusive."""
        self.end = Position(log.view.published, END)
        """Last position of the range."""
        self.readers = 0
        self.rows: RowSet | None = None
        """Rows of the newest records; None until the pass is over."""
        self._log = log
        self._known: set[str] = set()
        """Entity types that have been checked for a primary key."""
        self._unkeyed: set[str] = set()
        """The checked entity types whose rows have no primary key."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="newest records")

    def add_reader(self, wake: Callable[[], None]) -> None:
        """Add a reader, and call ``wake`` when the pass is over."""
        self.readers += 1
        # If the task is done already, the callback runs in the next turn of the event loop.
        self._task.add_done_callback(lambda _: wake())

    def is_over(self) -> bool:
        """Return True if the newest records are known.

        Raises:
            TailraceError: The pass has failed.
        """
        if self.rows is None and self._task.done():
            error = self._task.exception()
            assert isinstance(error, Exception)
            raise again(kept(error))
        return self.rows is not None

    def cancel(self) -> None:
        """End the pass, because it has no reader any more."""
        self._task.cancel()

    async def _run(self) -> None:
        # Too many keys for the memory bound: then a pass covers only a range of key hashes, up to ``stop``,
        # and the log is read again for the next range.
        parts: list[Rows] = []
        start = 0
        async with self._log.newest_turns:
            while start < HASHES_END:
                newest = NewestRecords(start, self._unkeyed)
                row = self.low
                while row < self.end_row:
                    row = await self._add_window(newest, row)
                # Sorting many rows takes long, so it runs in a thread.
                parts.append(await asyncio.to_thread(newest.rows, first=start == 0))
                start = newest.stop
        self.rows = await asyncio.to_thread(RowSet, self.low, self.end_row, parts)

    async def _add_window(self, newest: NewestRecords, row: int) -> int:
        """Add the matches in one window of the log, and return the row after the window.

        Return ``row`` itself if a file of the window was gone: the caller then tries again in a newer view.
        """
        log = self._log
        await log.turns.turn(self)  # live subscriptions come first
        try:
            scan = await log.reading.scan(log.view, row, self.predicate)
            found = [
                ((await log.reading.grouped(run.batch)).head, run.selection)
                for run in scan.runs
                if run.last_row >= row and run.first_row < self.end_row
            ]
            for head, _ in found:
                await self._look_for_keys(head)
        except SegmentMissing as missing:
            # A newer view has the records in another file. Nothing was added yet, so the row can be read again.
            await log.recover(missing, row)
            return row
        if sum(len(selection) for _, selection in found) < _IN_THREAD:
            self._add(newest, found, row)
        else:
            await asyncio.to_thread(self._add, newest, found, row)
        return scan.end_row

    def _add(self, newest: NewestRecords, found: Matched, row: int) -> None:
        for head, selection in found:
            newest.add(head, selection, row, self.end_row)

    async def _look_for_keys(self, head: BatchHead) -> None:
        """Check each new entity type of a batch for a primary key, and remember the result."""
        # The head does not say whether a row has a primary key, so one row of each new type is looked up.
        new = [code for code, name in enumerate(head.entity_types) if name not in self._known]
        for code in new:
            rows = (head.type_codes == code) & (head.areas == Area.DATA) & (head.key_hashes != 0)
            if rows.any():
                offset = int(rows.argmax())
                name = head.entity_types[code]
                if await self._log.reading.has_no_key(self._log.view, head, offset):
                    self._unkeyed.add(name)
                self._known.add(name)


class NewestPasses:
    """The open passes for the criteria of one publisher. They live on the event loop."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        """Begin with none."""
        self._open: list[NewestPass] = []

    def __len__(self) -> int:
        """Return the number of open passes."""
        return len(self._open)

    def join(
        self, log: FollowedLog, predicate: Predicate, row: int, floor: int, wake: Callable[[], None]
    ) -> NewestPass:
        """Return an open pass that suits a reader, else a new one. The reader must ``leave`` the pass.

        Args:
            log: The log to read.
            predicate: The criteria of the publisher, the same in all calls.
            row: The reader's next row.
            floor: First row that the publisher's ring covers.
            wake: Called when the pass is over.
        """
        # The pass must include the reader's next row. It must also end inside of the ring: else the reader
        # would need another pass, from the end of this one.
        for each in self._open:
            if each.low <= row < each.end_row and floor <= each.end_row:
                found = each
                break
        else:
            found = NewestPass(log, predicate, row)
            self._open.append(found)
        found.add_reader(wake)
        return found

    def leave(self, left: NewestPass) -> None:
        """Remove a reader from a pass; the last reader cancels the pass."""
        left.readers -= 1
        if not left.readers:
            left.cancel()
            self._open.remove(left)
