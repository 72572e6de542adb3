"""Indexes of the records of a key: one small file for each 2^20 records, made once and never changed.

File n is about the records with the running numbers from n · 2^20 up to (n + 1) · 2^20. Neither compaction nor
trim changes a running number, so a file stays true for as long as it exists. ``keys/<20 digits of n>.keys``::

    {"format_version":1,"uuid":…,"last_version":…,"timestamp":…,"counts":[…],"crc32c":[…]}⏎
    crc32c …⏎
    page 0 │ page 1 │ …  page 1023      entries of 4 bytes, little-endian, rising in each page

    key hash   │ 10 bits: page │ 24 bits │ 30 bits that are not looked at
    entry                      │ 24 bits │ 8 bits: which 4,096 of the records

``counts`` and ``crc32c`` are of the pages, ``last_version`` and ``timestamp`` of the last record's version.
There is an entry for each DATA record, equal ones once; a truncate has the hash 0. So one page of 4 KB says
where a key may be among a million records; of 16,000 answers one is wrong, and costs the look at a batch.

Some of these files, or all, may be missing: then heads are read. ``KeyPlaces`` caches the sorted key hashes of
such batches, so that the next look-up costs a binary search in each batch. Batches never change, so a cached
entry stays true; when there are too many entries, the least recently used one is evicted.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec
import numpy as np
from msgspec import Struct

from tailrace.criteria import Area
from tailrace.errors import LogCorrupted, LogUnreadable
from tailrace_server.wal.files.sealed import crc32c, seal, unseal
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.wal.files.object_store import ObjectStore, OpenObject
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

KEYS: Final = "keys"
"""The folder."""
_SUFFIX: Final = ".keys"
_FORMAT_VERSION: Final = 1
_ROW_BITS: Final = 20
"""A file is about so many records, as a power of two."""
_PAGE_BITS: Final = 10
_HASH_BITS: Final = 24
_BLOCK_BITS: Final = 8
_LINES_BYTES: Final = 1 << 15
"""The two lines of a file have fewer."""
_KEPT: Final = 256
"""Files whose lines a process keeps, 12 KB each."""
_log = logging.getLogger("tailrace.wal")


class KeyFileDocument(Struct, frozen=True):
    """The JSON line at the beginning of a file."""

    format_version: int
    uuid: UUID
    last_version: int
    timestamp: int
    counts: list[int]
    crc32c: list[int]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(KeyFileDocument).decode


def key_file_path(number: int) -> str:
    """Return the path of a file, relative to the catalog's folder."""
    return f"{KEYS}/{number:020d}{_SUFFIX}"


