"""Makes the key files that a log lacks, and deletes those without a record left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import LogCorrupted
from tailrace_server.wal.base.key_files import (
    KEYS,
    key_file,
    key_file_path,
    needless_numbers,
    numbers_of,
    whole_numbers,
)
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path


def key_file_is_due(log: CommitLog) -> bool:
    """Return whether the newest key file that can be made is missing; one look at the store."""
    whole = whole_numbers(log.view)
    return bool(whole) and not log.store.exists(key_file_path(whole[-1]))


def make_key_files(path: Path) -> int:
    """Make the key files that a catalog's log lacks; return how many. Any process may, at any time.

    A file's bytes follow from the records alone, so it does not matter who of several comes first.

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
    """Delete the key files of which all records were trimmed; return their paths."""
    paths = map(key_file_path, needless_numbers(log.view, log.store))
    return [path for path in paths if log.store.delete(path)]
