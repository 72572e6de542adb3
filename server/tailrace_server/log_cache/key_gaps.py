"""Gaps: ranges of batches that a scan skips, because key files show no record of the wanted keys in them.

::

    batches          ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁ ▁        all batches with records of one key file
    may have keys          ▇               ▇
    gaps             ·····   ·············   ·········      skipped without reading a head

A key file may name too many batches, but never too few, and each named batch is read and matched like any
other. So the matches are the same with and without key files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.wal.base.key_files import (
    FEW_KEYS,
    KEY_FILES,
    number_of_row,
    rows_of_number,
    whole_numbers,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_OVERHEAD: Final = 200


@dataclass(frozen=True, slots=True)
class KeyedBatches:
    """The batches with records of one key file, and those among them that may have records of some keys."""

    batches: range
    """Places, in the view, of the batches with records of the key file."""
    keyed: npt.NDArray[np.int64]
    """Places of the batches that may have records of the keys, in ascending order."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this object holds."""
        return _OVERHEAD + self.keyed.nbytes

    def gap(self, place: int) -> range:
        """Return the gap around a batch: the largest range with it in which no batch has records of the keys.

        The range is empty if the batch itself may have such records.
        """
        # ``behind`` is the first batch with possible records at or after this one: the gap ends there, and
        # begins after the one before it.
        behind = self._first_from(place)
        if self._is_keyed(behind, place):
            return range(place, place)
        start = int(self.keyed[behind - 1]) + 1 if behind else self.batches.start
        stop = int(self.keyed[behind]) if behind < len(self.keyed) else self.batches.stop
        return range(start, stop)

    def part_of(self, window: range, place: int) -> range:
        """Return the largest range around a batch, within a window, in which all batches may have records."""
        first = last = self._first_from(place)
        start, stop = place, place + 1
        while start > window.start and self._is_keyed(first - 1, start - 1):
            first, start = first - 1, start - 1
        while stop < window.stop and self._is_keyed(last + 1, stop):
            last, stop = last + 1, stop + 1
        return range(start, stop)

    def _first_from(self, place: int) -> int:
        return int(np.searchsorted(self.keyed, place))

    def _is_keyed(self, number: int, place: int) -> bool:
        return 0 <= number < len(self.keyed) and int(self.keyed[number]) == place


def key_file_of(view: LogView, place: int, predicate: Predicate) -> int | None:
    """Return the number of the key file that covers a batch, if it can help to find a predicate's records.

    Return None if that key file cannot exist yet. Also if the predicate can match records by other conditions
    than keys, or names too many keys.
    """
    if not 0 < predicate.keys_named <= FEW_KEYS:
        return None
    number = number_of_row(view.batch(place).first_row)
    return number if number in whole_numbers(view) else None


def keyed_batches(
    view: LogView, reader: BatchReader, number: int, predicate: Predicate
) -> KeyedBatches:
    """Return the batches that may have records of a predicate's keys, by a key file. Blocks.

    If the key file is missing or damaged, or the keys are too many, all its batches are returned.
    """
    rows = rows_of_number(number)
    batches = range(view.find_row(rows.start), view.find_row(rows.stop - 1) + 1)
    hashes = _hashes(view, predicate)
    if hashes is None:
        return KeyedBatches(batches, np.arange(batches.start, batches.stop))
    found = KEY_FILES.places(view, reader, batches, hashes, _has_its_own_hashes)
    return KeyedBatches(batches, np.array([place for place, _ in found], np.int64))


def _has_its_own_hashes(_first: int, _last: int) -> bool:
    """Return True: the hashes include those under every name, so the key file of any version can be used."""
    return True


def _hashes(view: LogView, predicate: Predicate) -> npt.NDArray[np.uint64] | None:
    """Return the hashes of all keys that a predicate names; None if there are too many."""
    # A key without an entity type has a hash for each name that any entity type ever had.
    types: dict[str, None] = {}
    if any(not each.criteria.entity_type for each in predicate.alternatives):
        for schema in view.schemas():
            types |= dict.fromkeys(schema.entity_types)
    if predicate.keys_named * max(1, len(types)) > FEW_KEYS:
        return None
    found = [
        alternative.hashes(name)
        for alternative in predicate.alternatives
        for name in alternative.hashed_types(types)
    ]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)