def numbers_of(store: ObjectStore) -> list[int]:
    """Return the numbers of the existing files, rising."""
    stems = [name.removesuffix(_SUFFIX) for name in store.names(KEYS) if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def whole_numbers(view: LogView) -> range:
    """Return the numbers of the files that can be made: all their records are retained and published."""
    return range(-(-view.first_row >> _ROW_BITS), view.end_row >> _ROW_BITS)


def number_of_row(row: int) -> int:
    """Return the number of the file that covers a record, given by its running number."""
    return row >> _ROW_BITS


def rows_of_number(number: int) -> range:
    """Return the running numbers of the records that a file covers."""
    return range(number << _ROW_BITS, (number + 1) << _ROW_BITS)


def needless_numbers(view: LogView, store: ObjectStore) -> list[int]:
    """Return the numbers of the files all of whose records were trimmed."""
    return [each for each in numbers_of(store) if (each + 1) << _ROW_BITS <= view.first_row]


def key_file(view: LogView, reader: BatchReader, number: int) -> bytes:
    """Return the bytes of a file; they depend on its records only.

    Raises:
        LogCorrupted: A head is damaged.
        SegmentMissing: A compaction or a trim came first.
    """
    first, end = number << _ROW_BITS, (number + 1) << _ROW_BITS
    parts = []
    last_version = 0
    for place in range(view.find_row(first), view.find_row(end - 1) + 1):
        head = reader.head(view.batch(place))
        rows = head.ref.first_row + np.arange(head.ref.rows)
        inside = (rows >= first) & (rows < end)
        last_version = int(head.versions[inside][-1])
        inside &= head.areas == Area.DATA
        blocks = (rows[inside] - first) >> (_ROW_BITS - _BLOCK_BITS)
        shift = np.uint64(64 - _PAGE_BITS - _HASH_BITS)
        hashes = (head.key_hashes[inside] >> shift) << np.uint64(_BLOCK_BITS)
        parts.append(np.unique(hashes | blocks.astype(np.uint64)))
    entries = np.unique(np.concatenate(parts))
    # Rising entries are rising pages: the page is what stands above the bits that are written.
    bits = np.uint64(_HASH_BITS + _BLOCK_BITS)
    pages = np.searchsorted(entries, np.arange((1 << _PAGE_BITS) + 1, dtype=np.uint64) << bits)
    data = (entries & ((np.uint64(1) << bits) - np.uint64(1))).astype("<u4")
    document = KeyFileDocument(
        _FORMAT_VERSION,
        view.uuid,
        last_version,
        view.timestamp_of(last_version),
        np.diff(pages).tolist(),
        [crc32c(data[pages[page] : pages[page + 1]]) for page in range(1 << _PAGE_BITS)],
    )
    return seal(_encode(document))[0] + data.tobytes()


@dataclass(frozen=True, slots=True)
class _KeyFile:
    """The description of a file, without its pages."""

    path: str
    document: KeyFileDocument
    starts: npt.NDArray[np.int64]
    """Bytes at which the pages begin, and the last one ends."""

    def fits(self, view: LogView, number: int) -> bool:
        """Return True if the file was made from the log's records; a restored copy may have files of others."""
        document = self.document
        ref = view.batch(view.find_row(((number + 1) << _ROW_BITS) - 1))
        return (
            document.uuid == view.uuid
            and ref.first.version <= document.last_version <= ref.last.version
            and view.known_timestamp_of(document.last_version) == document.timestamp
        )

    def blocks(self, file: OpenObject, hashes: npt.NDArray[np.uint64]) -> set[int]:
        """Return the blocks of the file's records in which some hashes may be.

        Raises:
            LogCorrupted: A page is damaged.
        """
        found: set[int] = set()
        for each in hashes.tolist():
            page = each >> (64 - _PAGE_BITS)
            start, stop = self.starts[page : page + 2].tolist()
            data = np.empty(stop - start, np.uint8)
            if file.read_into(data.data, start) < len(data) or (
                crc32c(data) != self.document.crc32c[page]
            ):
                raise LogCorrupted(self.path, start, f"checksum of page {page}")
            entries = data.view("<u4")
            part = (each >> (64 - _PAGE_BITS - _HASH_BITS)) & ((1 << _HASH_BITS) - 1)
            low = part << _BLOCK_BITS
            begin = int(np.searchsorted(entries, np.uint32(low), "left"))
            end = int(np.searchsorted(entries, np.uint32(low | (1 << _BLOCK_BITS) - 1), "right"))
            found.update((entries[begin:end] & np.uint32((1 << _BLOCK_BITS) - 1)).tolist())
        return found


class KeyFiles:
    """The key files that a process reads, with a cache of their descriptions. Thread-safe."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, _KeyFile | None] = OrderedDict()

    def places(
        self,
        view: LogView,
        reader: BatchReader,
        places: range,
        hashes: npt.NDArray[np.uint64],
        is_hashed_so: Callable[[int, int], bool],
    ) -> Iterator[tuple[int, bool]]:
        """Yield the places of batches that may have records of some keys; True with a place if a file says so.

        Args:
            view: The log.
            reader: Reads the log's files.
            places: The batches to choose from.
            hashes: Hashes of the keys, shape (n,).
            is_hashed_so: Returns True if the records of some versions, inclusive, are hashed like ``hashes``.
        """
        if not len(places):
            return
        # A truncate has no key and is of all.
        hashes = np.unique(np.append(hashes, np.uint64(0)))
        last = view.batch(places[-1])
        first_row, end_row = view.batch(places[0]).first_row, last.first_row + last.rows
        done = places.start
        for number in range(first_row >> _ROW_BITS, (end_row - 1 >> _ROW_BITS) + 1):
            start = number << _ROW_BITS
            first = view.find_row(max(start, first_row))
            stop = view.find_row(min(start + (1 << _ROW_BITS), end_row) - 1) + 1
            blocks = None
            if number in whole_numbers(view) and is_hashed_so(
                view.batch(first).first.version, view.batch(stop - 1).last.version
            ):
                blocks = self._blocks(view, reader.store, number, hashes)
            if blocks is None:
                for place in range(max(first, done), stop):
                    yield place, False
            for block in sorted(blocks or ()):
                row = start + (block << (_ROW_BITS - _BLOCK_BITS))
                end = row + (1 << (_ROW_BITS - _BLOCK_BITS))
                for place in range(
                    max(view.find_row(row), first, done), min(view.find_row(end - 1) + 1, stop)
                ):
                    yield place, True
                    done = place + 1
            # A batch may lie across the border of two files, and what the first says is not all of it.
            done = max(done, stop - 1 if blocks is not None else stop)

    def _blocks(
        self, view: LogView, store: ObjectStore, number: int, hashes: npt.NDArray[np.uint64]
    ) -> set[int] | None:
        """Return the blocks of a file in which some hashes may be; None if there is no usable file."""
        path = key_file_path(number)
        opened = store.open(path)
        if opened is None:
            return None
        key = (view.uuid, number, store.stamp(path))
        with self._lock:
            is_known = key in self._known
            file = self._known.get(key)
        try:
            if not is_known:
                file = read_key_file(path, opened)
                self._keep(key, file)
            return file.blocks(opened, hashes) if file and file.fits(view, number) else None
        except (LogCorrupted, LogUnreadable) as error:
            # The file only saves work. `log verify` names the fault too.
            _log.warning(
                "read without the key file: %s; delete it, and it is made anew", str(error)
            )
            self._keep(key, None)
            return None

    def _keep(self, key: Hashable, file: _KeyFile | None) -> None:
        with self._lock:
            self._known[key] = file
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)


def read_key_file(path: str, file: OpenObject) -> _KeyFile:
    """Return the description of a file, from its lines.

    Raises:
        LogCorrupted: The lines are damaged.
        LogUnreadable: The file has a newer format.
    """
    data = memoryview(bytearray(min(_LINES_BYTES, file.size())))
    file.read_into(data, 0)
    text = data.tobytes()
    end = text.find(b"\n", text.find(b"\n") + 1) + 1
    line, _ = unseal(path, text[:end])
    try:
        document = _decode(line)
    except msgspec.DecodeError as error:
        raise LogCorrupted(path, 0, str(error)) from None
    if document.format_version > _FORMAT_VERSION:
        raise LogUnreadable(f"{path} has the format {document.format_version}, newer than ours")
    pages = 1 << _PAGE_BITS
    if len(document.counts) != pages or len(document.crc32c) != pages:
        raise LogCorrupted(path, 0, f"it has not {pages} pages")
    starts = end + 4 * np.concatenate([[0], np.cumsum(document.counts)])
    return _KeyFile(path, document, starts)


def check_key_files(view: LogView, reader: BatchReader) -> Iterator[LogCorrupted]:
    """Yield the faults of a log's key files; each file is compared with one made from its records."""
    whole = whole_numbers(view)
    for number in numbers_of(reader.store):
        if number not in whole:
            continue  # trimmed in part
        path = key_file_path(number)
        found = reader.store.read(path)
        if found is not None and found.data != key_file(view, reader, number):
            yield LogCorrupted(
                path, 0, "it is not what its records give; delete it, and it is made anew"
            )


KEY_FILES: Final = KeyFiles()
"""Those of the process."""

_KEYS_MAX: Final = 1 << 21
"""Hashes that a process caches: 16 MiB, enough for two million records after bases."""
FEW_KEYS: Final = 256
"""The most keys that are looked up batch by batch; for more keys a pass over the heads is as fast."""


class KeyPlaces:
    """A cache of sorted key hashes, by batch. Thread-safe."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._hashes: OrderedDict[Hashable, npt.NDArray[np.uint64]] = OrderedDict()
        self._count = 0

    def may_hold(
        self, log: Hashable, reader: BatchReader, ref: BatchRef, chosen: npt.NDArray[np.uint64]
    ) -> bool:
        """Return True if a batch may have records of some keys, or a record that removes all rows.

        Args:
            log: Identifies the log.
            reader: Reads the batch's head if its hashes are not cached.
            ref: The batch.
            chosen: Hashes of the keys, under the name that the batch uses.

        Raises:
            LogCorrupted, SegmentMissing: As ``BatchReader.head``.
        """
        if len(chosen) > FEW_KEYS:
            return True
        # A log that was restored from a copy may have another batch in the place of one that was read.
        key = (log, ref.key, ref.crc_head)
        with self._lock:
            hashes = self._hashes.get(key)
            if hashes is not None:
                self._hashes.move_to_end(key)
        if hashes is None:
            head = reader.head(ref)
            hashes = np.unique(head.key_hashes[head.areas == Area.DATA])
            self._keep(key, hashes)
        if not len(hashes):
            return False
        if hashes[0] == 0:
            return True  # a truncate has no key
        places = np.minimum(np.searchsorted(hashes, chosen), len(hashes) - 1)
        return bool((hashes[places] == chosen).any())

    def _keep(self, key: Hashable, hashes: npt.NDArray[np.uint64]) -> None:
        with self._lock:
            if key in self._hashes:
                return
            self._hashes[key] = hashes
            self._count += len(hashes)
            while self._count > _KEYS_MAX and len(self._hashes) > 1:
                self._count -= len(self._hashes.popitem(last=False)[1])


KEY_PLACES: Final = KeyPlaces()
"""Those of the process."""


def key_file_is_due(log: CommitLog) -> bool:
    """Return True if the newest key file that can be made is missing; costs one look at the store."""
    whole = whole_numbers(log.view)
    return bool(whole) and not log.store.exists(key_file_path(whole[-1]))


def make_key_files(path: Path) -> int:
    """Make the missing key files of a catalog's log; return their number. Any process may call it, at any time.

    A file's bytes depend on the records only, so several processes may make the same file.

    Raises:
        LogCorrupted: A head is damaged or missing.
        LogFull: No room.
    """
    log, made = CommitLog.open(path), 0
    while True:
        missing = sorted({*whole_numbers(log.view)} - {*numbers_of(log.store)})
        if missing:
            log.store.make_folder(KEYS)
        try:
            with BatchReader(path) as reader:
                for number in missing:
                    log.store.create(key_file_path(number), key_file(log.view, reader, number))
                    made += 1
        except SegmentMissing as gone:
            # A compaction or a trim came first: the newest view has the records elsewhere, or not at all.
            log.refresh()
            if gone.path in log.view.segment_paths():
                raise LogCorrupted(gone.path, 0, "the segment is missing") from gone
        else:
            return made


def delete_needless_key_files(log: CommitLog) -> list[str]:
    """Delete the key files whose records were all trimmed; return the paths of these files."""
    paths = map(key_file_path, needless_numbers(log.view, log.store))
    return [path for path in paths if log.store.delete(path)]
