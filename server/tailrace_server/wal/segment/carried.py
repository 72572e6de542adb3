"""The segment of a small commit, which its entry carries: one file to make durable where there were two.

It is the messages of a segment file without what stands around them, since the entry says where each lies::

    schema message, two dictionary messages     the same for the same dictionaries: kept
    record batch message                        written from values (carried_batch.py)

The messages are byte for byte those that SegmentWriter makes of the same rows; a test holds them to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from tailrace_server.wal.segment.carried_batch import carried_batch
from tailrace_server.wal.segment.writer import (
    WRITE_OPTIONS,
    SegmentReceipt,
    with_dictionary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.wal.segment.carried_batch import CarriedBatch

ROWS_MAX: Final = 48
"""Rows that an entry carries at most; more are quicker with numpy."""

BYTES_MAX: Final = 64 << 10
"""Bytes of images that an entry carries at most: entries are read whole, by everyone."""

_DICTIONARIES_KEPT: Final = 256
_TYPE: Final = HEAD_COLUMNS.index("entity_type")
_CHANGED: Final = HEAD_COLUMNS.index("changed")


@dataclass(frozen=True, slots=True)
class CarriedSegment:
    """A segment that goes into its entry."""

    data: bytes
    receipt: SegmentReceipt
    """Without a path, which is that of the entry."""


def carried_segment(columns: Sequence[list[Any]]) -> CarriedSegment:
    """Return the segment of whole transactions.

    Args:
        columns: Values of the columns of RECORD_SCHEMA in its order, ``key_hash`` left out; dense and in order
            from version 0, index 0. At most ROWS_MAX rows, and about BYTES_MAX bytes.
    """
    types, codes, counts = _encode_types(columns[_TYPE])
    names, lists = _encode_names(columns[_CHANGED - 1])
    frame = _frame(types, names)
    keys = zip(columns[_TYPE], columns[_TYPE + 1], strict=True)
    hashes = [0 if None in each else key_hash(_seed(each[0]), each[1]) for each in keys]
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
    """The messages before the record batch, for certain dictionaries."""

    data: bytes
    prefix: tuple[tuple[int, int, int], ...]
    """Offset, length and CRC-32C of each."""


@lru_cache(_DICTIONARIES_KEPT)
def _frame(types: tuple[str, ...], names: tuple[str, ...]) -> _Frame:
    """Cut the messages out of a stream with these dictionaries and one row."""
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
    stream = sink.getvalue().to_pybytes()
    start = 0
    prefix = []
    while (message := arrow_ipc.outline(stream[start:])).kind is not arrow_ipc.MessageKind.BATCH:
        prefix.append((start, message.length, crc32c(stream[start : start + message.length])))
        start += message.length
    return _Frame(stream[:start], tuple(prefix))


@lru_cache(1_024)
def _seed(entity_type: str) -> int:
    return type_seed(entity_type)


def _encode_types(
    values: list[str | None],
) -> tuple[tuple[str, ...], list[int | None], dict[str, int]]:
    """Return the entity types in first-seen order, their codes, and the records of each."""
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
    """Return the names of columns in first-seen order, and their codes."""
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
    borders = [0, *(place for place, _ in places), len(data)]
    lengths = [end - begin for begin, end in pairwise(borders)]
    crc_head, *crcs = (crc32c(data[begin:end]) for begin, end in pairwise(borders))
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
