"""Key files: indexes that say in which batches a key may have records, one small file for each 2^20 records.

File n covers the records with the running numbers from n · 2^20 up to (n + 1) · 2^20, exclusive. Neither a
compaction nor a trim changes a running number, so a file is written once and stays valid. The format of
``keys/<20 digits of n>.keys``::

    {"format_version":1,"uuid":…,"last_version":…,"timestamp":…,"counts":[…],"crc32c":[…]}⏎
    crc32c …⏎
    page 0 │ page 1 │ …  page 1023      entries of 4 bytes, little-endian, rising in each page

    key hash   │ 10 bits: page │ 24 bits │ 30 bits that are ignored
    entry                      │ 24 bits │ 8 bits: block, which 4,096 of the records

``counts`` and ``crc32c`` have the number of entries and the checksum of each page. ``last_version`` and
``timestamp`` are the version of the last record and its commit timestamp. Each DATA record has an entry; equal
entries are written once. A truncate has the key hash 0. So one page of about 4 KB says in which blocks of a
million records a key may be. One of 16,000 answers is a false positive, which costs the reading of a batch.

Some or all of these files may be missing: then the heads of batches are read. ``KeyPlaces`` caches the sorted
key hashes of such batches, so that the next look-up costs a binary search in each batch. Batches never change,
so cached hashes stay valid. If there are too many, those of the least recently used batch are evicted.
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
    from tailrace_server.wal.segment.refs import BatchRef, HeadMark
    from tailrace_server.wal.state.view import LogView

KEYS: Final = "keys"
"""Folder of the key files."""
_SUFFIX: Final = ".keys"
_FORMAT_VERSION: Final = 1
_ROW_BITS: Final = 20
"""A file covers 2 to this power records."""
_PAGE_BITS: Final = 10
_HASH_BITS: Final = 24
_BLOCK_BITS: Final = 8
_LINES_BYTES: Final = 1 << 15
"""Bytes to read for the two lines of a file, which are shorter than this."""
_KEPT: Final = 256
"""The most files whose descriptions (their lines) a process caches, 12 KB each."""
_log = logging.getLogger("tailrace.wal")


class KeyFileDocument(Struct, frozen=True):
    """The JSON line at the beginning of a key file."""

    format_version: int
    uuid: UUID
    last_version: int
    timestamp: int
    counts: list[int]
    crc32c: list[int]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(KeyFileDocument).decode


def key_file_path(number: int) -> str:
    """Return the path of the key file with a number, relative to the catalog's folder."""
    return f"{KEYS}/{number:020d}{_SUFFIX}"


