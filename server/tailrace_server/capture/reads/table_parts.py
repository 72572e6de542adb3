"""Parts of a table's rows, as readers share them. All of it is called in reader threads."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import InvalidRequest
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from tailrace.cursor import RowMark
    from tailrace_server.capture.reading.open_scans import OpenScans
    from tailrace_server.wal.base.reading import TableState

_KEYS_AT_ONCE: Final = 1_024
"""Keys that are looked up together."""
_BORDERS: Final = np.uint64(4_096 - 1)
"""A part ends behind a row whose key hash has none of these bits: behind one in so many."""
_ROWS_MAX: Final = 8_192
"""It ends here, too, where no such row comes, …"""
_BYTES_MAX: Final = 4 << 20
"""… and at so many bytes of keys and images."""
_LAST_KEY: Final = "\U0010ffff" * 8
_PART_BYTES: Final = 400


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """Neighbouring rows. Immutable."""

    rows: StateRows
    end: StatePlace | None
    """Behind all of the part; None: behind the table."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return _PART_BYTES + _nbytes(self.rows)


_END: Final = TablePart(NO_ROWS, None)


@dataclass(frozen=True, slots=True, eq=False)
class TableScan:
    """The parts of a whole table, in order."""

    table: TableState
    scans: OpenScans
    name: Hashable
    """Of the table, as of its version."""

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part behind a place; behind the last row comes one without rows and without an end."""
        scan = self.scans.take((self.name, place)) or _parts(self.table, place)
        rows = next(scan, None)
        if rows is None:
            return _END
        end = rows.place(-1)
        self.scans.keep((self.name, end), scan)
        return TablePart(rows, end)

    def of_digest(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the row whose key has a digest: all of them are looked at.

        Args:
            mark: Has the digest.
            shown: Tells whether a row is for the reader. One that is not is as if it were not there.

        Raises:
            InvalidRequest: The table has no such row.
        """
        for rows in self.table.parts():
            for row, key in enumerate(rows.primary_keys.to_pylist()):
                if mark.is_of_key(key) and shown(rows.slice(row, row + 1)):
                    return rows.place(row)
        raise unknown_row()


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """The rows that some keys have, in the order of the table."""

    table: TableState
    places: tuple[StatePlace, ...]
    """Of the keys, in order."""

    @classmethod
    def of(cls, table: TableState, primary_keys: tuple[str, ...]) -> KeyedRows:
        """Sort keys by their places; each counts once."""
        return cls(table, tuple(sorted(map(table.place_of, {*primary_keys}))))

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part behind a place, as of a whole table."""
        # By halving: a scan from the first key for each part would cost the square of the keys.
        start = 0 if place is None else bisect_right(self.places, place)
        chosen = self.places[start : start + _KEYS_AT_ONCE]
        if not chosen:
            return _END
        rows = self.table.rows_of([each.primary_key for each in chosen])
        return TablePart(rows, None if chosen[-1] is self.places[-1] else chosen[-1])

    def of_digest(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the key that has a digest, whether there is a row or not.

        Raises:
            InvalidRequest: None of the keys has.
        """
        for each in self.places:
            if mark.is_of_key(each.primary_key):
                return each
        raise unknown_row()


def before_hash(key_hash: int) -> StatePlace | None:
    """Return a place with no row between it and the first of a key hash; None: before all rows."""
    return StatePlace(key_hash - 1, _LAST_KEY) if key_hash else None


def unknown_row() -> InvalidRequest:
    """Return that a cursor is of another state."""
    return InvalidRequest(
        "after: the cursor stands behind a row that this state does not have; resume with a cursor as it came"
    )


def _parts(table: TableState, behind: StatePlace | None) -> Iterator[StateRows]:
    """Yield the rows behind a place in parts, whose borders soon are those of any other reader."""
    held: list[StateRows] = []
    count = nbytes = 0
    for rows in table.parts(behind):
        start = 0
        for border in np.flatnonzero((rows.key_hashes & _BORDERS) == 0).tolist():
            held.append(rows.slice(start, border + 1))
            yield _own(held)
            held, count, nbytes, start = [], 0, 0, border + 1
        if start < len(rows):
            rest = rows.slice(start, len(rows))
            held.append(rest)
            count, nbytes = count + len(rest), nbytes + _nbytes(rest)
        if count >= _ROWS_MAX or nbytes >= _BYTES_MAX:
            yield _own(held)
            held, count, nbytes = [], 0, 0
    if held:
        yield _own(held)


def _own(parts: list[StateRows]) -> StateRows:
    """Return rows joined, in memory of their own: a slice would keep all that it was cut from."""
    if len(parts) > 1:
        return joined_rows(parts)
    return parts[0].taken(np.arange(len(parts[0])))


def _nbytes(rows: StateRows) -> int:
    columns = rows.key_hashes, rows.versions, rows.indexes, rows.counts
    fixed = sum(each.nbytes for each in columns)
    return fixed + int(rows.primary_keys.nbytes) + int(rows.images.nbytes)
