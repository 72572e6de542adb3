"""Readers of record batches: bytes are read with pread, checked, then given to Arrow.

The columns before the images (the head) can be read without the images, and one image column (a body) without
the others. Files are not memory-mapped: with mmap a wrong offset or a truncated file would crash the process
(SIGSEGV, SIGBUS). Here both raise ``LogCorrupted`` before Arrow sees a byte.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.errors import LogCorrupted, LogError, forget_frames
from tailrace_server.wal.files.documents import ENTRIES
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.files.system_errors import is_scarce, translated
from tailrace_server.wal.record.columns import (
    BODY_COLUMNS,
    RECORD_SCHEMA,
    body_places,
    misplaced_body,
)
from tailrace_server.wal.record.text_columns import (
    SMALL_LENGTH,
    Dictionary,
    NameLists,
    Texts,
    int32s,
    int64s,
)
from tailrace_server.wal.segment import arrow_ipc
from tailrace_server.wal.segment.refs import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.wal.files.object_store import ObjectStore, OpenObject
    from tailrace_server.wal.segment.refs import BatchRef

_ENTRIES: Final = f"{ENTRIES}/"
_OPEN_FILES_MAX: Final = 64
_DICTIONARIES_MAX: Final = 256
_UTF8, _BINARY = pa.utf8(), pa.binary()
_INT64, _INT32, _UINT8, _UINT64 = map(np.dtype, (np.int64, np.int32, np.uint8, np.uint64))

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_EMPTY_BATCH: Final = RECORD_SCHEMA.empty_table().to_batches(max_chunksize=1) or [
    pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )
]
_DICTIONARY_TAIL: Final = _EMPTY_BATCH[0].serialize().to_pybytes() + _END_OF_STREAM
"""An empty batch and the end of a stream; appended to a file's schema and dictionary messages, it makes them a
complete stream."""


class SegmentMissing(LogError):
    """A compaction or a trim has removed the segment's file since the view was created: use the newest view."""

    code = "SEGMENT_MISSING"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"segment {path} does not exist; the newest checkpoint may have replaced it"
        )
        self.path = path


@dataclass(frozen=True, slots=True, eq=False)
class BatchHead:
    """The head columns of one batch, in the order of its rows."""

    ref: BatchRef
    versions: npt.NDArray[np.int64]
    """Version of each record, counted in the log (in the file versions count from 0)."""
    indexes: npt.NDArray[np.int32]
    areas: npt.NDArray[np.uint8]
    operations: npt.NDArray[np.uint8]
    type_codes: npt.NDArray[np.int32]
    """Each record's place in ``entity_types``; -1 for null."""
    entity_types: tuple[str, ...]
    """The segment's dictionary; the batch may use only a part of the names."""
    key_hashes: npt.NDArray[np.uint64]
    keys: Texts
    """Primary key of each record."""
    names: NameLists
    """Names of each record's changed columns."""
    nbytes: int
    """Size of the memory that the head owns, in bytes."""

    def key_of(self, row: int) -> str | None:
        """Return the primary key of one record."""
        return self.keys.strings((row,))[0]

    @property
    def primary_keys(self) -> pa.StringArray:
        """The primary keys as an Arrow array."""
        return self.keys.array

    @property
    def changed(self) -> pa.ListArray:
        """The changed columns as an Arrow array: lists of dictionary-encoded names."""
        return self.names.array


@dataclass(frozen=True, slots=True)
class _Dictionaries:
    """The two dictionaries of a segment: entity types and column names, by code."""

    entity_types: tuple[str, ...]
    columns: Dictionary


class _Part(NamedTuple):
    """A range of a segment's bytes with one checksum, read in one go."""

    name: str
    offset: int
    length: int
    crc: int


