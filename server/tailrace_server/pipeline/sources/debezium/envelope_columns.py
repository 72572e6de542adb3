"""The usual envelopes, decoded by columns: many lines become rows without Python objects.

A line is *usual* if all of these hold:

* It is an envelope of an insert, update or delete of PostgreSQL, without its schema or key around it.
* Identifying values are plain: positive integers, and texts without an escape.
* The key comes from the image, has no null, and is not changed.
* No image has to be checked against declared types, searched for fillers, or taken as a key as a whole.

All other lines are left to `DebeziumDecoder`. Both ways give equal rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.machine_code.loader import BYTE, LONG, address, loops
from tailrace_server.machine_code.loops.codes import Note
from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    INSERT,
    LINE_MESSAGES,
    ROWS,
    UPDATE,
)
from tailrace_server.pipeline.input.source import DecodedColumns
from tailrace_server.pipeline.sources.debezium.message import SourceBlock, last_commit
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.pipeline.sources.debezium.row_images import OWN_IMAGES
from tailrace_server.typed.values import locate
from tailrace_server.wal.record.image_shapes import shapes_of
from tailrace_server.wal.record.images import members
from tailrace_server.wal.record.input_rows import flags_of
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.pipeline.input.change import FileSplit
    from tailrace_server.pipeline.sources.debezium.row_images import RowsBefore
    from tailrace_server.pipeline.sources.debezium.row_key import RowKeys
    from tailrace_server.pipeline.sources.debezium.table_identity import (
        TableIdentities,
        TableIdentity,
    )

    Longs = npt.NDArray[np.int64]
    Marks = npt.NDArray[np.bool_]

_ENVELOPE: Final = ("before", "after", "source", "op", "transaction", "ts_ms", "ts_us", "ts_ns")
_TEXTS: Final = ("connector", "name", "db", "schema", "table")
_READ: Final = (*_TEXTS, "ts_ms", "ts_us", "txId", "lsn", "sequence", "snapshot")
_SOURCE: Final = (*_READ, *sorted({*SourceBlock.__struct_fields__} - {*_READ}))
_OPERATIONS: Final = np.frombuffer(bytes([INSERT, UPDATE, DELETE]), np.uint8)
_QUOTE, _BRACE, _N = b'"{n'
_ID: Final = r"^([0-9]+):[0-9]+$"
_NO_SNAPSHOT: Final = pa.array([b"", b"null", b"false", b'"false"'])


class _Members:
    """The values of some members in a column of JSON objects; a null counts as absent."""

    def __init__(self, machine: Loops, objects: pa.BinaryArray, names: Sequence[str]) -> None:
        self._machine = machine
        self._texts = Texts.of(objects)
        self._at = {name: place for place, name in enumerate(names)}
        self._places = locate(self._texts, len(objects), names, machine)
        self._places.lengths[:, self._places.notes == Note.DOUBTFUL] = 0
        values = self._texts.addresses.values
        self.is_known: Marks = self._places.notes != Note.DOUBTFUL
        """Mask of the objects whose members were found."""
        self.is_complete: Marks = self._places.notes == Note.FOUND
        """Mask of the objects without further members."""
        self._base = values
        data = self._texts.array.buffers()[2]
        self._data = np.frombuffer(data if data is not None and len(data) else b"\0", np.uint8)

    def first(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the first byte of a member's value; 0 if it is absent or null."""
        lengths = self.lengths(name)
        if not lengths.any():
            return np.zeros(len(lengths), np.uint8)
        found = self.byte(name, 0)
        is_given: Marks = (lengths > 0) & (found != _N)
        return found * is_given

    def byte(self, name: str, offset: int) -> npt.NDArray[np.uint8]:
        """Return a byte of a value that is present."""
        place = self._at[name]
        found: npt.NDArray[np.uint8] = self._data[
            np.minimum(self._places.starts[place] + offset, len(self._data) - 1)
        ]
        return found

    def lengths(self, name: str) -> npt.NDArray[np.int32]:
        """Return the lengths of a member's values."""
        found: npt.NDArray[np.int32] = self._places.lengths[self._at[name]]
        return found

    def texts(self, name: str, *, quoted: bool = True) -> pa.BinaryArray:
        """Return the JSON texts of a member; empty if it is absent or null.

        Args:
            name: The member.
            quoted: False to take texts without their quotes.
        """
        place = self._at[name]
        first = self.first(name)
        starts = self._places.starts[place].astype(np.int64)
        lengths = np.where(first == 0, 0, self._places.lengths[place]).astype(np.int64)
        if not quoted:
            is_text = first == _QUOTE
            starts += is_text
            lengths -= 2 * is_text
        out = np.empty(int(lengths.sum()) + 1, np.uint8)
        offsets = np.empty(len(starts) + 1, np.int64)
        self._machine.gather(
            *(self._base, len(starts), address(starts, LONG), address(lengths, LONG)),
            *(address(out, BYTE), address(offsets, LONG)),
        )
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), len(starts), buffers)

    def numbers(self, name: str, digits: int = 18) -> tuple[Longs, Marks]:
        """Return the values of a member as numbers, and a mask of the usual ones.

        Values are usual if they are at most ``digits`` digits, or absent; an absent value is -1.
        """
        first = self.first(name)
        texts = self.texts(name).cast(pa.string())
        plain = np.asarray(pc.utf8_is_digit(texts)) & (pc.binary_length(texts).to_numpy() <= digits)
        plain &= (first >= ord("0")) & (first <= ord("9"))
        found = pc.if_else(pa.array(plain), texts, "-1").cast(pa.int64()).to_numpy()
        return found, plain | (first == 0)

    def is_plain(self, name: str) -> Marks:
        """Return a mask of the values that are texts without an escape, or absent."""
        first = self.first(name)
        escaped = flags_of(pc.match_substring(self.texts(name), "\\"))
        found: Marks = (first == 0) | ((first == _QUOTE) & ~escaped)
        return found


