"""Reading batches of damaged and missing files. Sound ones: test_writer.py and test_carried.py beside this."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.files.documents import ENTRIES
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import without_records
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import write, write_files

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.segment.refs import BatchRef


def only_batch(log_root: Path) -> BatchRef:
    write(log_root, "shop", 1)
    return CommitLog.open(log_root / "shop").view.batch(0)


def test_a_file_that_ends_too_early_says_where(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    ref = only_batch(log_root)
    end = ref.offset + ref.head_length - 1
    os.truncate(log_root / "shop" / ref.segment.path, end)
    with BatchReader(log_root / "shop") as reader, pytest.raises(LogCorrupted, match=f"{end}"):
        reader.head(ref)


def test_a_file_that_is_open_is_read_though_it_was_deleted_and_missed_by_the_next_reader(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    ref = only_batch(log_root)
    with BatchReader(log_root / "shop") as reader:
        versions = reader.head(ref).versions.tolist()
        (log_root / "shop" / ref.segment.path).unlink()
        assert reader.head(ref).versions.tolist() == versions
    with BatchReader(log_root / "shop") as reader, pytest.raises(SegmentMissing):
        reader.head(ref)


def test_a_thread_that_reads_after_the_close_leaves_no_file_open(log_root: Path) -> None:
    ref = only_batch(log_root)
    reader = BatchReader(log_root / "shop")
    reader.close()
    assert len(reader.head(ref).versions)
    opened = {
        os.path.realpath(f"/proc/self/fd/{descriptor}")
        for descriptor in os.listdir("/proc/self/fd")
    }
    assert str(log_root / "shop" / ref.segment.path) not in opened


def test_records_that_their_entry_carries_no_more_are_missing(log_root: Path) -> None:
    ref = only_batch(log_root)
    assert ref.segment.path.startswith(f"{ENTRIES}/")
    store = LocalFiles(log_root / "shop")
    found = store.read(ref.segment.path) or pytest.fail("no entry")
    store.replace(ref.segment.path, without_records(found.data))
    with BatchReader(log_root / "shop") as reader, pytest.raises(SegmentMissing):
        reader.head(ref)


def test_a_batch_is_read_from_bytes_that_are_in_memory_already(log_root: Path) -> None:
    ref = only_batch(log_root)
    path = log_root / "shop" / ref.segment.path
    data = path.read_bytes()
    path.unlink()
    with BatchReader(log_root / "shop") as reader:
        assert reader.head(ref, data).primary_keys.to_pylist()[-1] == "1-"
        assert reader.texts(ref, ["before"], data)["before"].array.to_pylist()[-1] == b'{"id":"1-"}'
