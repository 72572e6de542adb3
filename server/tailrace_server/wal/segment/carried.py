"""The segment of a small commit, carried by the commit's entry, so that only one file must be made durable.

It has the messages of a segment file without the file's framing, since the entry states the place of each::

    schema message, two dictionary messages     the same for the same dictionaries: cached
    record batch message                        written from Python values, without Arrow

Arrow needs a hundred calls for a batch of two rows. A writer that commits every few milliseconds finds Arrow's
code evicted from the processor's caches each time, which takes half the time of such a commit (docs/adr/0016).
The message is byte for byte Arrow's: its metadata is copied from one that Arrow wrote, and only numbers are
replaced::

    metadata, as Arrow wrote it   length ∙ (length, nulls) of each array ∙ (offset, length) of each buffer
    body                          the buffers, each padded to 8 bytes

A test compares all messages with those that SegmentWriter makes of the same rows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.record.columns import (
    BUFFERS_OF_BODY,
    BUFFERS_OF_HEAD,
    HEAD_COLUMNS,
    RECORD_SCHEMA,
)
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.segment import arrow_ipc
from tailrace_server.wal.segment.writer import WRITE_OPTIONS, SegmentReceipt, with_dictionary

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

_ALIGNMENT: Final = 8
_PADDING: Final = tuple(map(bytes, range(_ALIGNMENT)))
_NUMBERS: Final = tuple(zip(range(4), "qiBB", strict=True))
"""Places of the numeric columns before the entity type, and their ``struct`` formats."""
_KEY: Final = 5
_IMAGES: Final = slice(7, 10)
"""Places of the images among the columns of a writer, which have no ``key_hash``."""


_S = TypeVar("_S", bound="Sized")


class CarriedBatch(NamedTuple):
    """A record batch message, and the places of its buffers."""

    data: bytes
    buffers: list[tuple[int, int]]
    """Offset from the start of the message, and length, of each buffer."""


def carried_batch(
    columns: Sequence[Sequence[Any]],
    type_codes: Sequence[int | None],
    key_hashes: Sequence[int],
    name_codes: Sequence[Sequence[int] | None],
) -> CarriedBatch:
    """Return the message of a batch with at least one row.

    Args:
        columns: Values of the columns of RECORD_SCHEMA in its order, without ``key_hash``. The values of
            ``entity_type`` and ``changed`` are ignored.
        type_codes: Dictionary code of each row's entity type.
        key_hashes: Key hash of each row.
        name_codes: Dictionary codes of each row's changed columns.
    """
    body = _Body(len(type_codes))
    for place, kind in _NUMBERS:
        body.add_numbers(kind, columns[place])
    body.add_codes(type_codes)
    body.add_numbers("Q", key_hashes)
    body.add_texts([None if key is None else key.encode() for key in columns[_KEY]])
    body.add_lists(name_codes)
    for images in columns[_IMAGES]:
        body.add_texts(images)
    return body.message()


class _Body:
    """The buffers of a batch, in the order of their columns, and the metadata of its arrays."""

    __slots__ = ("_buffers", "_nodes", "_rows")

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._nodes: list[int] = []
        self._buffers: list[bytes] = []

    def add_numbers(self, kind: str, values: Sequence[int]) -> None:
        self._nodes += (len(values), 0)
        self._buffers += (b"", struct.pack(f"<{len(values)}{kind}", *values))

    def add_codes(self, values: Sequence[int | None]) -> None:
        self._add_validity(values)
        codes = [value or 0 for value in values]
        self._buffers.append(struct.pack(f"<{len(codes)}i", *codes))

    def add_texts(self, values: Sequence[bytes | None]) -> None:
        present = self._add_offsets(values)
        self._buffers.append(b"".join(present))

    def add_lists(self, values: Sequence[Sequence[int] | None]) -> None:
        present = self._add_offsets(values)
        self.add_numbers("i", [code for value in present for code in value])

    def message(self) -> CarriedBatch:
        template, at_of = _metadata()
        head = bytearray(template)
        parts: list[bytes | bytearray] = [head]
        numbers: list[int] = []
        places: list[tuple[int, int]] = []
        at = 0
        start = len(head)
        for buffer in self._buffers:
            length = len(buffer)
            numbers += (at, length)
            places.append((start + at, length))
            parts += (buffer, _PADDING[-length % _ALIGNMENT])
            at += length + -length % _ALIGNMENT
        # The metadata's length does not depend on the numbers, so only these are overwritten in Arrow's
        # template.
        struct.pack_into("<q", head, at_of.body_length, at)
        struct.pack_into("<q", head, at_of.rows, self._rows)
        struct.pack_into(f"<{len(self._nodes)}q", head, at_of.nodes, *self._nodes)
        struct.pack_into(f"<{len(numbers)}q", head, at_of.buffers, *numbers)
        return CarriedBatch(b"".join(parts), places)

    def _add_validity(self, values: Sequence[object]) -> None:
        """Add an array's metadata and its validity bitmap, which is empty if the array has no nulls."""
        rows, nulls = len(values), values.count(None)
        # Bit i of this number is row i, lowest first, as in Arrow's bitmaps.
        bits = 0
        if nulls:
            for place, value in enumerate(values):
                if value is not None:
                    bits |= 1 << place
        self._nodes += (rows, nulls)
        self._buffers.append(bits.to_bytes((rows + 7) // 8, "little") if nulls else b"")

    def _add_offsets(self, values: Sequence[_S | None]) -> list[_S]:
        """Add metadata, validity bitmap and offsets of texts or lists; return the values that are not null."""
        self._add_validity(values)
        present, offsets, end = [], [0], 0
        for value in values:
            if value is not None:
                present.append(value)
                end += len(value)
            offsets.append(end)
        self._buffers.append(struct.pack(f"<{len(offsets)}i", *offsets))
        return present


@lru_cache(1)
def _metadata() -> tuple[bytes, arrow_ipc.NumberPlaces]:
    """Return the bytes before the body of any batch with rows, and the places of the numbers in them.

    The bytes are cut from a message that Arrow wrote; all batches have the same layout.
    """
    row = pa.RecordBatch.from_arrays(
        [pa.array([None], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )
    data = row.serialize().to_pybytes()
    return data[: arrow_ipc.metadata_length(data)], arrow_ipc.number_places(data)


ROWS_MAX: Final = 64
"""Maximum number of rows that an entry carries; for more rows numpy is faster."""

BYTES_MAX: Final = 64 << 10
"""Maximum bytes of images that an entry carries, as every reader reads whole entries."""

_DICTIONARIES_KEPT: Final = 256
_TYPE: Final = HEAD_COLUMNS.index("entity_type")
_CHANGED: Final = HEAD_COLUMNS.index("changed")


@dataclass(frozen=True, slots=True)
class CarriedSegment:
    """A segment that its commit's entry is to carry."""

    data: bytes
    receipt: SegmentReceipt
    """Description of the segment; its path is empty, as the entry's path is not known yet."""


def carried_segment(columns: Sequence[list[Any]]) -> CarriedSegment:
    """Return a segment of whole transactions.

    Args:
        columns: Values of the columns of RECORD_SCHEMA in its order, without ``key_hash``. Rows are dense and
            in order, from version 0, index 0; at most ROWS_MAX rows and about BYTES_MAX bytes.
    """
    types, codes, counts = _encode_types(columns[_TYPE])
    names, lists = _encode_names(columns[_CHANGED - 1])
    # Most small commits have the dictionaries of an earlier one, so the messages are cached by their names.
    frame = _frame(types, names)
    keys = zip(columns[_TYPE], columns[_TYPE + 1], strict=True)
    hashes = [0 if None in each else key_hash(type_seed(each[0]), each[1]) for each in keys]
    batch = carried_batch(columns, codes, hashes, lists)
    receipt = SegmentReceipt(
        path="",
        rows=len(codes),
        bytes=len(frame.data) + len(batch.data),
        transactions=columns[0][-1] + 1,
        continues=False,
        counts=counts,
        batches=(_batch_row(len(frame.data), batch, columns),),
        prefix=frame.prefix,
    )
    return CarriedSegment(frame.data + batch.data, receipt)


class _Frame(NamedTuple):
    """The schema and dictionary messages before the record batch."""

    data: bytes
    prefix: tuple[tuple[int, int, int], ...]
    """Offset, length and CRC-32C of each message."""


@lru_cache(_DICTIONARIES_KEPT)
def _frame(types: tuple[str, ...], names: tuple[str, ...]) -> _Frame:
    """Return the messages for some dictionaries, cut from a stream that Arrow writes with one row."""
    arrays = {
        "entity_type": pa.DictionaryArray.from_arrays(
            pa.array([None], pa.int32()), pa.array(types, pa.utf8())
        ),
        "changed": with_dictionary(
            pa.array([None], pa.list_(pa.int32())), pa.array(names, pa.utf8())
        ),
    }
    row = [arrays.get(field.name, pa.array([None], field.type)) for field in RECORD_SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORD_SCHEMA, options=WRITE_OPTIONS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(row, schema=RECORD_SCHEMA))
    # The row itself is not used. Arrow writes dictionary messages only in front of a batch that needs them.
    stream = sink.getvalue().to_pybytes()
    start = 0
    prefix = []
    while (message := arrow_ipc.outline(stream[start:])).kind is not arrow_ipc.MessageKind.BATCH:
        prefix.append((start, message.length, crc32c(stream[start : start + message.length])))
        start += message.length
    return _Frame(stream[:start], tuple(prefix))


def _encode_types(
    values: list[str | None],
) -> tuple[tuple[str, ...], list[int | None], dict[str, int]]:
    """Return the entity types in the order of their first rows, each row's code, and the counts of records."""
    known: dict[str, int] = {}
    counts: dict[str, int] = {}
    codes: list[int | None] = []
    for value in values:
        if value is None:
            codes.append(None)
        else:
            codes.append(known.setdefault(value, len(known)))
            counts[value] = counts.get(value, 0) + 1
    return tuple(known), codes, counts


def _encode_names(
    values: list[tuple[str, ...] | None],
) -> tuple[tuple[str, ...], list[list[int] | None]]:
    """Return the column names in the order of their first use, and each row's codes."""
    known: dict[str, int] = {}
    lists = [
        None if value is None else [known.setdefault(name, len(known)) for name in value]
        for value in values
    ]
    return tuple(known), lists


def _batch_row(start: int, batch: CarriedBatch, columns: Sequence[list[Any]]) -> tuple[int, ...]:
    """Return the batch's row of the receipt; see batch_table.BATCH_FIELDS."""
    data = batch.data
    places = batch.buffers[BUFFERS_OF_HEAD::BUFFERS_OF_BODY]
    # The head ends where the first body begins, and each body ends where the next one begins.
    borders = [0, *(place for place, _ in places), len(data)]
    lengths = [end - begin for begin, end in pairwise(borders)]
    crc_head, *crcs = (crc32c(data[begin:end]) for begin, end in pairwise(borders))
    # A body begins with a bitmap only if its validity buffer is not empty.
    nullable = sum(1 << place for place, (_, length) in enumerate(places) if length)
    versions, indexes = columns[0], columns[1]
    return (
        start,
        len(data),
        lengths[0],
        len(versions),
        versions[0],
        indexes[0],
        versions[-1],
        indexes[-1],
        crc_head,
        *lengths[1:],
        nullable,
        *crcs,
    )


__all__ = ["BYTES_MAX", "ROWS_MAX", "CarriedSegment", "carried_segment"]