class DecoderOptions(Protocol):
    """The parts of `DebeziumDecoder` that decoding by columns shares with it."""

    keys: RowKeys
    identities: TableIdentities
    rows_before: RowsBefore
    record_bytes_max: int

    def is_plain(self, table: TableIdentity) -> bool:
        """Return True if images of a table are taken as they are."""


class EnvelopeColumns:
    """Decodes the usual lines of one task by columns."""

    def __init__(self, decoder: DecoderOptions) -> None:
        """Use the options and caches of a decoder."""
        self._decoder = decoder

    def decode(self, split: FileSplit, first: int, lines: pa.BinaryArray) -> DecodedColumns | None:
        """Decode the usual ones of consecutive lines; see `ColumnDecoder`."""
        machine = loops(len(lines))
        if machine is None or not _is_utf8(lines):
            return None
        # 1. Find the members of the envelope, its source and its transaction.
        envelope = _Members(machine, lines, _ENVELOPE)
        operations = envelope.byte("op", 1)
        usual = envelope.is_complete & (envelope.first("op") == _QUOTE)
        usual &= (envelope.lengths("op") == 3) & np.isin(operations, _OPERATIONS)
        usual &= envelope.numbers("ts_ms")[1]
        for name in ("before", "after", "transaction"):
            usual &= np.isin(envelope.first(name), (0, _BRACE))
        source = _Members(machine, envelope.texts("source"), _SOURCE)
        transaction = _Members(machine, envelope.texts("transaction"), ("id", "total_order"))
        usual &= source.is_known & (transaction.is_known | (envelope.first("transaction") == 0))
        # 2. Read numbers and texts.
        numbers = {}
        for name, digits in (("lsn", 18), ("ts_us", 18), ("ts_ms", 15), ("txId", 18)):
            numbers[name], fits = source.numbers(name, digits)
            usual &= fits
        times = np.where(numbers["ts_us"] >= 0, numbers["ts_us"], numbers["ts_ms"] * 1000)
        orders, fits = transaction.numbers("total_order")
        usual &= fits & transaction.is_plain("id") & (numbers["lsn"] > 0) & (times >= 0)
        for name in _TEXTS:
            usual &= source.is_plain(name)
        for name in _SOURCE[len(_READ) :]:
            usual &= source.first(name) == 0
        snapshot = pc.is_in(source.texts("snapshot"), value_set=_NO_SNAPSHOT)
        usual &= flags_of(snapshot) & np.isin(source.first("sequence"), (0, _QUOTE))
        ids = transaction.texts("id", quoted=False)
        ids = pc.if_else(pc.equal(ids, b""), source.texts("txId"), ids).cast(pa.string())
        usual &= flags_of(pc.not_equal(ids, ""))
        # 3. Find table and key of each row.
        before, after = (_or_null(envelope.texts(name)) for name in ("before", "after"))
        tables, codes = self._tables(source, usual)
        key_rows = _KeyRows(machine, operations, before, after)
        keys, names, of_names = self._keys(key_rows, tables, codes, usual)
        # 4. Make the rows of the lines that are left.
        at = np.flatnonzero(usual)
        taken, of_table = pa.array(at), pa.array(codes[at])
        lsn = numbers["lsn"][at]
        commits = _commits(source.texts("sequence").take(taken), lsn)
        ids = ids.take(taken)
        rows = {
            "kind": pa.array(np.full(len(at), CHANGE, np.int16)),
            "place": _places(split, first + at, np.stack([commits, lsn, 0 * lsn], 1)),
            "transaction": pc.replace_substring_regex(ids, _ID, r"\1"),
            "transaction_id": ids,
            "total_order": pa.array(orders[at]),
            "entity_type": pa.array([each.entity_type for each in tables], pa.string()),
            "operation": pa.array(operations[at].astype(np.int16)),
            "primary_key": keys.take(taken),
            "before": before.take(taken),
            "after": after.take(taken),
            "timestamp": pa.array(times[at]),
            "source": pa.array([each.connector for each in tables], pa.string()),
            "table": pa.array([each.table for each in tables], pa.string()),
            "log": pa.array([each.connector or "" for each in tables], pa.string()),
        }
        for name in ("entity_type", "source", "table", "log"):
            rows[name] = rows[name].take(of_table)
        arrays = [rows[f.name] if f.name in rows else pa.nulls(len(at), f.type) for f in ROWS]
        # 5. Note the first line of each origin.
        origins: dict[tuple[str, str, str, str], int] = {}
        for place in np.unique(codes[at] * (len(names) + 1) + of_names[at], return_index=True)[
            1
        ].tolist():
            row = int(at[place])
            table = tables[codes[row]]
            key_names = self._decoder.keys.names_text(table.entity_type, names[of_names[row]])
            origin = table.entity_type, table.table, table.connector or "", key_names or ""
            origins[origin] = min(row, origins.get(origin, row))
        return DecodedColumns(pa.RecordBatch.from_arrays(arrays, schema=ROWS), at, origins)

    def _tables(self, source: _Members, usual: Marks) -> tuple[list[TableIdentity], Longs]:
        """Return the tables of the usual rows, and the place of each row's table; others become unusual."""
        texts = pc.binary_join_element_wise(*map(source.texts, _TEXTS), b"\0")
        found = pc.dictionary_encode(pc.if_else(pa.array(usual), texts, None))
        tables: list[TableIdentity] = []
        places = []
        for text in found.dictionary.to_pylist():
            values = [orjson.loads(value) if value else None for value in text.split(b"\0")]
            try:
                identity = self._decoder.identities.of(
                    SourceBlock(**dict(zip(_TEXTS, values, strict=True)))
                )
            except Unusable:
                places.append(-1)
                continue
            usual_images = values[0] not in OWN_IMAGES and self._decoder.is_plain(identity)
            places.append(len(tables) if usual_images else -1)
            tables.append(identity)
        codes = np.array([*places, -1])[found.indices.fill_null(len(places)).to_numpy()]
        usual &= codes >= 0
        return tables, codes

    def _keys(
        self, rows: _KeyRows, tables: list[TableIdentity], codes: Longs, usual: Marks
    ) -> tuple[pa.Array, list[tuple[str, ...]], Longs]:
        """Return the rows' keys, names of key columns, and the place of each row's names.

        Rows without a usual key become unusual.
        """
        # 1. Images: their sizes, their names, and their presence before the change.
        decoder = self._decoder
        usual &= rows.are_usual & (rows.bytes <= decoder.record_bytes_max)
        stated = np.array(
            [decoder.rows_before.is_stated(each.entity_type) for each in tables] + [False]
        )
        has_before = flags_of(rows.before.is_valid())
        usual &= np.where(stated[codes], has_before | (rows.operations == INSERT), ~has_before)
        # 2. Images with the same names in the same table have the same columns as their key.
        of_hash = np.unique(np.where(usual, rows.names, np.uint64(0)), return_inverse=True)[1]
        names: list[tuple[str, ...]] = []
        of_names = np.full(len(usual), -1)
        pairs = np.where(usual, of_hash * len(tables) + codes, -1)
        for pair, row in zip(*np.unique(pairs, return_index=True), strict=True):
            if pair < 0:
                continue
            image = members(rows.image[int(row)].as_py())
            table = tables[codes[row]]
            try:
                found = decoder.keys.names_in_image(table.entity_type, table.short, image)
            except Unusable:
                continue
            if len(image) == rows.counts[row]:  # else a member is repeated
                if found not in names:
                    names.append(found)
                of_names[pairs == pair] = names.index(found)
        usual &= of_names >= 0
        # 3. The texts of the keys.
        keys = pa.nulls(len(usual), pa.string())
        for place, columns in enumerate(names):
            texts, fits = rows.keys(columns)
            mine = of_names == place
            usual &= ~mine | fits
            keys = texts if mine.all() else pc.if_else(pa.array(mine), texts, keys)
        return keys, names, of_names


