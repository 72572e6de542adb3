"""Encoding of a table's parts to blocks of frames. All functions are called in reader threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation, Transition
from tailrace.errors import InvalidRequest
from tailrace_server.codecs.columns import CaptureColumns
from tailrace_server.log_cache.frames import FrameBlock
from tailrace_server.reads.pinned_table import KeyedRows
from tailrace_server.rows.transitions import NONE
from tailrace_server.wal.base.state_rows import StatePlace, rows_up_to
from tailrace_server.wal.record.columns import NAME_TYPE
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.codecs import Codec
    from tailrace_server.reads.pinned_table import PinnedTable, TablePart, TableScan
    from tailrace_server.reads.state_place import StatePage
    from tailrace_server.rows.lens import RowLens
    from tailrace_server.wal.base.state_rows import StateRows

_BLOCK_BYTES: Final = 300


@dataclass(frozen=True, slots=True, eq=False)
class StateBlock:
    """The encoded rows of one part, without hidden and filtered rows. Immutable."""

    frames: FrameBlock | None
    """The encoded rows; None: the block has no rows."""
    hashes: NDArray[np.uint64]
    """The key hash of each row."""
    keys: pa.StringArray
    """The primary key of each row."""
    end: StatePlace | None
    """The place after the part; None: the end of the table."""

    @property
    def nbytes(self) -> int:
        """Memory of the block in bytes."""
        frames = 0 if self.frames is None else self.frames.nbytes
        return _BLOCK_BYTES + frames + self.hashes.nbytes + int(self.keys.nbytes)

    def __len__(self) -> int:
        """Return the number of rows in the block."""
        return len(self.hashes)

    def place(self, row: int) -> StatePlace:
        """Return the place just after a row of the block."""
        return StatePlace(int(self.hashes[row]), self.keys[row].as_py())

    def first_behind(self, place: StatePlace | None) -> int:
        """Return the index of the first row after a place; 0 for None."""
        return 0 if place is None else rows_up_to(self.hashes, self.keys, place)


@dataclass(frozen=True, slots=True, eq=False)
class StateEncoder:
    """Filter and encoder that makes blocks of a table's parts."""

    entity_type: str
    codec: Codec
    with_images: bool
    message_bytes: int
    lens: RowLens
    """The filter for granted and requested rows."""

    def block(self, table: PinnedTable, part: TablePart) -> StateBlock:
        """Return the block of a part, with only the granted and requested rows."""
        (rows, is_sure), end = self.lens.rows(part.rows), part.end
        if not len(rows):
            return StateBlock(None, rows.key_hashes, rows.primary_keys, end)
        columns = self._columns(table, rows)
        # A row that may or may not meet the condition has the transition UNKNOWN.
        if not is_sure.all():
            codes = np.where(is_sure, NONE, Transition.UNKNOWN).astype(np.uint8)
            columns = replace(columns, transitions=codes)
        frames = FrameBlock(
            self.codec.messages(columns, self.message_bytes),
            rows.versions,
            rows.indexes,
            None,
        )
        return StateBlock(frames, rows.key_hashes, rows.primary_keys, end)

    def _columns(self, table: PinnedTable, rows: StateRows) -> CaptureColumns:
        count = len(rows)
        texts = {"after": Texts.of(rows.images)} if self.with_images else {}
        if (rows.counts != 1).any():
            # A table without a key may have equal rows: like its
            # captures, the row then has its number of copies.
            diffs = [b'{"diff":%d}' % each for each in rows.counts.tolist()]
            texts = {"change": Texts.of(pa.array(diffs, pa.binary())), **texts}
        return CaptureColumns(
            catalog_uuid=table.view.uuid,
            versions=rows.versions,
            indexes=rows.indexes,
            timestamps=table.view.known_timestamps_of(rows.versions),
            areas=np.full(count, Area.DATA, np.uint8),
            operations=np.full(count, Operation.UPSERT, np.uint8),
            type_codes=np.zeros(count, np.int32),
            entity_types=(self.entity_type,),
            keys=Texts.of(rows.primary_keys),
            names=NameLists.of(pa.nulls(count, pa.list_(NAME_TYPE))),
            texts=texts,
            schema_of=table.schema_of,
        )


def block_behind_page(rows: TableScan | KeyedRows, page: StatePage, lens: RowLens) -> StateBlock:
    """Return an empty block whose end is the place of a page, so that a read continues after it.

    Raises:
        InvalidRequest: The page names a row by its digest, and no visible row has this digest; or the page's
            key is not one of the requested keys.
    """
    # A page with its key is a place by itself, whether or not the table has that row.
    if page.primary_key is not None and not isinstance(rows, KeyedRows):
        place: StatePlace | None = StatePlace(page.key_hash, page.primary_key)
    else:

        def shown(row: StateRows) -> bool:
            return not lens.has_conditions or len(lens.granted(row)) > 0

        place = rows.place_of(page.is_of_key, shown, page.key_hash)
    if place is None:
        raise unknown_page()
    return StateBlock(None, np.empty(0, np.uint64), pa.array([], pa.utf8()), place)


def unknown_page() -> InvalidRequest:
    """Return the error for a page that belongs to another read."""
    return InvalidRequest(
        "page: it names a row that this read does not have; repeat the request of the previous page, "
        "with its entity type and keys"
    )
