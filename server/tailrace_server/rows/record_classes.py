"""The records of a batch grouped by class, which is their area, operation and entity type.

A batch has few distinct classes, so criteria without keys and columns are evaluated once per class instead of
once per record. There are three ways to group; the batch decides which one is used:

* A small commit is grouped record by record: numpy would cost 65 µs more while its code is not in the CPU's
  caches.
* With few classes, all records are compared with one class after the other: sorting would make a whole scan
  a quarter slower.
* With many classes, the records are sorted by one stable radix sort of 16-bit codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace_server.wal.record.text_columns import SMALL_LENGTH, int32s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.wal.segment.reader import BatchHead

_CLASSES_PER_TYPE: Final = 64
_FEW_CLASSES: Final = 6
"""The most classes of a batch for which records are compared; with more classes they are sorted."""


class RecordClass(NamedTuple):
    """The values that all records of a class have in common."""

    area: int
    operation: int
    entity_type: str | None


_OBJECTS_BYTES: Final = 5_000
"""Bytes of a head's arrays and objects in addition to its values; nearly all of a small commit's memory."""


@dataclass(frozen=True, slots=True)
class GroupedHead:
    """A batch's head, and the rows of each class in rising order."""

    head: BatchHead
    groups: tuple[tuple[RecordClass, NDArray[np.int32]], ...]

    @property
    def nbytes(self) -> int:
        """Memory of head and groups, in bytes."""
        return self.head.nbytes + 4 * len(self.head.versions) + _OBJECTS_BYTES


def group_by_class(head: BatchHead) -> GroupedHead:
    """Group a batch's records by class. Pure; any thread may call it."""
    if len(head.versions) <= SMALL_LENGTH:
        return GroupedHead(head, _group_few(head))
    codes = (head.type_codes + np.int32(1)) * np.int32(_CLASSES_PER_TYPE)
    codes += head.areas << np.uint8(3) | head.operations
    if len(head.entity_types) < (1 << 16) // _CLASSES_PER_TYPE - 1:
        codes = codes.astype(np.uint16)  # compared in wide registers, sorted by radix
    found = _rows_by_comparing(codes) or _rows_by_sorting(codes)
    groups = tuple((_class_of(code, head.entity_types), rows) for code, rows in found)
    return GroupedHead(head, groups)


_Groups = list[tuple[int, "NDArray[np.int32]"]]


def _rows_by_comparing(codes: NDArray[np.integer]) -> _Groups | None:
    """Return the rows of each code, by code; None if there are more than a few codes."""
    groups: _Groups = []
    # Invariant of the loop: `left` marks the rows whose codes are not in `groups` yet, and `first` is the
    # first of these rows. Once all rows have a group, argmax finds no True and returns 0, which is unmarked.
    first, left = 0, np.ones(len(codes), np.bool_)
    while left[first]:
        if len(groups) == _FEW_CLASSES:
            return None
        same = codes == codes[first]
        groups.append((int(codes[first]), np.flatnonzero(same).astype(np.int32)))
        left ^= same
        first = int(left.argmax())
    # In the order of sorted codes, so that both ways give equal groups.
    return sorted(groups, key=itemgetter(0))


def _rows_by_sorting(codes: NDArray[np.integer]) -> _Groups:
    """Return the rows of each code, by code, for any number of codes."""
    # The sort must be stable: it leaves the rows of a code rising, on which every reader relies.
    order = np.argsort(codes, kind="stable").astype(np.int32)
    ordered = codes[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]))
    return [(int(ordered[start]), order[start:stop]) for start, stop in pairwise(starts.tolist())]


def _class_of(code: int, entity_types: tuple[str, ...]) -> RecordClass:
    type_code, rest = divmod(code, _CLASSES_PER_TYPE)
    return RecordClass(rest // 8, rest % 8, entity_types[type_code - 1] if type_code else None)


def _group_few(head: BatchHead) -> tuple[tuple[RecordClass, NDArray[np.int32]], ...]:
    rows: dict[RecordClass, list[int]] = {}
    columns = zip(
        head.areas.tolist(), head.operations.tolist(), head.type_codes.tolist(), strict=True
    )
    for row, (area, operation, code) in enumerate(columns):
        name = head.entity_types[code] if code >= 0 else None
        rows.setdefault(RecordClass(area, operation, name), []).append(row)
    return tuple((key, int32s(found)) for key, found in rows.items())
