"""Matching of the rows of a state: parts of a table become the captures that match a subscription's criteria.

The predicate that matches the later changes also matches the rows of the state, as if these were a batch of the
log. So keys, columns and grants filter both in the same way. Reader threads run this code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, CaptureKind, Content, Operation
from tailrace.cursor import row_mark
from tailrace.position import FIRST
from tailrace_server.codecs.column_cut import living_codec
from tailrace_server.log_cache.frames import body_columns, encode
from tailrace_server.rows.batch_images import BatchImages
from tailrace_server.rows.record_classes import RecordClass, group_by_class
from tailrace_server.wal.base.state_rows import StatePlace, rows_up_to
from tailrace_server.wal.record.columns import NAME_TYPE
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.record.text_columns import NameLists, Texts
from tailrace_server.wal.segment.reader import BatchHead
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from tailrace.cursor import StateCursor
    from tailrace.schema import Schema
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.frames import FrameBlock
    from tailrace_server.reads.pinned_table import PinnedTable, TablePart
    from tailrace_server.rows.predicate import Alternative, Predicate
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.base.state_rows import StateRows

_BLOCK_BYTES: Final = 400
_NOWHERE: Final = BatchRef(SegmentRef("", 0, ()), 0, 0, 0, 0, FIRST, FIRST, 0, 0, (0, 0, 0))
"""Placeholder for the reference to a batch, since the rows of a state come from many batches."""


def tables_of(predicate: Predicate, schema: Schema) -> tuple[str, ...]:
    """Return the entity types of a schema whose rows may match, sorted by name."""
    return tuple(name for name in sorted(schema.entity_types) if _takers(predicate, name))


def keys_of(predicate: Predicate, entity_type: str) -> tuple[str, ...] | None:
    """Return the keys whose rows may match; None: rows of any key may match."""
    keys = [each.criteria.primary_key for each in _takers(predicate, entity_type)]
    return tuple({key for each in keys for key in each}) if all(keys) else None


def _takers(predicate: Predicate, entity_type: str) -> list[Alternative]:
    rows = RecordClass(Area.DATA, Operation.UPSERT, entity_type)
    return [each for each in predicate.alternatives if each.takes(rows)]


@dataclass(frozen=True, slots=True, eq=False)
class MatchedBlock:
    """The matching captures of one part of a table, encoded. Immutable."""

    frames: FrameBlock | None
    """The encoded captures; None: no row of the part matches."""
    rows: NDArray[np.int32]
    """The row of each capture, as its number in the part."""
    hashes: NDArray[np.uint64]
    """The key hash of each row of the part."""
    keys: pa.StringArray
    """The primary key of each row of the part."""
    end: StatePlace | None
    """The end of the part; None: the part ends with the table."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the block holds."""
        frames = 0 if self.frames is None else self.frames.nbytes
        own = self.rows.nbytes + self.hashes.nbytes + int(self.keys.nbytes)
        return _BLOCK_BYTES + frames + own

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.rows)

    def place(self, capture: int) -> tuple[StatePlace, int]:
        """Return the place of a capture's row, and the capture's ordinal."""
        assert self.frames is not None
        row = self.rows.item(capture)
        place = StatePlace(int(self.hashes[row]), self.keys[row].as_py())
        return place, self.frames.coordinates(capture)[2]

    def first_behind(self, place: StatePlace, ordinal: int) -> int:
        """Return the number of the first capture after a place and ordinal.

        The row of the place may be missing from this part.
        """
        # Rows are sorted by (hash, key), so one search finds the rows up to the place, and one their captures.
        passed = rows_up_to(self.hashes, self.keys, place)
        capture = int(np.searchsorted(self.rows, passed))
        # Captures of the row itself may be left: they come before those of the next row, by ordinal.
        while capture and self.place(capture - 1) > (place, ordinal):
            capture -= 1
        return capture


