"""The rows of a table in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.table.contents import ChangeLog, Contents, StoredRow, TableChange, row_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.capture import Capture
    from tailrace.cursor import Cursor
    from tailrace.reads.state import StateRow
    from tailrace.table.fold import Step


class InMemory(Contents):
    """A dict. A version is applied when it is whole, between two turns of the event loop."""

    def __init__(self) -> None:
        """Be empty."""
        self._rows: dict[str, StoredRow] = {}
        self._new: dict[str, StoredRow] = {}
        self._waiting: list[Capture] = []
        """Of the version under way."""

    async def open(self) -> Cursor | None:
        """Return None: nothing is kept from an earlier run."""
        return None

    async def close(self) -> None:
        """Drop all rows."""
        self._rows = {}

    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Apply what is whole, and keep the rest."""
        for captures, cursor in steps:
            self._waiting += captures
            if cursor is not None:
                for each in self._waiting:
                    self._change(each, changes)
                self._waiting.clear()

    def _change(self, capture: Capture, changes: ChangeLog) -> None:
        key = capture.primary_key
        if key is None:
            self._rows.clear()
            changes.add(TableChange(capture.version, None, None, None, capture.operation))
            return
        old, new = self._rows.get(key), row_after(capture)
        if new is not None:
            self._rows[key] = new
        elif old is not None:
            del self._rows[key]
        else:
            return
        changes.add(TableChange(capture.version, key, old, new, capture.operation))

    async def begin_again(self) -> None:
        """Forget what was added, and the version under way."""
        self._new = {}
        self._waiting.clear()

    async def add(self, rows: Sequence[StateRow]) -> None:
        """Add rows to those that are not visible yet."""
        self._new.update((row.primary_key, StoredRow(row.image, row.reader)) for row in rows)

    async def replace(self, cursor: Cursor) -> None:
        """Show the new rows."""
        self._rows, self._new = self._new, {}
        self.loaded = cursor.version

    def get(self, key: str) -> StoredRow | None:
        """Return a row."""
        return self._rows.get(key)

    def all_keys(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self._rows)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)
