r"""Segments: Arrow IPC files of records, written once.

Layout (Arrow's own, "File format")::

    "ARROW1\0\0"
    schema message                          the columns of record/columns.py
    dictionary messages, record batch, …    deltas of the two dictionaries may come before a batch
    end of stream, footer, its length, "ARROW1"

A batch is complete at BATCH_ROWS_MAX rows or BATCH_BYTES_MAX bytes; a larger row is a batch of its own. The
head's buffers come first in each batch, so a head is the first ``head_length`` bytes of the message::

    | prefix, metadata | version … changed | change | before | after |
    |<---------- head_length ------------->|<- lengths of the bodies ->|

Each of the four parts has a CRC-32C, and so has every schema and dictionary message. The checksums are not in
the file: they are in the receipt and later in the commit entry, which also states the file's first version.
Versions in the file count from 0. A segment whose first row has an index above 0 continues the last transaction
of the segment before it.

A file is linked to its name when it is complete and durable; see new_file.py. Only `renumbered` changes a file.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tailrace_server.failpoints import reach
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.new_file import changed_in_place
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.files.system_errors import os_errors
from tailrace_server.wal.record.columns import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    BODY_COLUMNS,
    BUFFERS_OF_BODY,
    BUFFERS_OF_HEAD,
    HEAD_COLUMNS,
    NAME_TYPE,
    RECORD_SCHEMA,
    misplaced_body,
)
from tailrace_server.wal.segment import arrow_ipc
from tailrace_server.wal.segment.rows import Rows, RowsEncoder

if TYPE_CHECKING:
    from pathlib import Path

WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
_SYNC_BYTES: Final = 4 << 20
"""Number of unsynced bytes from which the device is asked to start writing them."""
_LIST_TYPE: Final = pa.list_(NAME_TYPE)
_INDEX_BUFFER: Final = 3
"""Place of the values of ``index`` among the buffers of a batch."""

BatchRow = tuple[int, ...]
"""The description of a record batch in a receipt, in the order of batch_table.BATCH_FIELDS, without the fields
that the commit adds."""


@dataclass(frozen=True, slots=True)
class SegmentReceipt:
    """The description of a finished segment, passed to the commit, possibly by another process."""

    path: str
    """Path relative to the catalog's folder; empty for a carried segment."""
    rows: int
    bytes: int
    transactions: int
    """Number of distinct versions."""
    continues: bool
    """True if the first row continues the last transaction of the segment before."""
    counts: dict[str, int]
    """Number of records by entity type; leads are not counted."""
    batches: tuple[BatchRow, ...]
    """The record batches; their versions count from 0, and their running numbers are missing."""
    prefix: tuple[tuple[int, int, int], ...]
    """Offset, length and CRC-32C of the schema and dictionary messages, in the order of the file."""


