"""What changed between two states of a table: of each key that has records between, what the last one leaves.

Whoever has the state at one version comes to that of another by it, without a look at what did not change::

    state at 40   +   changes of 41 … 57   =   state at 57
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.base.overlay import window_of
from tailrace_server.wal.base.winners import FoldBounds, Wanted, Winners, fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.base.winners import LogTable

_BOUNDS: Final = FoldBounds()


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Some keys that have changed, by (key hash, key)."""

    rows: StateRows
    """Those that have a row now. Of a table without keys ``counts`` are what was added to each count."""
    removed: Winners
    """Those that have none any more. Of a table without keys their ``diffs`` count as well."""


class TableChanges:
    """The changes of a table above one version and up to another. Read once; blocks."""

    def __init__(
        self, table: LogTable, after: int, version: int, bounds: FoldBounds = _BOUNDS
    ) -> None:
        """Look through the heads; images are read by ``parts``.

        Args:
            table: The table in the log; its view reaches the version.
            after: The log has all versions above it.
            version: The last one, inclusive.
            bounds: What may be kept at once.

        Raises:
            LogCorrupted: What is read is damaged.
            SegmentMissing: A file is gone: begin again with a newer view.
        """
        self._table, self._after, self._version, self._bounds = table, after, version, bounds
        self._first = fold(table, after, version, Wanted(), bounds, whole=False)

    @property
    def truncated(self) -> bool:
        """Whether all rows were removed at once in between: then ``parts`` says nothing of those before."""
        return self._first.truncated

    def parts(self) -> Iterator[ChangedRows]:
        """Yield the changes in parts of bounded images; nothing if there are none. Errors as the class."""
        found, wanted = self._first, Wanted()
        while True:
            start = 0
            while start < len(found.winners):
                window, rows = window_of(self._table, found.winners, start, self._bounds)
                start += len(window)
                yield ChangedRows(rows, window.taken(~window.lives))
            if found.stop >= wanted.stop:
                return
            wanted = replace(wanted, start=found.stop)
            found = fold(self._table, self._after, self._version, wanted, self._bounds, whole=False)
