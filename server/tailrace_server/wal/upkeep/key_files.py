"""Makes the key files that a log lacks, and deletes those without a record left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.base.key_files import (
    KEYS,
    key_file,
    key_file_path,
    needless_numbers,
    numbers_of,
    whole_numbers,
)
from tailrace_server.wal.segment.reader import BatchReader
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
        LogCorrupted: A head is damaged. So SegmentMissing, where a compaction or a trim came first.
        LogFull: No room.
    """
    log = CommitLog.open(path)
    missing = sorted({*whole_numbers(log.view)} - {*numbers_of(log.store)})
    if missing:
        log.store.make_folder(KEYS)
    with BatchReader(path) as reader:
        for number in missing:
            log.store.create(key_file_path(number), key_file(log.view, reader, number))
    return len(missing)


def delete_needless_key_files(log: CommitLog) -> list[str]:
    """Delete the key files of which all records were trimmed; return their paths."""
    paths = map(key_file_path, needless_numbers(log.view, log.store))
    return [path for path in paths if log.store.delete(path)]