class _Sink(io.RawIOBase):
    """A sink for Arrow that collects buffers, without copies, until a message is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[Any] = []
        self.position = 0

    def writable(self) -> bool:
        """Return True: Arrow requires it."""
        return True

    def tell(self) -> int:
        """Return the position in the file."""
        return self.position

    def write(self, data: Any, /) -> int:
        """Store a buffer without copying it."""
        self.chunks.append(data)
        self.position += len(data)
        return len(data)


class SegmentWriter:
    """Writes one segment, by columns, without Python work per row.

    Not thread-safe. Use it as a context manager, or end it with ``close`` or ``abandon``.
    """

    def __init__(self, path: Path, *, fsync: bool = True) -> None:
        """Begin a file at ``path``, below a catalog's ``segments`` folder.

        Raises:
            LogFull: The file system is full.
        """
        self._path = path
        self._fsync = fsync
        self._encoder = RowsEncoder()
        self._rest: list[Rows] = []
        self._rest_rows = 0
        self._rest_bytes = 0
        self._rows = 0
        self._batches: list[BatchRow] = []
        self._prefix: list[tuple[int, int, int]] = []
        self._sink = _Sink()
        self._syncing = 0
        place = relative_path(path)
        self._file = LocalFiles(path.parents[place.count("/")]).begin(place)
        file = pa.PythonFile(self._sink, mode="w")
        self._arrow = pa.ipc.new_file(file, RECORD_SCHEMA, options=WRITE_OPTIONS)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def write(self, table: pa.Table | pa.RecordBatch) -> None:
        """Append rows.

        Args:
            table: Columns of RECORD_SCHEMA by name, sorted by (version, index), versions from 0. Dictionary
                columns and bodies may be plain utf8; ``key_hash``, ``changed`` and bodies may be missing.

        Raises:
            ValueError: The rows are not dense and in order, which is a bug of the caller.
            LogFull: The file system is full; abandon the segment.
        """
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        for batch in batches:
            if batch.num_rows:
                self._append(self._encoder.encode(batch))

    def close(self) -> SegmentReceipt:
        """Finish the file, make it durable and give it its name.

        Raises:
            LogFull: The file system is full; abandon the segment.
        """
        self._emit_rest(last=True)
        self._arrow.close()
        with os_errors(f"cannot write {self._path}"):
            # Content first, then the name: a reader that sees the name must find all bytes, even after a power
            # cut.
            self._write_out()
            if self._fsync:
                self._file.sync()
            reach("segment.before_rename")
            self._file.link(sync=self._fsync)
            self._file.close()
            reach("segment.after_rename")
        return SegmentReceipt(
            path=relative_path(self._path),
            rows=self._rows,
            bytes=self._sink.position,
            transactions=self._encoder.transactions,
            continues=self._encoder.continues,
            counts=self._encoder.counts(),
            batches=tuple(self._batches),
            prefix=tuple(self._prefix),
        )

    def abandon(self) -> None:
        """Discard an unfinished file; after ``close`` this does nothing."""
        self._file.close()

    def _append(self, rows: Rows) -> None:
        """Cut rows into batches; the rest, which does not fill a batch, waits for more rows."""
        start = 0
        while start < len(rows):
            stop = rows.end_of_batch(
                start,
                rows_max=BATCH_ROWS_MAX - self._rest_rows,
                bytes_max=BATCH_BYTES_MAX - self._rest_bytes,
            )
            if stop == start and not self._rest_rows:
                stop = start + 1  # a row larger than a batch is a batch by itself
            if stop > start:
                self._rest.append(rows.slice(start, stop))
                self._rest_rows += stop - start
                self._rest_bytes += rows.bytes_between(start, stop)
            # More rows remain, so the batch is full, by rows or by bytes.
            if stop < len(rows) or self._rest_rows == BATCH_ROWS_MAX:
                self._emit_rest()
            start = stop

    def _emit_rest(self, *, last: bool = False) -> None:
        if not self._rest:
            return
        rows = self._rest[0] if len(self._rest) == 1 else Rows.concat(self._rest)
        self._rest, self._rest_rows, self._rest_bytes = [], 0, 0
        # After the last batch no delta can follow, so an empty dictionary may stay empty.
        types, names = self._encoder.dictionaries(may_grow=not last)
        arrays = list(rows.batch.columns)
        arrays[-len(BODY_COLUMNS) :] = map(_exact, arrays[-len(BODY_COLUMNS) :])
        place = HEAD_COLUMNS.index("entity_type")
        arrays[place] = pa.DictionaryArray.from_arrays(arrays[place], types, safe=False)
        place = HEAD_COLUMNS.index("changed")
        arrays[place] = with_dictionary(arrays[place], names)
        self._arrow.write_batch(pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA))
        self._rows += len(rows)
        versions, indexes = rows.column("version"), rows.column("index")
        self._take_messages((versions[0], indexes[0], versions[-1], indexes[-1]))
        with os_errors(f"cannot write {self._path}"):
            self._write_out()

    def _take_messages(self, ends: tuple[Any, ...]) -> None:
        """Record offset, length and checksums of the messages that Arrow has just written."""
        chunks = self._sink.chunks
        start = self._sink.position - sum(map(len, chunks))
        data = iter(chunks)
        if start == 0:
            start = _skip(data, len(arrow_ipc.MAGIC))
        # Arrow writes a message in several chunks. Collect its metadata first, as only that has the lengths;
        # then compute the checksums of the remaining chunks without joining them.
        for chunk in data:
            prefix = bytes(chunk)
            while len(prefix) < arrow_ipc.PREFIX_LENGTH:
                prefix += bytes(next(data))
            length = arrow_ipc.metadata_length(prefix)
            while len(prefix) < length:
                prefix += bytes(next(data))
            message = arrow_ipc.outline(prefix)
            if message.kind is arrow_ipc.MessageKind.BATCH:
                row = _batch_row(start, prefix, message, data, ends)
                self._batches.append(row)
            else:
                crc = _crc_up_to(crc32c(prefix), data, message.length - len(prefix))
                self._prefix.append((start, message.length, crc))
            start += message.length

    def _write_out(self) -> None:
        chunks, self._sink.chunks = self._sink.chunks, []
        self._file.write(chunks)
        written = self._sink.position - self._syncing
        # Start the device early: the final fsync of a large segment then waits only for the last few bytes.
        if self._fsync and written >= _SYNC_BYTES:
            self._file.begin_sync(self._syncing, written)
            self._syncing += written


def renumbered(catalog: Path, receipt: SegmentReceipt, by: int) -> SegmentReceipt:
    """Raise the indexes of a segment that continues a transaction; return its new receipt.

    No entry may name the segment yet: it is changed in place, which is a fortieth of a copy.

    Args:
        catalog: The catalog's folder.
        receipt: The segment, with records of one transaction.
        by: Number to add.

    Raises:
        LogFull: The file system is full.
        LogError: The file is missing or cannot be changed.
    """
    assert receipt.continues, receipt.path
    assert receipt.transactions == 1, receipt.path
    batches = []
    with changed_in_place(catalog / receipt.path) as file:
        for row in receipt.batches:
            place, head_length, count = row[0], row[2], row[3]
            file.seek(place)
            head = bytearray(file.read(head_length))
            at, length = arrow_ipc.batch_buffers(head, arrow_ipc.outline(head))[_INDEX_BUFFER]
            np.frombuffer(head, np.int32, count, at)[:] += by
            file.seek(place + at)
            file.write(head[at : at + length])
            crc = crc32c(memoryview(head))
            batches.append((*row[:5], row[5] + by, row[6], row[7] + by, crc, *row[9:]))
    return replace(receipt, batches=tuple(batches))


def relative_path(path: Path) -> str:
    """Return a segment's path relative to its catalog's folder: from ``segments`` on."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("segments") :])


