"""A trimmed log keeps the state of its tables: at every version that it keeps, and at the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogFull, PositionCompacted
from tailrace.position import Position
from tailrace_server.wal.base import making
from tailrace_server.wal.base.making import base_is_due, make_base
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import trigger
from tailrace_server.wal.upkeep.process import run_if_due
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tests.server.wal.base.tables import naive, row_files, state, versions_of_bases
from tests.server.wal.logs import armed, remove, rows_of, upsert

if TYPE_CHECKING:
    from pathlib import Path

AFTER_GRACE = 10**15


@pytest.fixture
def due_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a base due after ten records, and no writer start a process for it."""
    monkeypatch.setattr(making, "_DUE_RECORDS", 10)
    monkeypatch.setattr(trigger, "base_is_due", lambda log: False)


def write_versions(root: Path, first: int, last: int) -> None:
    """Write versions that each set a key of their own and one that all set; every third removes a key."""
    with LogWriter.open(root, "shop") as writer:
        for number in range(first, last + 1):
            gone = [remove(str(number - 2))] if number % 3 == 0 else []
            writer.append([upsert(str(number)), upsert("all", number), *gone])
            if number % 2:
                writer.commit()


def test_state_stays_readable_from_the_version_before_the_oldest_on(log_root: Path) -> None:
    write_versions(log_root, 1, 9)
    catalog = log_root / "shop"
    records = rows_of(catalog)
    wanted = {version: naive(records, version, "order") for version in range(10)}
    for oldest, unreadable in ((4, 2), (7, 5)):
        assert trim(catalog, oldest, now=5) == Position(oldest, 0)
        delete_unnamed(catalog, AFTER_GRACE)
        assert versions_of_bases(log_root) == [oldest - 1]
        assert len(row_files(log_root)) == 1
        for version in range(oldest - 1, 10):
            assert state(log_root, version=version) == wanted[version]
        with pytest.raises(
            PositionCompacted, match="state can be read from that version on"
        ) as refused:
            state(log_root, version=unreadable)
        assert refused.value.oldest == Position(oldest - 1, 0)


def test_a_newer_base_stays_beside_the_one_that_the_log_begins_with(log_root: Path) -> None:
    write_versions(log_root, 1, 9)
    catalog = log_root / "shop"
    wanted = {version: naive(catalog, version, "order") for version in range(10)}
    make_base(catalog, 5, 8)
    trim(catalog, 4, now=6)
    assert versions_of_bases(log_root) == [3, 8]
    make_base(catalog, 7)
    assert versions_of_bases(log_root) == [3, 9]
    delete_unnamed(catalog, AFTER_GRACE)
    assert {version: state(log_root, version=version) for version in range(3, 10)} == {
        version: wanted[version] for version in range(3, 10)
    }
    assert trim(catalog, 99, now=8) == Position(10, 0)
    assert versions_of_bases(log_root) == [9]
    assert state(log_root, version=9) == wanted[9]
    write_versions(log_root, 10, 12)
    assert state(log_root)["all"].at == (12, 2)


def test_a_trim_that_has_no_room_for_the_base_leaves_the_log_as_it_was(log_root: Path) -> None:
    write_versions(log_root, 1, 5)
    catalog = log_root / "shop"
    with armed("base.before_rename=enospc"), pytest.raises(LogFull, match="--without-state"):
        trim(catalog, 4, now=5)
    assert CommitLog.open(catalog).view.oldest == Position(1, 0)
    assert versions_of_bases(log_root) == []
    assert row_files(log_root) == []
    assert state(log_root, version=2) == naive(catalog, 2, "order")
    with armed("base.before_rename=enospc"):
        assert trim(catalog, 4, now=5, keeps_state=False) == Position(4, 0)
    with pytest.raises(PositionCompacted, match="has no base"):
        state(log_root)


def test_a_trim_that_fails_behind_its_base_can_be_done_again(log_root: Path) -> None:
    write_versions(log_root, 1, 5)
    catalog = log_root / "shop"
    wanted = [naive(catalog, version, "order") for version in range(6)]
    with armed("checkpoint.before_link=enospc"), pytest.raises(LogFull):
        trim(catalog, 4, now=5)
    assert [state(log_root, version=version) for version in range(6)] == wanted
    assert trim(catalog, 4, now=6) == Position(4, 0)
    assert [state(log_root, version=version) for version in range(3, 6)] == wanted[3:]


@pytest.mark.usefixtures("due_early")
def test_upkeep_makes_a_base_once_enough_was_written_since_the_last(log_root: Path) -> None:
    catalog = log_root / "shop"
    write_versions(log_root, 1, 2)
    run_if_due(catalog, 5)
    assert versions_of_bases(log_root) == []
    write_versions(log_root, 3, 4)
    run_if_due(catalog, 6)
    assert versions_of_bases(log_root) == [4]
    assert not base_is_due(CommitLog.open(catalog))
    # Of a large table more must have changed.
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(100, 140)])
    run_if_due(catalog, 7)
    assert versions_of_bases(log_root) == [5]
    write_versions(log_root, 6, 9)
    run_if_due(catalog, 8)
    assert versions_of_bases(log_root) == [5]
    write_versions(log_root, 10, 14)
    run_if_due(catalog, 9)
    assert versions_of_bases(log_root) == [14]


@pytest.mark.usefixtures("due_early")
def test_no_base_is_due_where_nothing_says_what_the_rows_were(log_root: Path) -> None:
    write_versions(log_root, 1, 9)
    trim(log_root / "shop", 2, 5, keeps_state=False)
    assert not base_is_due(CommitLog.open(log_root / "shop"))
