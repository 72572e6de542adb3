"""The records of a batch grouped by what simple criteria look at: area, operation, entity type.

A batch has few distinct classes, so a criterion that names no key and no column is decided once per
class instead of once per record. Grouping takes a comparison for each of the first few classes,
else one stable radix argsort of 16-bit codes (21 µs per 4,096 rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace_server.capture.matching.run import whole
from tailrace_server.wal.record.small_arrays import SMALL_LENGTH, int32s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.wal.segment.reader import Head

_CLASSES_PER_TYPE: Final = 64
_FEW_CLASSES: Final = 6
"""So many classes are compared for, one after the other, before all is sorted."""


class RecordClass(NamedTuple):
    """What simple criteria can tell apart."""

    area: int
    operation: int
    entity_type: str | None


@dataclass(frozen=True, slots=True)
class GroupedHead:
    """A batch's head and its records by class; the rows of each class rise."""

    head: Head
    groups: tuple[tuple[RecordClass, NDArray[np.int32]], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.head.nbytes + 4 * len(self.head.versions)


def group(head: Head) -> GroupedHead:
    """Group a batch's records by class. Pure; any thread may call it."""
    if len(head.versions) <= SMALL_LENGTH:
        return GroupedHead(head, _group_few(head))
    codes = (head.type_codes + np.int32(1)) * np.int32(_CLASSES_PER_TYPE)
    codes += head.areas << np.uint8(3) | head.operations
    if len(head.entity_types) < (1 << 16) // _CLASSES_PER_TYPE - 1:
        codes = codes.astype(np.uint16)  # compared in wide registers, sorted by radix
    found = _compared(codes) or _sorted(codes)
    groups = tuple((_class_of(code, head.entity_types), rows) for code, rows in found)
    return GroupedHead(head, groups)


_Groups = list[tuple[int, "NDArray[np.int32]"]]


def _compared(codes: NDArray[np.integer]) -> _Groups | None:
    """Return the rows of each code, by code; None if there are more than a few."""
    groups: _Groups = []
    places = whole(len(codes)).rows
    first, left = 0, np.ones(len(codes), np.bool_)
    while left[first]:
        if len(groups) == _FEW_CLASSES:
            return None
        same = codes == codes[first]
        groups.append((int(codes[first]), places[same]))
        left ^= same
        first = int(left.argmax())
    return sorted(groups, key=itemgetter(0))


def _sorted(codes: NDArray[np.integer]) -> _Groups:
    """Return the same by sorting, however many there are."""
    order = np.argsort(codes, kind="stable").astype(np.int32)
    ordered = codes[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]))
    return [(int(ordered[start]), order[start:stop]) for start, stop in pairwise(starts.tolist())]


def _class_of(code: int, entity_types: tuple[str, ...]) -> RecordClass:
    type_code, rest = divmod(code, _CLASSES_PER_TYPE)
    return RecordClass(rest // 8, rest % 8, entity_types[type_code - 1] if type_code else None)


def _group_few(head: Head) -> tuple[tuple[RecordClass, NDArray[np.int32]], ...]:
    rows: dict[RecordClass, list[int]] = {}
    columns = zip(
        head.areas.tolist(), head.operations.tolist(), head.type_codes.tolist(), strict=True
    )
    for row, (area, operation, code) in enumerate(columns):
        name = head.entity_types[code] if code >= 0 else None
        rows.setdefault(RecordClass(area, operation, name), []).append(row)
    return tuple((key, int32s(found)) for key, found in rows.items())