def numbers_of(store: ObjectStore) -> list[int]:
    """Return the numbers of the existing key files, in ascending order."""
    stems = [name.removesuffix(_SUFFIX) for name in store.names(KEYS) if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def whole_numbers(view: LogView) -> range:
    """Return the numbers of the key files that can be made: all their records are retained and published."""
    return range(-(-view.first_row >> _ROW_BITS), view.end_row >> _ROW_BITS)


def number_of_row(row: int) -> int:
    """Return the number of the key file that covers a record, given by its running number."""
    return row >> _ROW_BITS


def rows_of_number(number: int) -> range:
    """Return the running numbers of the records that a key file covers."""
    return range(number << _ROW_BITS, (number + 1) << _ROW_BITS)


def needless_numbers(view: LogView, store: ObjectStore) -> list[int]:
    """Return the numbers of the existing key files whose records have all been trimmed."""
    return [each for each in numbers_of(store) if (each + 1) << _ROW_BITS <= view.first_row]


def key_file(view: LogView, reader: BatchReader, number: int) -> bytes:
    """Return the bytes of the key file with a number; they depend on its records only.

    Raises:
        LogCorrupted: A head is damaged.
        SegmentMissing: A compaction or a trim has removed a segment since the view was made.
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
        # One number for each record: page and 24 further bits of the hash, then the block. Sorting it yields
        # the pages, and the entries within each.
        blocks = (rows[inside] - first) >> (_ROW_BITS - _BLOCK_BITS)
        shift = np.uint64(64 - _PAGE_BITS - _HASH_BITS)
        hashes = (head.key_hashes[inside] >> shift) << np.uint64(_BLOCK_BITS)
        parts.append(np.unique(hashes | blocks.astype(np.uint64)))
    entries = np.unique(np.concatenate(parts))
    # The bits above an entry's 32 are its page. So sorted entries are grouped by page.
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
    """The description of a key file: its JSON line, and where its pages are."""

    path: str
    document: KeyFileDocument
    starts: npt.NDArray[np.int64]
    """Offset of each page in the file, and of the end of the last page."""

    def fits(self, view: LogView, number: int) -> bool:
        """Return True if the file was made from this log's records.

        A log that was restored from a copy may have a file that was made from other records.
        """
        document = self.document
        ref = view.batch(view.find_row(((number + 1) << _ROW_BITS) - 1))
        return (
            document.uuid == view.uuid
            and ref.first.version <= document.last_version <= ref.last.version
            and view.known_timestamp_of(document.last_version) == document.timestamp
        )

    def blocks(self, file: OpenObject, hashes: npt.NDArray[np.uint64]) -> set[int]:
        """Return the blocks in which records with any of some key hashes may be.

        Args:
            file: The open key file.
            hashes: The key hashes, shape (n,).

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
            # All entries with the 24 bits of the hash are neighbours in the page: they differ in the block
            # only.
            entries = data.view("<u4")
            part = (each >> (64 - _PAGE_BITS - _HASH_BITS)) & ((1 << _HASH_BITS) - 1)
            low = part << _BLOCK_BITS
            begin = int(np.searchsorted(entries, np.uint32(low), "left"))
            end = int(np.searchsorted(entries, np.uint32(low | (1 << _BLOCK_BITS) - 1), "right"))
            found.update((entries[begin:end] & np.uint32((1 << _BLOCK_BITS) - 1)).tolist())
        return found


class KeyFiles:
    """Reads key files, and caches their descriptions. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty cache."""
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
        """Yield the places of batches that may have records of some keys, in the order of the log.

        The second value is True if a key file says so. It is False for each batch without a key file: the
        caller has to check that batch itself.

        Args:
            view: The log.
            reader: Reads the log's files.
            places: Places of the batches to search.
            hashes: Hashes of the keys, shape (n,).
            is_hashed_so: Returns True if the records of a range of versions, both inclusive, are hashed under
                the same name as ``hashes``. Otherwise the key file of these versions cannot be used.
        """
        if not len(places):
            return
        # A truncate concerns every key, and has the key hash 0: always search for it too.
        hashes = np.unique(np.append(hashes, np.uint64(0)))
        last = view.batch(places[-1])
        first_row, end_row = view.batch(places[0]).first_row, last.first_row + last.rows
        done = places.start
        for number in range(first_row >> _ROW_BITS, (end_row - 1 >> _ROW_BITS) + 1):
            start = number << _ROW_BITS
            first = view.find_row(max(start, first_row))
            stop = view.find_row(min(start + (1 << _ROW_BITS), end_row) - 1) + 1
            # 1. Ask the file, if it can exist and its hashes are comparable.
            blocks = None
            if number in whole_numbers(view) and is_hashed_so(
                view.batch(first).first.version, view.batch(stop - 1).last.version
            ):
                blocks = self._blocks(view, reader.store, number, hashes)
            # 2. Without a file, yield all its batches; with a file, only those that have records of a block.
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
            # 3. A batch may extend into the records of the next file. So unless it was yielded, the next file
            #    may yield it too.
            done = max(done, stop - 1 if blocks is not None else stop)

    def _blocks(
        self, view: LogView, store: ObjectStore, number: int, hashes: npt.NDArray[np.uint64]
    ) -> set[int] | None:
        """Return the blocks that a key file names for some hashes; None if there is no usable file."""
        path = key_file_path(number)
        opened = store.open(path)
        if opened is None:
            return None
        key = (view.uuid, number, store.stamp(path))
        with self._lock:
            is_known = key in self._known
            if is_known:
                self._known.move_to_end(key)
            file = self._known.get(key)
        try:
            if not is_known:
                file = read_key_file(path, opened)
                self._keep(key, file)
            return file.blocks(opened, hashes) if file and file.fits(view, number) else None
        except (LogCorrupted, LogUnreadable) as error:
            # A key file only saves work, so a damaged one is no error here; `log verify` reports it as well.
            _log.warning(
                "read without the key file: %s; delete the file, and it is made again", str(error)
            )
            self._keep(key, None)
            return None

    def _keep(self, key: Hashable, file: _KeyFile | None) -> None:
        with self._lock:
            self._known[key] = file
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)


def read_key_file(path: str, file: OpenObject) -> _KeyFile:
    """Read the description of a key file from its first two lines.

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
        raise LogUnreadable(
            f"{path} has format {document.format_version}, which is newer than this tailrace; upgrade "
            "it"
        )
    pages = 1 << _PAGE_BITS
    if len(document.counts) != pages or len(document.crc32c) != pages:
        raise LogCorrupted(path, 0, f"it does not have {pages} pages")
    starts = end + 4 * np.concatenate([[0], np.cumsum(document.counts)])
    return _KeyFile(path, document, starts)


def check_key_files(view: LogView, reader: BatchReader) -> Iterator[LogCorrupted]:
    """Yield the faults of a log's key files, by comparing each file with one that is made anew."""
    whole = whole_numbers(view)
    for number in numbers_of(reader.store):
        if number not in whole:
            continue  # trimmed in part
        path = key_file_path(number)
        found = reader.store.read(path)
        if found is not None and found.data != key_file(view, reader, number):
            yield LogCorrupted(
                path, 0, "it does not match its records; delete the file, and it is made again"
            )