class _KeyRows:
    """The images of rows, as the source of their keys."""

    def __init__(
        self,
        machine: Loops,
        operations: npt.NDArray[np.uint8],
        before: pa.BinaryArray,
        after: pa.BinaryArray,
    ) -> None:
        self._machine = machine
        self.operations, self.before = operations, before
        removed = operations == DELETE
        self.image = pc.if_else(pa.array(removed), before, after)
        """The image that has the key."""
        groups = np.zeros(len(before), np.int64)
        old, new = (shapes_of(machine, each, groups) for each in (before, after))
        self.names = np.where(removed, old.names, new.names)
        self.counts = np.where(removed, old.members, new.members)
        self._compared = (operations == UPDATE) & (old.names != 0)
        has_old, has_new = (flags_of(each.is_valid()) for each in (before, after))
        self.are_usual = (has_old <= (old.names != 0)) & (has_new <= (new.names != 0))
        self.are_usual &= (self.names != 0) & (~self._compared | (old.names == new.names))
        lengths = (pc.binary_length(each).fill_null(0).to_numpy() for each in (before, after))
        self.bytes: Longs = sum(lengths)

    def keys(self, names: Sequence[str]) -> tuple[pa.Array, Marks]:
        """Return the texts of keys of some columns, and a mask of the rows in which they are usual."""
        found = _Members(self._machine, self.image, names)
        old = _Members(self._machine, self.before, names)
        fits = found.is_known.copy()
        for name in names:
            text = found.texts(name)
            escaped = pc.match_substring(text, b"\\")
            same = pc.equal(text, old.texts(name))
            fits &= (
                (found.first(name) != 0) & ~flags_of(escaped) & (~self._compared | flags_of(same))
            )
        # One column gives its plain text, several give a JSON array.
        if len(names) == 1:
            return found.texts(names[0], quoted=False).cast(pa.string()), fits
        texts = pc.binary_join_element_wise(*map(found.texts, names), b",")
        return pc.binary_join_element_wise(b"[", texts, b"]", b"").cast(pa.string()), fits