def with_dictionary(lists: pa.ListArray, names: pa.StringArray) -> pa.ListArray:
    """Return lists of codes as lists of dictionary-encoded names."""
    child = pa.DictionaryArray.from_arrays(lists.values, names, safe=False)
    buffers = lists.buffers()[:2]
    return pa.Array.from_buffers(
        _LIST_TYPE, len(lists), buffers, lists.null_count, lists.offset, children=[child]
    )


def _exact(body: pa.BinaryArray) -> pa.BinaryArray:
    """Return a body whose validity bitmap covers its own rows only.

    Arrow may write the whole bitmap of a body that shares it with more rows.
    """
    bitmap, *others = body.buffers()
    length = (len(body) + 7) // 8
    if bitmap is None or body.offset or bitmap.size <= length:
        return body
    buffers = [bitmap.slice(0, length), *others]
    return pa.Array.from_buffers(body.type, len(body), buffers, body.null_count)


def _batch_row(
    start: int, prefix: bytes, message: arrow_ipc.Message, data: Any, ends: tuple[Any, ...]
) -> BatchRow:
    """Return a batch's row of the receipt; its four checksums are computed from the buffers as they pass."""
    buffers = arrow_ipc.batch_buffers(prefix, message)
    body_at = [
        buffers[BUFFERS_OF_HEAD + BUFFERS_OF_BODY * place][0] for place in range(len(BODY_COLUMNS))
    ]
    borders = [*body_at, message.length]
    # The chunks pass only once, so the checksums are computed in the order of the file.
    head_crc = _crc_up_to(crc32c(prefix), data, borders[0] - len(prefix))
    lengths = [end - begin for begin, end in pairwise(borders)]
    crcs = [_crc_up_to(0, data, length) for length in lengths]
    nullable = sum(
        1 << place
        for place in range(len(BODY_COLUMNS))
        if buffers[BUFFERS_OF_HEAD + BUFFERS_OF_BODY * place][1]
    )
    rows = arrow_ipc.batch_rows(prefix, message)
    # Readers compute the places of bodies. If another version of Arrow placed them otherwise, no reader could
    # read the segment, so fail before the commit.
    if (name := misplaced_body(buffers, rows, body_at, nullable)) is not None:
        raise AssertionError(f"Arrow wrote the parts of {name} where no reader looks for them")
    first_last = (int(end.as_py()) for end in ends)
    return (
        start,
        message.length,
        borders[0],
        rows,
        *first_last,
        head_crc,
        *lengths,
        nullable,
        *crcs,
    )


def _crc_up_to(crc: int, data: Any, length: int) -> int:
    """Continue a CRC over the next ``length`` bytes of the buffers, which must end with a buffer."""
    while length > 0:
        chunk = next(data)
        crc = crc32c(chunk, crc)
        length -= len(chunk)
    if length:
        raise AssertionError("a buffer that Arrow wrote spans two parts of a message")
    return crc


def _skip(data: Any, length: int) -> int:
    """Skip exactly ``length`` bytes of the buffers."""
    _crc_up_to(0, data, length)
    return length


__all__ = ["BatchRow", "SegmentReceipt", "SegmentWriter", "relative_path", "renumbered"]
