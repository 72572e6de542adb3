"""The changes of a table for its reader: bounded, so that a slow reader holds up no other."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tailrace.errors import SubscriberTooSlow, again

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace.table.contents import ChangeLog, TableChange


@dataclass(frozen=True, slots=True)
class TableRestarted:
    """The changes up to a version do not come one by one: what was built from the table is to be built anew."""

    version: int
    """The rows are as of it."""
    because: TailraceError
    """The log no longer had the changes, it was replaced, or the iteration took them too slowly."""


class LiveChanges:
    """The changes of a table from when it was made, as an async iterator; made by ``Table.changes``.

    They come in order, versions whole. Changes that were not taken wait, up to a number. With more of them
    all that wait are dropped, and a `TableRestarted` comes in their place; the changes behind it follow.
    """

    def __init__(self, backlog: int) -> None:
        """Keep so many at most."""
        self.backlog = backlog
        self._waiting: deque[TableChange | TableRestarted] = deque()
        self._ended: TailraceError | None = None
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange | TableRestarted:
        """Return the next one; a call that is cancelled has taken nothing.

        Raises:
            TailraceError: Why the table has ended, after all that came before it was taken.
        """
        while not self._waiting:
            if self._ended is not None:
                raise again(self._ended)
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def put(self, version: int, changed: ChangeLog) -> None:
        """Take the changes of whole versions up to one."""
        if changed.overflowed or len(self._waiting) + len(changed.changes) > self.backlog:
            slow = SubscriberTooSlow(f"more than {self.backlog} changes of a table were not taken")
            self.restart(TableRestarted(version, slow))
        elif changed.changes:
            self._waiting.extend(changed.changes)
            self._news.set()

    def restart(self, restarted: TableRestarted) -> None:
        """Put it in the place of all that waits."""
        self._waiting.clear()
        self._waiting.append(restarted)
        self._news.set()

    def end(self, error: TailraceError) -> None:
        """Raise an error behind what waits."""
        self._ended = error
        self._news.set()
