"""The settings of a catalog: numbered objects that any process creates, and nobody overwrites unseen."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EntityTypeUnknown, InvalidRequest, LogCorrupted, LogFull
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.files.numbered import Newest, NumberedSequence
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import CatalogSettings, change_settings, newest_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import armed, finish, python, upsert, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.wal.files.sequence_documents import SettingsDocument

SETTER = """
import sys
from pathlib import Path
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
log = CommitLog.open(Path(sys.argv[1]))
change_settings(log.store, log.view, {"max_lookback": 7}, 5)
"""


def set_of(log: CommitLog) -> CatalogSettings:
    return newest_settings(log.store, log.uuid)


def change(log: CommitLog, **changes: int | None) -> CatalogSettings:
    return change_settings(log.store, log.view, changes, 5)


def files(log: CommitLog) -> list[str]:
    return sorted(path.name for path in (log.path / "settings").glob("*"))


def test_what_is_set_is_found_by_every_process_and_fences_no_writer(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit()
        log = CommitLog.open(log_root / "shop")
        assert set_of(log) == CatalogSettings()
        assert change(log, max_lookback=7, max_bytes=8).number == 1
        assert change(log, max_bytes=None).number == 2
        writer.append([upsert("2")])
        writer.commit()
    found = set_of(CommitLog.open(log_root / "shop"))
    assert (found.number, found.settings) == (2, {"max_lookback": 7})
    assert verify(log.path).sound


def test_what_changes_nothing_makes_no_object(log_root: Path) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    assert change(log, max_bytes=None).number == 0
    assert files(log) == []
    change(log, max_bytes=9)
    assert change(log, max_bytes=9).number == 1


def test_a_catalog_that_is_made_with_settings_has_them_from_the_first_moment(
    log_root: Path,
) -> None:
    create_catalog(log_root, "shop", settings={"max_lookback": 7})
    log = CommitLog.open(log_root / "shop")
    assert set_of(log).settings == {"max_lookback": 7}
    assert change(log, max_bytes=9).number == 2
    assert verify(log.path).sound
    with pytest.raises(InvalidRequest, match="already exists"):
        create_catalog(log_root, "shop", settings={"max_lookback": 8})
    assert set_of(log).settings == {"max_lookback": 7, "max_bytes": 9}


def test_of_two_that_set_different_things_at_once_both_stand(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 1)
    mine, theirs = (CommitLog.open(log_root / "shop") for _ in range(2))
    behind(monkeypatch, lambda: change(theirs, max_bytes=9))
    assert change(mine, max_lookback=7).settings == {"max_lookback": 7, "max_bytes": 9}
    assert set_of(theirs).number == 2


def test_of_two_that_set_the_same_at_once_the_second_is_told_and_changes_nothing(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 1)
    mine, theirs = (CommitLog.open(log_root / "shop") for _ in range(2))
    behind(monkeypatch, lambda: change(theirs, max_lookback=3_600_000_000))
    with pytest.raises(InvalidRequest, match="max_lookback was set to 1h by another process"):
        change(mine, max_lookback=7, max_bytes=9)
    assert set_of(mine).settings == {"max_lookback": 3_600_000_000}
    behind(monkeypatch, lambda: change(theirs, max_lookback=None))
    with pytest.raises(InvalidRequest, match="max_lookback was unset by another process"):
        change(mine, max_lookback=7)
    # Both wanted the same.
    behind(monkeypatch, lambda: change(theirs, max_lookback=7))
    assert change(mine, max_lookback=7).number == 3


def behind(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have another process act once between the next look at the settings and what follows."""
    real = NumberedSequence.read

    def look(sequence: NumberedSequence[SettingsDocument]) -> Newest[SettingsDocument]:
        found = real(sequence)
        monkeypatch.setattr(NumberedSequence, "read", real)
        act()
        return found

    monkeypatch.setattr(NumberedSequence, "read", look)


def test_many_setters_lose_nothing(log_root: Path) -> None:
    write(log_root, "shop", 1)

    def set_one(number: int) -> None:
        change(CommitLog.open(log_root / "shop"), **{f"name_{number}": number})

    threads = [threading.Thread(target=set_one, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    log = CommitLog.open(log_root / "shop")
    assert set_of(log).settings == {f"name_{number}": number for number in range(8)}
    assert len(files(log)) == 8
    assert verify(log.path).sound


@pytest.mark.parametrize("place", ["before_link", "linked", "after_link"])
def test_a_setter_that_is_killed_has_set_all_or_nothing(log_root: Path, place: str) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    status, _, error = finish(python(SETTER, log.path, failing=f"settings.{place}=kill"))
    assert status == -signal.SIGKILL, error
    known = set_of(log)
    assert known.settings == ({} if place == "before_link" else {"max_lookback": 7})
    assert change(log, max_bytes=9).number == known.number + 1
    assert verify(log.path).sound


def test_a_full_disk_leaves_what_was_set(log_root: Path) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    change(log, max_bytes=9)
    with armed("settings.before_link=enospc"), pytest.raises(LogFull):
        change(log, max_bytes=10)
    assert set_of(log).settings == {"max_bytes": 9}


def test_an_entity_type_keeps_what_is_set_of_it_and_an_unknown_one_is_named(
    log_root: Path,
) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    with pytest.raises(EntityTypeUnknown, match="'odrer'; did you mean order"):
        change_settings(log.store, log.view, {"a": 1}, 5, entity_type="odrer")
    change_settings(log.store, log.view, {"a": 1}, 5, entity_type="order")
    change(log, max_bytes=9)
    change_settings(log.store, log.view, {"b": 2}, 5, entity_type="order")
    found = set_of(log)
    assert (found.settings, found.by_type(log.view)) == (
        {"max_bytes": 9},
        {"order": {"a": 1, "b": 2}},
    )
    for name in "ab":
        change_settings(log.store, log.view, {name: None}, 5, entity_type="order")
    assert set_of(log).of_types == ()


def test_a_copy_has_the_settings_and_damage_is_named_with_what_to_do(
    log_root: Path, tmp_path: Path
) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    for number in range(3):
        change(log, max_bytes=number)
    copied = CommitLog.open(copy_log(log.path, tmp_path / "copies").path)
    assert set_of(copied) == set_of(log)
    newest = sorted((log.path / "settings").iterdir())[-1]
    newest.write_bytes(newest.read_bytes().replace(b'"max_bytes":2', b'"max_bytes":3'))
    with pytest.raises(LogCorrupted):
        set_of(log)
    (fault,) = verify(log.path).faults
    assert "move the newest object out of the folder" in fault.reason
    newest.unlink()
    assert set_of(log).settings == {"max_bytes": 1}
    assert verify(log.path).sound
    first = newest.with_name(files(log)[0])
    first.unlink()
    assert ["missing" in fault.reason for fault in verify(log.path).faults] == [True]
