"""From parts of a table to frames. All of it is called in reader threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation, Transition
from tailrace.errors import InvalidRequest
from tailrace_server.codecs.columns import CaptureColumns
from tailrace_server.log_cache.frames import FrameBlock
from tailrace_server.reads.pinned_table import KeyedRows, before_hash
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
    """The rows of one part that are shown, encoded. Immutable."""

    frames: FrameBlock | None
    """None: the part has none."""
    hashes: NDArray[np.uint64]
    keys: pa.StringArray
    end: StatePlace | None
    """Behind all of the part; None: behind the table."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        frames = 0 if self.frames is None else self.frames.nbytes
        return _BLOCK_BYTES + frames + self.hashes.nbytes + int(self.keys.nbytes)

    def __len__(self) -> int:
        """Return the number of rows that are shown."""
        return len(self.hashes)

    def place(self, row: int) -> StatePlace:
        """Return the place behind a row."""
        return StatePlace(int(self.hashes[row]), self.keys[row].as_py())

    def first_behind(self, place: StatePlace | None) -> int:
        """Return the first row behind a place."""
        return 0 if place is None else rows_up_to(self.hashes, self.keys, place)


@dataclass(frozen=True, slots=True, eq=False)
class StateEncoder:
    """The written part of a table's rows, and its form."""

    entity_type: str
    codec: Codec
    with_images: bool
    message_bytes: int
    lens: RowLens
    """The rows that are granted and asked for."""

    def block(self, table: PinnedTable, part: TablePart) -> StateBlock:
        """Return the rows of a part, without those that are not granted or not asked for."""
        (rows, is_sure), end = self.lens.rows(part.rows), part.end
        if not len(rows):
            return StateBlock(None, rows.key_hashes, rows.primary_keys, end)
        columns = self._columns(table, rows)
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
            # Of a table without a key, as its captures have it: how often the row came.
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
    """Return an empty block that ends at the place that a page names, among the rows that are shown.

    Raises:
        InvalidRequest: The table has no such row.
    """
    if isinstance(rows, KeyedRows):
        for each in rows.places:
            if each.key_hash == page.key_hash and page.is_of_key(each.primary_key):
                return _empty_block(each)
        raise unknown_page()
    if page.primary_key is not None:
        return _empty_block(StatePlace(page.key_hash, page.primary_key))
    for found in rows.table.parts(before_hash(page.key_hash)):
        stop = int(np.searchsorted(found.key_hashes, np.uint64(page.key_hash), "right"))
        passed = found.slice(0, stop)
        if lens.has_conditions and stop:
            passed = lens.granted(passed)
        for place in map(passed.place, range(len(passed))):
            if place.key_hash == page.key_hash and page.is_of_key(place.primary_key):
                return _empty_block(place)
        if stop < len(found):
            break
    raise unknown_page()


def _empty_block(end: StatePlace) -> StateBlock:
    nobody = np.empty(0, np.uint64)
    return StateBlock(None, nobody, pa.array([], pa.utf8()), end)


def unknown_page() -> InvalidRequest:
    """Return that a page is of another read."""
    return InvalidRequest(
        "page: it names a row that this read does not have; ask as for the page before, with its entity type "
        "and keys"
    )
