"""Files of a base: the rows of one entity type, sorted by (key hash, key), written once and read in part.

A file is an Arrow IPC file with the columns below, in batches of at most 4,096 rows and about 1 MiB; a larger
row is a batch alone. A batch is the unit of reading: looking up one key usually reads one batch. After 64 MiB
the next file begins, so that parallel tasks can divide a table by its files::

    key_hash     uint64    hash of the key, under the first name of the entity type
    primary_key  utf8
    version      int64     version of the row's last change, …
    index        int32     … and the index of that change in the version
    count        int64     how often the row exists; 1 in tables with a key
    after        binary    the row's image as it was sent; null if the change had none

bases/<n>.json (files/sequence_documents.py) lists the files, the places of their batches, and the checksums.
"""

from __future__ import annotations

import io
import secrets
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tailrace.errors import LogCorrupted
from tailrace_server.failpoints import reach
from tailrace_server.wal.base.state_rows import StateRows, joined_rows
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.files.sequence_documents import BASE_ROWS, BASES, BaseFileDocument
from tailrace_server.wal.files.system_errors import os_errors
from tailrace_server.wal.segment import arrow_ipc

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import NewObject, ObjectStore
    from tailrace_server.wal.segment.reader import BatchReader

BASE_SCHEMA: Final = pa.schema(
    [
        pa.field("key_hash", pa.uint64(), nullable=False),
        pa.field("primary_key", pa.utf8(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("after", pa.binary()),
    ]
)
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20


class BaseWriter:
    """Writes the rows of one entity type into files. Not thread-safe; end it with ``close`` or ``abandon``."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        """Create a writer that has not begun a file yet.

        Args:
            store: The catalog's objects, to which the files are added.
            number: Number of the object of ``bases`` that will name the files.
        """
        self._store = store
        self._number = number
        self._file: _BaseFile | None = None
        self._rest: list[StateRows] = []
        self._rest_rows = 0
        self.files: list[BaseFileDocument] = []
        """The files that are complete."""

    def write(self, rows: StateRows) -> None:
        """Append rows; they must come after the rows written before, in the order of (key hash, key).

        Raises:
            LogFull: The device has no room.
        """
        # The caller cuts its parts anywhere. Rows that do not fill a batch wait for the next call.
        self._rest.append(rows)
        self._rest_rows += len(rows)
        if self._rest_rows < _BATCH_ROWS:
            return
        *full, rest = joined_rows(self._rest).parts(_BATCH_ROWS, _BATCH_BYTES)
        self._rest, self._rest_rows = [rest], len(rest)
        for batch in full:
            self._emit(batch)

    def close(self) -> list[BaseFileDocument]:
        """Finish the last file; return all files.

        Raises:
            LogFull: The device has no room.
        """
        for batch in joined_rows(self._rest).parts(_BATCH_ROWS, _BATCH_BYTES):
            self._emit(batch)
        self._rest, self._rest_rows = [], 0
        self._end_file()
        return self.files

    def abandon(self) -> None:
        """Remove the incomplete file; does nothing after ``close``."""
        if self._file is not None:
            self._file.abandon()

    def _emit(self, rows: StateRows) -> None:
        if self._file is None:
            path = f"{BASE_ROWS}/{self._number:020d}-{secrets.token_hex(6)}.arrow"
            self._file = _BaseFile(self._store, path)
        self._file.write(rows)
        if self._file.size >= _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self.files.append(self._file.close())
            self._file = None


class _Chunks(io.RawIOBase):
    """A file object for Arrow to write to; it collects the bytes until ``taken`` returns them."""

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        """Return True; Arrow calls this before it writes."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Store a buffer."""
        self._data.append(bytes(data))
        self._position += len(data)
        return len(data)

    def taken(self) -> bytes:
        """Return the buffers written since the last call."""
        data, self._data = b"".join(self._data), []
        return data


class _BaseFile:
    """One base file that is being written."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        store.make_folder(BASES)
        self._path = path
        self._file: NewObject = store.begin(path)
        self._sink = _Chunks()
        self._arrow = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), BASE_SCHEMA)
        self._prefix: list[tuple[int, int, int]] = []
        self._columns: tuple[list[int], ...] = ([], [], [], [], [], [])
        self.size = 0

    def write(self, rows: StateRows) -> None:
        """Append a batch."""
        columns = [
            pa.array(rows.key_hashes),
            rows.primary_keys,
            pa.array(rows.versions),
            pa.array(rows.indexes),
            pa.array(rows.counts),
            rows.images,
        ]
        self._arrow.write_batch(pa.RecordBatch.from_arrays(columns, schema=BASE_SCHEMA))
        data = self._sink.taken()
        if not self._prefix:
            # Arrow writes the magic and the schema together with the first batch. Split them off: the list of
            # files has the schema's checksum and place apart from those of the batches.
            start = len(arrow_ipc.MAGIC)
            end = start + arrow_ipc.outline(data[start:]).length
            self._prefix.append((start, end - start, crc32c(data[start:end])))
            self._put(data[:end])
            data = data[end:]
        # The first and the last hash of each batch let a look-up read only the batch that may have the key.
        first, last = int(rows.key_hashes[0]), int(rows.key_hashes[-1])
        batch = (self.size, len(data), len(rows), crc32c(data), first, last)
        for column, number in zip(self._columns, batch, strict=True):
            column.append(number)
        self._put(data)

    def close(self) -> BaseFileDocument:
        """Finish the file, make it durable and give it its name."""
        self._arrow.close()
        self._put(self._sink.taken())
        # Sync before the file has its name: a name without all bytes must not survive a power cut.
        with os_errors(f"cannot write {self._path}"):
            self._file.sync()
            reach("base.before_rename")
            self._file.link()
            self._file.close()
            reach("base.after_rename")
        return BaseFileDocument(
            self._path, sum(self._columns[2]), self.size, self._prefix, *self._columns
        )

    def abandon(self) -> None:
        """Close the unfinished file, which has no name yet and so disappears."""
        self._file.close()

    def _put(self, data: bytes) -> None:
        with os_errors(f"cannot write {self._path}"):
            self._file.write([data])
        self.size += len(data)


def read_batch(reader: BatchReader, file: BaseFileDocument, place: int) -> StateRows:
    """Return the rows of the batch at a place in a file.

    Raises:
        LogCorrupted: The batch does not match its checksum, or the file ends too early.
        SegmentMissing: The file was deleted.
    """
    offset = file.offset[place]
    data = reader.checked(
        file.path, offset, file.length[place], file.crc32c[place], "the batch of the base"
    )
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), BASE_SCHEMA)
    if batch.num_rows != file.batch_rows[place]:
        raise LogCorrupted(
            file.path, offset, "the batch has a different number of rows than its file declares"
        )
    numbers = [np.asarray(batch.column(name)) for name in ("key_hash", "version", "index", "count")]
    hashes, versions, indexes, counts = numbers
    return StateRows(
        hashes, batch.column("primary_key"), versions, indexes, counts, batch.column("after")
    )
