"""The places of segments and of their record batches, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from tailrace.position import Position

Prefix = tuple[tuple[int, int, int], ...]
"""Offset, length and CRC-32C of the schema and dictionary messages of a segment."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One segment: a file, or the records that an entry carries."""

    path: str
    """Path relative to the catalog's folder."""
    base_version: int
    """Number to add to the versions in the file."""
    prefix: Prefix
    rows: int = 0
    bytes: int = 0
    counts: Mapping[str, int] | None = None
    """Records by entity type; leads are not counted."""


HeadMark = tuple[int, int, int]
"""Running number of a batch's first record, number of records, CRC-32C of the head: together they identify a
head. The CRC is needed because a log that was restored from a copy may have another batch at the same place."""


@dataclass(frozen=True, slots=True)
class BatchRef:
    """One record batch: its place in a segment, its range of records, and its checksums."""

    segment: SegmentRef
    offset: int
    length: int
    head_length: int
    rows: int
    first: Position
    last: Position
    first_row: int
    """Running number of the first record in the catalog, from 0; leads are counted."""
    crc_head: int
    crc_body: tuple[int, int, int]
    """CRC-32C of ``change``, ``before`` and ``after``, each for itself, so that one can be read alone."""
    body_lengths: tuple[int, int, int] = (0, 0, 0)
    body_nullable: int = 0
    """Bit i is set if the i-th body begins with a validity bitmap."""

    @property
    def key(self) -> Hashable:
        """Identity of the batch's bytes in its catalog."""
        return self.segment.path, self.offset