def _is_utf8(lines: pa.BinaryArray) -> bool:
    try:
        lines.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _or_null(texts: pa.BinaryArray) -> pa.BinaryArray:
    return pc.if_else(pc.equal(texts, b""), None, texts)


def _commits(sequences: pa.BinaryArray, lsn: Longs) -> Longs:
    """Return the LSN of the last commit before each row; that of the row itself if it is unknown."""
    if not pc.max(pc.binary_length(sequences)).as_py():
        return lsn
    commits = (last_commit(orjson.loads(text)) if text else 0 for text in sequences.to_pylist())
    found = np.fromiter(commits, np.int64, len(lsn))
    return np.where(found == 0, lsn, found)


def _places(split: FileSplit, lines: Longs, positions: Longs) -> pa.BinaryArray:
    """Return the places of rows (`FileSplit.place`), each the only one in its line."""
    pattern = np.frombuffer(split.place(0), np.uint8)
    width = len(pattern)
    places = np.tile(pattern, (len(lines), 1))
    places[:, :24] = positions.astype(">u8").view(np.uint8).reshape(-1, 24)
    places[:, -8:] = (lines * LINE_MESSAGES).astype(">u8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(lines) + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(places.reshape(-1))]
    return pa.Array.from_buffers(pa.binary(), len(lines), buffers)