class BatchReader:
    """Reads the record batches of one catalog. Thread-safe. It blocks, so call it from reader threads.

    The reader keeps up to 64 files open and caches the dictionaries of 256 segments; ``close`` releases both.
    """

    def __init__(
        self,
        catalog: Path,
        on_damage: Callable[[LogCorrupted, Callable[[], object]], None] | None = None,
    ) -> None:
        """Bind to a catalog's folder; nothing is opened yet.

        Args:
            catalog: The folder.
            on_damage: Called with the error of each damage, and with a function that repeats the failed read.
        """
        self._on_damage = on_damage
        self.store: ObjectStore = LocalFiles(catalog)
        """The objects in the catalog's folder."""
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenObject] = OrderedDict()
        self._files_max = _OPEN_FILES_MAX
        """Most files to keep open; 0 once the reader is closed."""
        self._dictionaries: OrderedDict[Hashable, _Dictionaries] = OrderedDict()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cached files; a file that a thread is reading closes after that read."""
        with self._lock:
            self._files_max = 0  # a thread may open a file only after this
            self._files.clear()
            self._dictionaries.clear()

    def head(self, ref: BatchRef, file: bytes | None = None) -> BatchHead:
        """Read a batch's head.

        Args:
            ref: The batch.
            file: The bytes of the batch's file, if they have been read already; ``texts`` has the same
                argument.

        Raises:
            LogCorrupted: The checksum of the head is wrong, the file is too short, or the metadata puts the
                bodies elsewhere than the format does.
            SegmentMissing: The file does not exist.
        """
        try:
            return self._head(ref, file)
        except LogCorrupted as damaged:
            raise self._noted(damaged, partial(self.head, ref), ref) from None

    def _head(self, ref: BatchRef, file: bytes | None) -> BatchHead:
        part = _Part("the batch's head", ref.offset, ref.head_length, ref.crc_head)
        data = self._read(ref.segment, part, file)
        dictionaries = self._dictionaries_of(ref.segment, file)
        # Buffers 0 to 11 are validity and values of the six fixed-width columns, 12 to 14 the keys, 15 to 18
        # the name lists.
        buffers = _Buffers(data)
        # The head has a checksum, but the bodies are read later, from computed places: check these places now.
        buffers.check_bodies(ref)
        rows = ref.rows
        versions = buffers.array(0, _INT64, rows)
        types_validity, type_codes = buffers.validity(8), buffers.array(4, _INT32, rows)
        # For few rows Python lists are faster than the fixed cost of numpy's calls.
        if rows <= SMALL_LENGTH:
            base = ref.segment.base_version
            versions = int64s([base + version for version in versions.tolist()])
            if types_validity is not None:
                type_codes = int32s(
                    [
                        code if types_validity[row >> 3] >> (row & 7) & 1 else -1
                        for row, code in enumerate(type_codes.tolist())
                    ]
                )
        else:
            versions = versions + ref.segment.base_version
            if types_validity is not None:
                bits = np.frombuffer(types_validity, _UINT8)
                present = np.unpackbits(bits, count=rows, bitorder="little")
                # As 8-bit numbers, 1 - 1 is 0 and keeps a code; 0 - 1 is -1 and sets all bits of the code of a
                # null.
                type_codes = type_codes | (present - np.uint8(1)).view(np.int8)  # -1 where null
        return BatchHead(
            ref=ref,
            versions=versions,
            indexes=buffers.array(1, _INT32, rows),
            areas=buffers.array(2, _UINT8, rows),
            operations=buffers.array(3, _UINT8, rows),
            type_codes=type_codes,
            entity_types=dictionaries.entity_types,
            key_hashes=buffers.array(5, _UINT64, rows),
            keys=Texts(rows, buffers.validity(12), buffers.buffer(13), buffers.buffer(14), _UTF8),
            names=NameLists(
                rows,
                buffers.validity(15),
                buffers.buffer(16),
                buffers.buffer(18),
                dictionaries.columns,
            ),
            nbytes=data.nbytes + versions.nbytes + type_codes.nbytes,
        )

    def body(self, ref: BatchRef, columns: Collection[str]) -> dict[str, pa.BinaryArray]:
        """Read some bodies of a batch: any of ``change``, ``before``, ``after``.

        Raises:
            LogCorrupted, SegmentMissing: As ``texts``.
        """
        return {name: texts.array for name, texts in self.texts(ref, columns).items()}

    def texts(
        self, ref: BatchRef, columns: Collection[str], file: bytes | None = None
    ) -> dict[str, Texts]:
        """Read some bodies of a batch as `Texts`, without creating Arrow arrays; each body takes one read.

        Raises:
            LogCorrupted: The checksum of a body is wrong, or the file is too short.
            SegmentMissing: The file does not exist.
        """
        try:
            return self._texts(ref, columns, file)
        except LogCorrupted as damaged:
            raise self._noted(damaged, partial(self.texts, ref, columns), ref) from None

    def _texts(
        self, ref: BatchRef, columns: Collection[str], file: bytes | None
    ) -> dict[str, Texts]:
        found = {}
        offset = ref.offset + ref.head_length
        for place, name in enumerate(BODY_COLUMNS):
            length = ref.body_lengths[place]
            if name in columns:
                part = _Part(f"the batch's {name}", offset, length, ref.crc_body[place])
                data = self._read(ref.segment, part, file)
                found[name] = _body(data, ref.rows, nullable=bool(ref.body_nullable >> place & 1))
            offset += length
        return found

    def checked(self, path: str, offset: int, length: int, crc: int, what: str) -> memoryview:
        """Read a range of bytes of any file of the catalog, and verify its checksum.

        Args:
            path: Path of the file, relative to the catalog.
            offset: First byte of the range.
            length: Length of the range in bytes.
            crc: CRC-32C of the range.
            what: Name of the range in an error message.

        Raises:
            LogCorrupted: The checksum is wrong, or the file is too short.
            SegmentMissing: The file does not exist.
        """
        try:
            return self._read(SegmentRef(path, 0, ()), _Part(what, offset, length, crc), None)
        except LogCorrupted as damaged:
            again = partial(self.checked, path, offset, length, crc, what)
            raise self._noted(damaged, again) from None

    def _noted(
        self, damaged: LogCorrupted, again: Callable[[], object], ref: BatchRef | None = None
    ) -> LogCorrupted:
        """Report a damage to ``on_damage``; return its error, with the batch's first and last record added."""
        forget_frames(damaged)  # the frames keep the file open
        with self._lock:
            self._files.pop(damaged.path, None)  # a restored file is another one: open it anew
        if ref is not None:
            place = (damaged.path, damaged.offset, damaged.reason)
            damaged = LogCorrupted(*place, ref.first, ref.last)
        if self._on_damage is not None:
            self._on_damage(damaged, again)
        return damaged

    def _dictionaries_of(self, segment: SegmentRef, file: bytes | None) -> _Dictionaries:
        key = (segment.path, segment.prefix)  # an entry that is read ahead may become another
        with self._lock:
            known = self._dictionaries.get(key)
        if known is not None:
            return known
        parts = []
        for offset, length, crc in segment.prefix:
            part = _Part("a schema or dictionary message", offset, length, crc)
            parts.append(self._read(segment, part, file).tobytes())
        found = _decoded(b"".join(parts))
        with self._lock:
            self._dictionaries[key] = found
            while len(self._dictionaries) > _DICTIONARIES_MAX:
                self._dictionaries.popitem(last=False)
        return found

    def _read(self, segment: SegmentRef, part: _Part, whole: bytes | None) -> memoryview:
        """Return a verified part of a segment; ``whole`` is the file's content, if it has been read already."""
        if whole is not None and part.offset + part.length <= len(whole):
            taken = whole[part.offset : part.offset + part.length]
            _check(segment, part, taken)
            return memoryview(taken)
        data = self._read_file(segment, part)
        _check(segment, part, data)
        return data.data

    def _read_file(self, segment: SegmentRef, part: _Part) -> npt.NDArray[np.uint8]:
        # Read into memory of our own: the arrays of the batch keep it alive, and a change of the file cannot
        # reach them.
        file = self._file(segment.path)
        data = np.empty(part.length, np.uint8)
        try:
            if file.read_into(data.data, part.offset) < part.length:
                raise LogCorrupted(segment.path, file.size(), "the file ends before its last batch")
        except OSError as error:
            doing = f"cannot read {segment.path} at byte {part.offset}"
            raise translated(error, doing) from error
        return data

    def _file(self, path: str) -> OpenObject:
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
            file = self._opened(path)
            # An entry keeps its lines when the records that it carried are deleted.
            if file is None or (path.startswith(_ENTRIES) and _begins_with_lines(file, path)):
                del file  # or the traceback would keep it open
                raise SegmentMissing(path)
            self._files[path] = file
            # An evicted file closes with its last reader, so this does not disturb a read that is under way.
            while len(self._files) > self._files_max:
                self._files.popitem(last=False)
            return file

    def _opened(self, path: str) -> OpenObject | None:
        """Open a file; if the process has no free descriptor, close a cached file and try again."""
        while True:
            try:
                return self.store.open(path)
            except LogError as error:
                if not self._files or not is_scarce(error):
                    raise
            self._files.popitem(last=False)


