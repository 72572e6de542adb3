"""The segment of a small commit, which its entry carries: one file to make durable where there were two.

It is the messages of a segment file without what stands around them, since the entry says where each lies::

    schema message, two dictionary messages     the same for the same dictionaries: kept
    record batch message                        serialized

The messages are byte for byte those that SegmentWriter makes of the same rows; a test holds them to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tailrace_server.wal import ipc
from tailrace_server.wal.keyhash import key_hash, type_seed
from tailrace_server.wal.objects import crc32c
from tailrace_server.wal.record import HEAD_COLUMNS, RECORD_SCHEMA
from tailrace_server.wal.segment import (
    BUFFERS_OF_BODY,
    BUFFERS_OF_HEAD,
    WRITE_OPTIONS,
    SegmentReceipt,
    with_dictionary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_MAX: Final = 48
"""Rows that an entry carries at most; more are quicker with numpy."""

BYTES_MAX: Final = 64 << 10
"""Bytes of images that an entry carries at most: entries are read whole, by everyone."""

_DICTIONARIES_KEPT: Final = 256
_TYPE: Final = HEAD_COLUMNS.index("entity_type")
_HASH: Final = HEAD_COLUMNS.index("key_hash")
_KEY: Final = HEAD_COLUMNS.index("primary_key")
_CHANGED: Final = HEAD_COLUMNS.index("changed")
_CODES: Final = pa.int32()
_CODE_LISTS: Final = pa.list_(pa.int32())
_KINDS: Final = tuple(field.type for field in RECORD_SCHEMA)


@dataclass(frozen=True, slots=True)
class InlineSegment:
    """A segment that goes into its entry."""

    data: bytes
    receipt: SegmentReceipt
    """Without a path, which is that of the entry."""


def inline_segment(columns: Sequence[list[Any]]) -> InlineSegment:
    """Return the segment of whole transactions.

    Args:
        columns: Values of the columns of RECORD_SCHEMA in its order, ``key_hash`` left out; dense and in order
            from version 0, index 0. At most ROWS_MAX rows, and about BYTES_MAX bytes.
    """
    types, codes, counts = _encode_types(columns[_TYPE])
    names, lists = _encode_names(columns[_CHANGED - 1])
    frame = _frame(types, names)
    message = _batch(columns, codes, lists, frame).serialize()
    receipt = SegmentReceipt(
        path="",
        rows=len(codes),
        bytes=len(frame.data) + len(message),
        transactions=columns[0][-1] + 1,
        continues=False,
        counts=counts,
        batches=(_batch_row(len(frame.data), message, columns),),
        prefix=frame.prefix,
    )
    return InlineSegment(frame.data + message.to_pybytes(), receipt)


class _Frame(NamedTuple):
    """The messages before the record batch, for certain dictionaries."""

    data: bytes
    prefix: tuple[tuple[int, int, int], ...]
    """Offset, length and CRC-32C of each."""
    types: pa.StringArray
    names: pa.StringArray


@lru_cache(_DICTIONARIES_KEPT)
def _frame(types: tuple[str, ...], names: tuple[str, ...]) -> _Frame:
    """Cut the messages out of a stream with these dictionaries and one row."""
    frame = _Frame(b"", (), pa.array(types, pa.utf8()), pa.array(names, pa.utf8()))
    lead = ([0], [0], [3], [3], [None], [None], [None], [None], [None], [None])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORD_SCHEMA, options=WRITE_OPTIONS) as writer:
        writer.write_batch(_batch(lead, [None], [None], frame))
    stream = sink.getvalue().to_pybytes()
    start = 0
    prefix = []
    while (message := ipc.outline(stream[start:])).kind is not ipc.MessageKind.BATCH:
        prefix.append((start, message.length, crc32c(stream[start : start + message.length])))
        start += message.length
    return frame._replace(data=stream[:start], prefix=tuple(prefix))


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


def _batch(
    columns: Sequence[list[Any]],
    codes: list[int | None],
    lists: list[list[int] | None],
    frame: _Frame,
) -> pa.RecordBatch:
    hashes = [
        0 if name is None or key is None else key_hash(_seed(name), key)
        for name, key in zip(columns[_TYPE], columns[_KEY - 1], strict=True)
    ]
    arrays = [
        *(pa.array(columns[place], _KINDS[place]) for place in range(_TYPE)),
        pa.DictionaryArray.from_arrays(pa.array(codes, _CODES), frame.types, safe=False),
        pa.array(hashes, _KINDS[_HASH]),
        pa.array(columns[_KEY - 1], _KINDS[_KEY]),
        with_dictionary(pa.array(lists, _CODE_LISTS), frame.names),
        *(pa.array(column, pa.binary()) for column in columns[_CHANGED:]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _batch_row(start: int, data: pa.Buffer, columns: Sequence[list[Any]]) -> tuple[int, ...]:
    """Return the batch's row of the receipt; see table.BATCH_FIELDS."""
    message = ipc.outline(data)
    places = ipc.batch_buffers(data, message)[BUFFERS_OF_HEAD::BUFFERS_OF_BODY]
    borders = [place for place, _ in places]
    lengths = [end - begin for begin, end in zip(borders, [*borders[1:], len(data)], strict=True)]
    crcs = [
        crc32c(data.slice(begin, length)) for begin, length in zip(borders, lengths, strict=True)
    ]
    nullable = sum(1 << place for place, (_, length) in enumerate(places) if length)
    versions, indexes = columns[0], columns[1]
    return (
        start,
        len(data),
        borders[0],
        len(versions),
        versions[0],
        indexes[0],
        versions[-1],
        indexes[-1],
        crc32c(data.slice(0, borders[0])),
        *lengths,
        nullable,
        *crcs,
    )


__all__ = ["BYTES_MAX", "ROWS_MAX", "InlineSegment", "inline_segment"]
