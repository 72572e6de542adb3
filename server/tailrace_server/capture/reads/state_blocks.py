"""From parts of a table to frames. All of it is called in reader threads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.capture.codecs.columns import CaptureColumns
from tailrace_server.capture.reading.frames import FrameBlock
from tailrace_server.wal.base.state_rows import StatePlace, rows_up_to
from tailrace_server.wal.record.columns import NAME_TYPE
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.granting.shown import Visibility
    from tailrace_server.capture.reads.open_scans import OpenScans
    from tailrace_server.capture.reads.state_filter import StateFilter
    from tailrace_server.capture.reads.state_page import StatePage
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView

_KEYS_AT_ONCE: Final = 1_024
"""Keys that are looked up together."""
_BLOCK_BYTES: Final = 300
_LAST_KEY: Final = "\U0010ffff" * 8


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


_END: Final = StateBlock(None, np.empty(0, np.uint64), pa.array([], pa.utf8()), None)


@dataclass(frozen=True, slots=True, eq=False)
class StateEncoder:
    """What of a table's rows is written, and how."""

    entity_type: str
    view: LogView
    codec: Codec
    with_images: bool
    shown: Visibility | None
    """What is granted of the rows; None: all of it."""
    message_bytes: int
    filter: StateFilter | None = None
    """Which rows are given; None: all of them."""

    def block(self, rows: StateRows, end: StatePlace | None) -> StateBlock:
        """Return the rows of a part, without those that are not granted or not asked for."""
        rows = self._granted(rows)
        if self.filter is not None and len(rows):
            rows = self.filter.kept(rows)
        if not len(rows):
            return StateBlock(None, rows.key_hashes, rows.primary_keys, end)
        frames = FrameBlock(
            self.codec.messages(self._columns(rows), self.message_bytes),
            rows.versions,
            rows.indexes,
            None,
        )
        return StateBlock(frames, rows.key_hashes, rows.primary_keys, end)

    def _columns(self, rows: StateRows) -> CaptureColumns:
        count = len(rows)
        texts = {"after": Texts.of(rows.images)} if self.with_images else {}
        if (rows.counts != 1).any():
            # Of a table without a key, as its captures have it: how often the row came.
            diffs = [b'{"diff":%d}' % each for each in rows.counts.tolist()]
            texts = {"change": Texts.of(pa.array(diffs, pa.binary())), **texts}
        return CaptureColumns(
            catalog_uuid=self.view.uuid,
            versions=rows.versions,
            indexes=rows.indexes,
            timestamps=self.view.known_timestamps_of(rows.versions),
            areas=np.full(count, Area.DATA, np.uint8),
            operations=np.full(count, Operation.UPSERT, np.uint8),
            type_codes=np.zeros(count, np.int32),
            entity_types=(self.entity_type,),
            keys=Texts.of(rows.primary_keys),
            names=NameLists.of(pa.nulls(count, pa.list_(NAME_TYPE))),
            texts=texts,
            schema_of=self.view.schema_of,
        )

    def _granted(self, rows: StateRows) -> StateRows:
        """Leave out rows that no rule shows; criteria have left no others where keys are listed."""
        shown = self.shown
        if shown is None or any(rule.keys is None for rule in shown.rules_of(self.entity_type)):
            return rows
        keys = rows.primary_keys.to_pylist()
        keep = np.array([bool(shown.rules_for(self.entity_type, key)) for key in keys], np.bool_)
        return rows if keep.all() else rows.taken(np.flatnonzero(keep))


@dataclass(frozen=True, slots=True, eq=False)
class TableScan:
    """The blocks of a whole table, in order."""

    table: TableState
    scans: OpenScans
    name: Hashable
    """Of the table, as of its version."""

    def behind(self, place: StatePlace | None, encoder: StateEncoder) -> StateBlock:
        """Return the block behind a place; the end of the table is a block without an end."""
        scan = self.scans.take((self.name, place)) or self.table.parts(place)
        rows = next(scan, None)
        if rows is None:
            return _END
        end = rows.place(-1)
        self.scans.keep((self.name, end), scan)
        return encoder.block(rows, end)

    def place_of(self, page: StatePage) -> StateBlock:
        """Return an empty block that ends at the place that a page names.

        Raises:
            InvalidRequest: The table has no such row.
        """
        if page.primary_key is not None:
            return _empty_block(StatePlace(page.key_hash, page.primary_key))
        # No key comes behind this one: what follows has the hash itself, or a higher one.
        before = StatePlace(page.key_hash - 1, _LAST_KEY) if page.key_hash else None
        for rows in self.table.parts(before):
            stop = int(np.searchsorted(rows.key_hashes, np.uint64(page.key_hash), "right"))
            for place in map(rows.place, range(stop)):
                if place.key_hash == page.key_hash and page.is_of_key(place.primary_key):
                    return _empty_block(place)
            if stop < len(rows):
                break
        raise unknown_page()


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """The blocks of the rows that some keys have, in the order of the table."""

    table: TableState
    places: tuple[StatePlace, ...]
    """Of the keys, in order."""

    @classmethod
    def of(cls, table: TableState, primary_keys: tuple[str, ...]) -> KeyedRows:
        """Sort keys by their places; each counts once."""
        return cls(table, tuple(sorted(map(table.place_of, {*primary_keys}))))

    def behind(self, place: StatePlace | None, encoder: StateEncoder) -> StateBlock:
        """Return the block behind a place, as of a whole table."""
        behind = (each for each in self.places if place is None or each > place)
        chosen = list(islice(behind, _KEYS_AT_ONCE))
        if not chosen:
            return _END
        rows = self.table.rows_of([each.primary_key for each in chosen])
        return encoder.block(rows, chosen[-1])

    def place_of(self, page: StatePage) -> StateBlock:
        """Return an empty block that ends at the place that a page names; raises as of a whole table."""
        for each in self.places:
            if each.key_hash == page.key_hash and page.is_of_key(each.primary_key):
                return _empty_block(each)
        raise unknown_page()


def _empty_block(end: StatePlace) -> StateBlock:
    return StateBlock(None, _END.hashes, _END.keys, end)


def unknown_page() -> InvalidRequest:
    """Return that a page is of another read."""
    return InvalidRequest(
        "page: it names a row that this read does not have; ask as for the page before, with its entity type "
        "and keys"
    )