KEY_FILES: Final = KeyFiles()
"""The cache of key files that all readers in the process share."""

_KEYS_MAX: Final = 1 << 21
"""The most hashes that a process caches: 16 MiB, enough for two million records after the bases."""
FEW_KEYS: Final = 256
"""The most keys for which single batches are checked; for more keys, reading all heads is as fast."""


class KeyPlaces:
    """A cache of the sorted key hashes of batches. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._lock = threading.Lock()
        self._hashes: OrderedDict[Hashable, npt.NDArray[np.uint64]] = OrderedDict()
        self._count = 0

    def may_hold(
        self, log: Hashable, reader: BatchReader, ref: BatchRef, chosen: npt.NDArray[np.uint64]
    ) -> bool:
        """Return True if a batch may have records of some keys, or a truncate, which removes all rows.

        Args:
            log: Identifies the log.
            reader: Reads the batch's head if its hashes are not cached.
            ref: The batch.
            chosen: Hashes of the keys, under the name that the entity type has in the batch.

        Raises:
            LogCorrupted: The head is damaged.
            SegmentMissing: The segment was deleted.
        """
        if len(chosen) > FEW_KEYS:
            return True
        mark = (ref.first_row, ref.rows, ref.crc_head)
        hashes = self._known(log, mark)
        if hashes is None:
            head = reader.head(ref)
            hashes = np.unique(head.key_hashes[head.areas == Area.DATA])
            self._keep((log, mark), hashes)
        return _has_any(hashes, chosen)

    def lacks(self, log: Hashable, mark: HeadMark, chosen: npt.NDArray[np.uint64]) -> bool:
        """Return True if it is cached that a batch has no records of some keys, and no truncate."""
        hashes = self._known(log, mark)
        return hashes is not None and not _has_any(hashes, chosen)

    def _known(self, log: Hashable, mark: HeadMark) -> npt.NDArray[np.uint64] | None:
        with self._lock:
            hashes = self._hashes.get((log, mark))
            if hashes is not None:
                self._hashes.move_to_end((log, mark))
            return hashes

    def _keep(self, key: Hashable, hashes: npt.NDArray[np.uint64]) -> None:
        with self._lock:
            if key in self._hashes:
                return
            self._hashes[key] = hashes
            self._count += len(hashes)
            while self._count > _KEYS_MAX and len(self._hashes) > 1:
                self._count -= len(self._hashes.popitem(last=False)[1])


def _has_any(hashes: npt.NDArray[np.uint64], chosen: npt.NDArray[np.uint64]) -> bool:
    """Return True if sorted hashes include one of some keys, or that of a truncate, which has no key."""
    if not len(hashes):
        return False
    if hashes[0] == 0:
        return True
    places = hashes.searchsorted(chosen)
    if len(chosen) == 1:  # the usual read of one row, at a third of the time
        place = places.item(0)
        return place < len(hashes) and hashes.item(place) == chosen.item(0)
    return bool((hashes[np.minimum(places, len(hashes) - 1)] == chosen).any())


KEY_PLACES: Final = KeyPlaces()
"""The cache of key hashes that all readers in the process share."""


def key_file_is_due(log: CommitLog) -> bool:
    """Return True if the newest key file that can be made is missing; costs one system call."""
    whole = whole_numbers(log.view)
    return bool(whole) and not log.store.exists(key_file_path(whole[-1]))


def make_key_files(path: Path) -> int:
    """Make the missing key files of a catalog's log; return their number.

    Any process may call this at any time. The bytes of a file depend on its records only, so several processes
    may make the same file.

    Raises:
        LogCorrupted: A head is damaged or missing.
        LogFull: The device has no room.
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
            # A compaction has moved the records, or a trim has removed them: begin again with the newest view.
            log.refresh()
            if gone.path in log.view.segment_paths():
                raise LogCorrupted(gone.path, 0, "the segment is missing") from gone
        else:
            return made


def delete_needless_key_files(log: CommitLog) -> list[str]:
    """Delete the key files whose records have all been trimmed; return the paths of these files."""
    paths = map(key_file_path, needless_numbers(log.view, log.store))
    return [path for path in paths if log.store.delete(path)]