@dataclass(frozen=True, slots=True, eq=False)
class RowMatcher:
    """The matching of a table's rows for one subscription, and the wire form of their captures."""

    predicate: Predicate
    codec: Codec
    content: Content
    message_bytes: int
    begin: StateCursor
    """The cursor before the first row of the state."""

    @property
    def form(self) -> tuple[Hashable, ...]:
        """The cache key that distinguishes blocks of this matcher from other blocks of the same part."""
        return self.predicate.identity, self.codec.name, self.content.value

    def block(self, table: PinnedTable, part: TablePart) -> MatchedBlock:
        """Return the matching captures of a part."""
        rows = part.rows
        head = _head(table, rows)
        selection = self._selected(table, rows, head)
        frames = None
        if len(selection):
            names = body_columns(self.content)
            frames = encode(
                head,
                {name: _body(rows, name) for name in names},
                selection,
                codec=living_codec(self.codec, table.schema_of(table.version), table.entity_type),
                catalog_uuid=table.view.uuid,
                timestamps_of=table.view.known_timestamps_of,
                schema_of=table.schema_of,
                message_bytes=self.message_bytes,
                kind=CaptureKind.STATE,
                cursors=partial(self._cursors, table.entity_type, rows, selection),
            )
        return MatchedBlock(frames, selection.rows, rows.key_hashes, rows.primary_keys, part.end)

    def takes(self, table: PinnedTable, rows: StateRows) -> bool:
        """Return True if any of the rows matches."""
        return len(self._selected(table, rows, _head(table, rows))) > 0

    def _selected(self, table: PinnedTable, rows: StateRows, head: BatchHead) -> BatchSelection:
        # The head presents the rows as inserts, so the predicate of the changes needs no case for states.
        images = BatchImages(partial(_image, rows), table)
        return self.predicate.select(group_by_class(head), images)

    def headers(self) -> RowMatcher:
        """Return a matcher that writes the same captures without bodies."""
        return RowMatcher(
            self.predicate, self.codec, Content.HEADER, self.message_bytes, self.begin
        )

    def _cursors(
        self, entity_type: str, rows: StateRows, selection: BatchSelection
    ) -> pa.BinaryArray:
        """Return the cursor after each capture, as text."""
        start = str(self.begin).encode()
        keys = rows.primary_keys.take(pa.array(selection.rows)).to_pylist()
        count = len(keys)
        ordinals = [0] * count if selection.ordinals is None else selection.ordinals.tolist()
        marks = (
            str(row_mark(entity_type, key, ordinal)).encode()
            for key, ordinal in zip(keys, ordinals, strict=True)
        )
        return pa.array([b"%b.%b" % (start, mark) for mark in marks], pa.binary())


def _head(table: PinnedTable, rows: StateRows) -> BatchHead:
    """Return rows as the head of a batch, each row as an insert that has changed all columns."""
    count = len(rows)
    hashes = rows.key_hashes
    if (
        table.table.hashed_as != table.entity_type
    ):  # the table was renamed; the predicate hashes its current name
        seeds = np.full(count, type_seed(table.entity_type), np.uint64)
        hashes = key_hashes(seeds, rows.primary_keys)
    return BatchHead(
        _NOWHERE,
        rows.versions,
        rows.indexes,
        np.full(count, Area.DATA, np.uint8),
        np.full(count, Operation.UPSERT, np.uint8),
        np.zeros(count, np.int32),
        (table.entity_type,),
        hashes,
        Texts.of(rows.primary_keys),
        NameLists.of(pa.nulls(count, pa.list_(NAME_TYPE))),
        0,
    )


def _image(rows: StateRows, name: str) -> pa.BinaryArray:
    """Return one kind of images for rows that are treated as inserts: only ``after`` has values."""
    return rows.images if name == "after" else pa.nulls(len(rows), pa.binary())


def _body(rows: StateRows, name: str) -> Texts:
    """Return one body for each row.

    ``after`` is the image. ``change`` holds the count of a row that has no key, unless all counts are 1.
    """
    if name == "after":
        return Texts.of(rows.images)
    if name == "change" and (rows.counts != 1).any():
        diffs = [b'{"diff":%d}' % each for each in rows.counts.tolist()]
        return Texts.of(pa.array(diffs, pa.binary()))
    return Texts.of(pa.nulls(len(rows), pa.binary()))
