"""The places of a record batch and its segment, as values."""

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
    """Relative to the catalog's folder."""
    base_version: int
    """Number to add to the versions in the file."""
    prefix: Prefix
    rows: int = 0
    bytes: int = 0
    counts: Mapping[str, int] | None = None
    """Records by entity type; leads are not counted."""


@dataclass(frozen=True, slots=True)
class BatchRef:
    """One record batch: where it lies, what it holds, and its checksums."""

    segment: SegmentRef
    offset: int
    length: int
    head_length: int
    rows: int
    first: Position
    last: Position
    first_row: int
    """Running number of its first record in the catalog, leads included, from 0."""
    crc_head: int
    crc_body: tuple[int, int, int]
    """Of ``change``, ``before`` and ``after``, apart, so that one can be read without the others."""
    body_lengths: tuple[int, int, int] = (0, 0, 0)
    body_nullable: int = 0
    """Bit i: the i-th body begins with a validity bitmap."""

    @property
    def key(self) -> Hashable:
        """The identity of the batch's bytes in its catalog."""
        return self.segment.path, self.offset
