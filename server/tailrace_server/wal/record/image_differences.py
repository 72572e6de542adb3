"""The changed columns of updates: two images of a row are compared by the texts of their values.

A compiled loop compares images with the same names in the same order. Python compares the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.machine_code.loader import BYTE, INT, LONG, address, loops
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.image_shapes import shapes_of
from tailrace_server.wal.record.mutation import difference_of
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from tailrace_server.machine_code.loader import Loops

NAMES_AT_ONCE: Final = 256
"""Maximum number of sequences of names per batch whose updates are compared by compiled code: each sequence
takes one pass over all rows. Python compares the other updates."""


class Updates(NamedTuple):
    """The changed columns of updates, by ascending row."""

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    """Number of changed columns of each update."""
    codes: npt.NDArray[np.int32]
    """The changed columns of all updates, as places in ``names``."""
    names: list[str]
    ends: npt.NDArray[np.int32]
    """End of each update's image ``change`` in ``texts``."""
    texts: npt.NDArray[np.uint8]

    def lists(self, total: int) -> pa.ListArray:
        """Return the codes of changed columns for ``total`` rows; null for rows that were not compared."""
        counts = np.zeros(total, np.int64)
        counts[self.rows] = self.counts
        offsets = np.zeros(total + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        buffers = [_bitmap(self.rows, total), pa.py_buffer(offsets)]
        codes = pa.array(self.codes)
        return pa.Array.from_buffers(pa.list_(pa.int32()), total, buffers, children=[codes])

    def changes(self, total: int) -> pa.BinaryArray:
        """Return the image ``change`` of ``total`` rows; null for rows that were not compared."""
        lengths = np.zeros(total, np.int64)
        lengths[self.rows] = np.diff(self.ends, prepend=np.int32(0))
        offsets = np.zeros(total + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        used = int(self.ends[-1])
        values = (offsets, self.texts[:used])
        buffers = [_bitmap(self.rows, total), *map(pa.py_buffer, values)]
        return pa.Array.from_buffers(pa.binary(), total, buffers)


def compare(
    loops: Loops,
    before: pa.BinaryArray,
    after: pa.BinaryArray,
    rows: npt.NDArray[np.int64],
    members: npt.NDArray[np.int64],
    names: npt.NDArray[np.uint64],
    known: Mapping[int, tuple[str, ...] | None],
) -> Updates:
    """Compare the two images of some rows in compiled code; both have the same names in the same order.

    Args:
        loops: The compiled loops.
        before: The images before.
        after: The images after.
        rows: The rows to compare, ascending; at least one.
        members: Number of members of each of these rows.
        names: Hash of the names of each of these rows.
        known: Hash → names.
    """
    counts, ends = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
    positions = np.empty(int(members.sum()), np.int32)
    # An image ``change`` is part of the image after, so it is never longer than that.
    texts = np.empty(_values_bytes(after) + 1, np.uint8)
    one, other = addresses_of(before), addresses_of(after)
    total = loops.differences(
        *(one.offsets, one.values, before.offset),
        *(other.offsets, other.values, after.offset),
        *(len(rows), address(rows, LONG), address(counts, INT)),
        *(address(positions, INT), address(ends, INT), address(texts, BYTE)),
    )
    # Each sequence of names gets its own range of codes, as equal places mean different names.
    all_names: list[str] = []
    places: dict[int, int] = {}
    for each in pc.unique(pa.array(names)).to_pylist():
        places[each] = len(all_names)
        all_names += known[each] or ()
    if len(places) == 1:
        codes = positions[:total]
    else:
        base = np.array([places[each] for each in names.tolist()], np.int32)
        codes = positions[:total] + np.repeat(base, counts)
    return Updates(rows, counts, codes, all_names, ends, texts)


class ImageDifferences(NamedTuple):
    """``changed`` and ``change`` of some rows."""

    changed: pa.ListArray
    """The codes of each update's changed columns, in the order of ``after``; null for other rows."""
    names: list[str]
    """The names of the codes."""
    change: pa.BinaryArray
    """The changed members of each update; null for other rows."""
    parsed: npt.NDArray[np.bool_]
    """Mask of the rows that Python compared; others have the same names in both images."""


def differences_of(before: pa.BinaryArray, after: pa.BinaryArray) -> ImageDifferences:
    """Compare the images of all rows that have both.

    Args:
        before: UTF-8 JSON objects, or null. If an object has a member twice, its last value is used.
        after: The same.
    """
    total = len(after)
    both = pc.and_(before.is_valid(), after.is_valid()).to_numpy(zero_copy_only=False)
    lists, names = pa.nulls(total, pa.list_(pa.int32())), list[str]()
    changes = pa.nulls(total, pa.binary())
    machine = loops(int(both.sum()))
    if machine is not None and both.any():
        groups = np.zeros(total, np.int64)
        one, other = (shapes_of(machine, each, groups) for each in (before, after))
        alike = both & (one.names == other.names) & (other.names != 0)
        # Only so many sequences of names: others are left to Python.
        found = pc.unique(pa.array(other.names[alike])).to_pylist()[:NAMES_AT_ONCE]
        firsts = {each: int(np.argmax(other.names == each)) for each in found}
        known = {each: _names(after, row) for each, row in firsts.items()}
        plain = [each for each, row in firsts.items() if len(known[each]) == other.members[row]]
        if len(plain) < len(found) or len(found) == NAMES_AT_ONCE:
            alike &= np.isin(other.names, np.array(plain, np.uint64))
        if alike.any():
            rows = np.flatnonzero(alike)
            parts = (other.members[rows], other.names[rows], known)
            updates = compare(machine, before, after, rows, *parts)
            lists, names, changes = updates.lists(total), updates.names, updates.changes(total)
            both &= ~alike
    left = np.flatnonzero(both).tolist()
    if not left:
        return ImageDifferences(lists, names, changes, both)
    values, texts = lists.to_pylist(), changes.to_pylist()
    places = {name: place for place, name in reversed([*enumerate(names)])}
    for row in left:
        found_names, texts[row] = difference_of(
            decode_members(before[row].as_py()), decode_members(after[row].as_py())
        )
        for name in found_names:
            if name not in places:
                places[name] = len(names)
                names.append(name)
        values[row] = [places[name] for name in found_names]
    changed = pa.array(values, pa.list_(pa.int32()))
    return ImageDifferences(changed, names, pa.array(texts, pa.binary()), both)


def _names(images: pa.BinaryArray, row: int) -> tuple[str, ...]:
    return tuple(decode_members(images[row].as_py()))


def _bitmap(rows: npt.NDArray[np.int64], total: int) -> pa.Buffer | None:
    """Return the validity bitmap of a column with values in ``rows`` only; None if every row has a value."""
    if len(rows) == total:
        return None
    valid = np.zeros(total, np.bool_)
    valid[rows] = True
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _values_bytes(images: pa.BinaryArray) -> int:
    offsets = np.frombuffer(images.buffers()[1], np.int32)
    return int(offsets[images.offset + len(images)]) - int(offsets[images.offset])