def _begins_with_lines(file: OpenObject, path: str) -> bool:
    """Return True if an entry begins with its JSON lines, so that it carries no records."""
    first = bytearray(1)
    try:
        file.read_into(memoryview(first), 0)
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error
    return first == b"{"


@lru_cache(maxsize=_DICTIONARIES_MAX)
def _decoded(prefix: bytes) -> _Dictionaries:
    """Return the dictionaries in a file's schema and dictionary messages.

    Most files of a log have the same messages, so the result is cached by content.
    """
    stream = pa.ipc.open_stream(pa.py_buffer(prefix + _DICTIONARY_TAIL))
    batch = stream.read_next_batch()
    return _Dictionaries(
        entity_types=tuple(batch.column("entity_type").dictionary.to_pylist()),
        columns=Dictionary.of(batch.column("changed").values.dictionary),
    )


def _check(segment: SegmentRef, part: _Part, data: bytes | npt.NDArray[np.uint8]) -> None:
    if crc32c(data) != part.crc:
        raise LogCorrupted(segment.path, part.offset, f"checksum of {part.name}")


class _Buffers:
    """The buffers of a head, by their number in the record batch message."""

    __slots__ = ("_memory", "_places")

    def __init__(self, data: memoryview) -> None:
        self._memory = data
        self._places = arrow_ipc.batch_buffers(self._memory, arrow_ipc.outline(self._memory))

    def buffer(self, number: int) -> memoryview:
        """Return a buffer's bytes."""
        offset, length = self._places[number]
        return self._memory[offset : offset + length]

    def validity(self, number: int) -> memoryview | None:
        """Return the validity bitmap in a buffer; None if the message omits it."""
        return self.buffer(number) if self._places[number][1] else None

    def check_bodies(self, ref: BatchRef) -> None:
        """Check that the message's metadata has the bodies at the computed places, from which they are read."""
        starts = list(accumulate(ref.body_lengths[:-1], initial=ref.head_length))
        name = misplaced_body(self._places, ref.rows, starts, ref.body_nullable)
        if name is not None:
            at = ref.offset + starts[BODY_COLUMNS.index(name)]
            fault = (
                f"the parts of the batch's {name} do not have the places that the format requires"
            )
            raise LogCorrupted(ref.segment.path, at, fault)

    def array(self, column: int, dtype: np.dtype[Any], rows: int) -> npt.NDArray[Any]:
        """Return the values of one of the first six columns, which have fixed widths."""
        return np.frombuffer(self._memory, dtype, rows, self._places[2 * column + 1][0])


def _body(memory: memoryview, rows: int, *, nullable: bool) -> Texts:
    """Return a body column from its bytes: optional validity bitmap, offsets, data; each padded to 8 bytes."""
    offsets, values = body_places(rows, nullable=nullable)
    validity = memory[:offsets] if nullable else None
    return Texts(rows, validity, memory[offsets:values], memory[values:], _BINARY)
