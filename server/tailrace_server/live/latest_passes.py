"""The passes over one catalog's log that find newest records, shared by the readers that are behind.

Whether a record is the newest of its key as of the end of a stretch does not depend on a reader's place in it.
So those of the same criteria share a pass, if it begins at their place or before, and if their ring covers its
end: from there they continue live.
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
"""Matched captures of a window from which on they are sorted in a thread, so the event loop does not wait."""


class NewestPass:
    """One pass and its readers. Lives on the event loop; its task begins at once."""

    def __init__(self, log: FollowedLog, predicate: Predicate, low: int) -> None:
        """Begin a pass over what is published now, from row ``low`` on."""
        self.id = next(_IDS)
        """Told apart by it are the frames of its records."""
        self.predicate = predicate
        self.low = low
        self.end_row = log.view.end_row
        """First row behind the stretch."""
        self.end = Position(log.view.published, END)
        """The last position of it."""
        self.readers = 0
        self.rows: RowSet | None = None
        """Rows of the newest records; None before they are found."""
        self._log = log
        self._known: set[str] = set()
        """Entity types of which it is known whether their rows have a key, …"""
        self._unkeyed: set[str] = set()
        """… and those whose rows have none."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="newest records")

    def add_reader(self, wake: Callable[[], None]) -> None:
        """Add a reader, which is woken when the pass is over."""
        self.readers += 1
        self._task.add_done_callback(lambda _: wake())

    def is_over(self) -> bool:
        """Return whether the rows are found.

        Raises:
            TailraceError: They cannot be.
        """
        if self.rows is None and self._task.done():
            error = self._task.exception()
            assert isinstance(error, Exception)
            raise again(kept(error))
        return self.rows is not None

    def cancel(self) -> None:
        """End it, as no reader waits for it."""
        self._task.cancel()

    async def _run(self) -> None:
        parts: list[Rows] = []
        start = 0
        async with self._log.newest_turns:
            while start < HASHES_END:
                newest = NewestRecords(start, self._unkeyed)
                row = self.low
                while row < self.end_row:
                    row = await self._add_window(newest, row)
                parts.append(await asyncio.to_thread(newest.rows, first=start == 0))
                start = newest.stop
        self.rows = await asyncio.to_thread(RowSet, self.low, self.end_row, parts)

    async def _add_window(self, newest: NewestRecords, row: int) -> int:
        """Add what one window of the log has, and return the row behind it."""
        log = self._log
        await log.turns.turn(self)  # those who are live come first
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
        """Note of each entity type that was not met before whether its rows have a key."""
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
    """The passes of one publisher's criteria that have readers. Lives on the event loop."""

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
        """Return a pass for a reader, begun now or by another one; ``leave`` it.

        Args:
            log: What is read.
            predicate: What of it; the same for all.
            row: The reader's place.
            floor: First row that its ring covers.
            wake: Called when the pass is over.
        """
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
        """Take a reader from a pass, which goes with its last one."""
        left.readers -= 1
        if not left.readers:
            left.cancel()
            self._open.remove(left)
