"""The rules by which a log's state moves, each broken once.

Real logs: test_commit_log.py. Damaged files: ../test_damage.py. A checkpoint that is adopted:
../upkeep/test_retention.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace_server.wal.files.documents import CommitEntry, PendingSegment, ReadEntry
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.state import LogState, batch_columns, carried_batch
from tests.server.wal.logs import write, write_files

if TYPE_CHECKING:
    from pathlib import Path

OTHER = UUID("00000000-0000-4000-8000-000000000001")


def entry_of(log: CommitLog, number: int) -> ReadEntry:
    return log.read_entry(number) or pytest.fail("no entry")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 4}, "number is 4, but the chain requires 2"),
        ({"previous_crc32c": 1}, "previous_crc32c is 1, but the chain requires"),
        ({"epoch": 2}, "epoch is 2, but the chain requires 1"),
        ({"timestamp": 0}, "timestamp 0 is not above the previous one"),
        ({"first_version": 2}, "version 2 follows 0"),
        ({"last_version": 0}, "version 1 follows 0"),
    ],
)
def test_an_entry_that_does_not_go_on_is_refused_and_moves_nothing(
    log_root: Path, change: dict[str, Any], message: str
) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    state = LogState("shop", log.uuid)
    opened, committed = entry_of(log, 1), entry_of(log, 2)
    state.apply(opened.path, opened.entry, opened.crc)
    wrong = msgspec.structs.replace(committed.entry, **change)
    with pytest.raises(LogCorrupted, match=message):
        state.apply(committed.path, wrong, committed.crc)
    with pytest.raises(CatalogReplaced):
        state.apply(
            committed.path, msgspec.structs.replace(committed.entry, uuid=OTHER), committed.crc
        )
    state.apply(committed.path, committed.entry, committed.crc)
    assert (state.last_version, state.end_row) == (1, log.state.end_row)


def test_a_checkpoint_gives_back_the_state_that_it_was_made_of(log_root: Path) -> None:
    write(log_root, "shop", 3)
    state = CommitLog.open(log_root / "shop").state
    state.pending = (PendingSegment("segments/1/p.arrow", rows=3, bytes=7, crc32c=1),)
    header, body = state.to_checkpoint(timestamp=9)
    again = LogState.from_checkpoint("c", "shop", header, body, crc=5)
    assert (again.checkpoint, again.checkpoint_crc, again.checkpoint_entry) == (1, 5, 4)
    assert again.to_checkpoint(timestamp=9)[1] == body
    for damaged in (
        msgspec.structs.replace(body, batches={**body.batches, "rows": msgspec.Raw(b"[1]")}),
        msgspec.structs.replace(body, commits={"timestamp": body.commits["timestamp"]}),
    ):
        with pytest.raises(LogCorrupted, match="its tables contradict each other"):
            LogState.from_checkpoint("c", "shop", header, damaged, crc=5)


def test_only_an_entrys_own_single_batch_is_carried(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 1)
    write_files(monkeypatch)
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    opened, carrying, reopened, naming = (entry_of(log, number) for number in range(1, 5))
    assert carried_batch(carrying) == log.view.batch(0)
    assert carried_batch(opened) is carried_batch(reopened) is carried_batch(naming) is None
    entry = carrying.entry
    assert isinstance(entry, CommitEntry)
    (segment,) = entry.segments
    for numbers in ([], [1, 2], [1 << 63]):
        lists = {**segment.batches, "crc": [0], "rows": numbers}
        unsound = msgspec.structs.replace(
            entry, segments=[msgspec.structs.replace(segment, batches=lists)]
        )
        assert carried_batch(carrying._replace(entry=unsound)) is None


@pytest.mark.parametrize("lists", [{"a": [1]}, {"a": [1], "b": [1, 2]}, {"a": [1], "b": [1 << 63]}])
def test_columns_that_make_no_table_are_damage(lists: dict[str, list[int]]) -> None:
    with pytest.raises(LogCorrupted, match="a table's columns"):
        batch_columns("log/1.json", lists, ("a", "b"))
