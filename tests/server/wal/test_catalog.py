"""Catalogs created, dropped and replaced, and the log of it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.errors import CatalogReplaced, CatalogUnknown, LogMissing
from tailrace_server.wal.catalog import create_catalog, drop_catalog, list_catalogs
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.catalog_folder import delete_dropped, is_dropped
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.system_log import record_changes
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import AFTER, INDEX, KEY, finish, python, rows_of, upsert, write

if TYPE_CHECKING:
    from pathlib import Path

CHANGE, BEFORE = AFTER - 2, AFTER - 1


def events(root: Path) -> list[tuple[str, str, Any, Any]]:
    """Return event, name, uuid before and uuid after of each record of the system log."""
    found = []
    for row in rows_of(root / "system"):
        if row[INDEX]:
            uuids = [row[place] and orjson.loads(row[place])["uuid"] for place in (BEFORE, AFTER)]
            found.append((orjson.loads(row[CHANGE])["event"], row[KEY], *uuids))
    return found


def test_catalogs_are_listed_and_the_system_log_is_not_one_of_them(log_root: Path) -> None:
    assert list_catalogs(log_root / "not-there") == ()
    write(log_root, "shop", 1)
    create_catalog(log_root, "bank")
    (log_root / "notes.txt").touch()
    (log_root / "empty").mkdir()
    assert list_catalogs(log_root) == ("bank", "shop")


def test_what_happens_to_catalogs_is_recorded_once(log_root: Path) -> None:
    first = str(create_catalog(log_root, "shop"))
    assert str(create_catalog(log_root, "shop")) == first
    write(log_root, "shop", 2)
    assert str(drop_catalog(log_root, "shop")) == first
    assert list_catalogs(log_root) == ()
    assert not any(any(mark.iterdir()) for mark in log_root.glob(".dropped-*"))
    with pytest.raises(CatalogUnknown):
        drop_catalog(log_root, "shop")
    second = str(create_catalog(log_root, "shop"))
    record_changes(log_root)
    assert events(log_root) == [
        ("created", "shop", None, first),
        ("dropped", "shop", first, None),
        ("created", "shop", None, second),
    ]
    assert verify(log_root / "system").sound


def test_a_folder_changed_by_hand_is_recorded_by_the_next_writer_command(log_root: Path) -> None:
    first = str(create_catalog(log_root, "shop"))
    gone = str(create_catalog(log_root, "gone"))
    (log_root / "elsewhere").mkdir()
    second = str(create_catalog(log_root / "elsewhere", "shop"))
    shutil.rmtree(log_root / "shop")
    shutil.rmtree(log_root / "gone")
    (log_root / "elsewhere" / "shop").rename(log_root / "shop")
    LogWriter.open(log_root, "shop").close()
    assert events(log_root)[2:] == [("replaced", "shop", first, second)]
    # A missing folder may be on a volume that is not mounted: only the command says that it is a drop.
    assert str(drop_catalog(log_root, "gone")) == gone
    assert events(log_root)[3:] == [("dropped", "gone", gone, None)]


def test_the_mark_of_a_drop_goes_after_a_week(log_root: Path) -> None:
    uuid = create_catalog(log_root, "shop")
    drop_catalog(log_root, "shop")
    assert is_dropped(log_root, uuid)
    mark = log_root / f".dropped-{uuid.hex}"
    old = time.time() - 8 * 86_400
    os.utime(mark, (old, old))
    delete_dropped(log_root)
    assert not mark.exists()


def test_contract_25_a_reader_of_a_missing_folder_may_wait_for_it(log_root: Path) -> None:
    """A volume that is not mounted is no drop: readers keep what they have, and their cursors."""
    write(log_root, "shop", 3)
    log = CommitLog.open(log_root / "shop")
    (log_root / "shop").rename(log_root / "elsewhere")
    with pytest.raises(LogMissing) as missing:
        log.refresh()
    assert missing.value.retriable
    (log_root / "elsewhere").rename(log_root / "shop")
    log.refresh()


@pytest.mark.parametrize("text", [b"{", b'{"format_version": 99}'])
def test_a_catalog_that_cannot_be_read_is_not_recorded_as_dropped(
    log_root: Path, text: bytes
) -> None:
    """Nor does it keep others from being made and dropped."""
    create_catalog(log_root, "bad")
    (log_root / "bad" / "catalog.json").write_bytes(text)
    create_catalog(log_root, "shop")
    drop_catalog(log_root, "shop")
    assert [event[:2] for event in events(log_root)] == [
        ("created", "bad"),
        ("created", "shop"),
        ("dropped", "shop"),
    ]


@pytest.mark.slow
def test_a_drop_that_was_killed_is_recorded_and_finished_by_the_next_command(
    log_root: Path,
) -> None:
    create_catalog(log_root, "shop")
    code = (
        "import sys; from pathlib import Path; from tailrace_server.wal.catalog import drop_catalog; "
        "drop_catalog(Path(sys.argv[1]), 'shop')"
    )
    status, _, err = finish(python(code, log_root, failing="drop.after_rename=kill"))
    assert status == -signal.SIGKILL, err
    assert list_catalogs(log_root) == ()
    create_catalog(log_root, "bank")
    assert [event[:2] for event in events(log_root)] == [
        ("created", "shop"),
        ("created", "bank"),
        ("dropped", "shop"),
    ]
    drop_catalog(log_root, "bank")
    assert not any(any(mark.iterdir()) for mark in log_root.glob(".dropped-*"))


@pytest.mark.slow
def test_several_processes_record_at_once_and_each_event_stands_once(log_root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tailrace_server.wal.catalog import *\n"
        "for number in range(5): create_catalog(Path(sys.argv[1]), f'{sys.argv[2]}{number}')"
    )
    processes = [python(code, log_root, name) for name in "abc"]
    for process in processes:
        status, _, err = finish(process)
        assert status == 0, err
    names = [event[1] for event in events(log_root)]
    assert sorted(names) == [f"{name}{number}" for name in "abc" for number in range(5)]
    assert verify(log_root / "system").sound


def test_contract_25_a_reader_of_a_dropped_or_replaced_catalog_is_told_so(log_root: Path) -> None:
    write(log_root, "shop", 3)
    log, other = CommitLog.open(log_root / "shop"), CommitLog.open(log_root / "shop")
    drop_catalog(log_root, "shop")
    with pytest.raises(CatalogReplaced) as dropped:
        log.refresh()
    assert (dropped.value.expected, dropped.value.found) == (log.uuid, None)
    write(log_root, "shop", 5)
    with pytest.raises(CatalogReplaced) as replaced:
        other.refresh()
    assert replaced.value.found == CommitLog.open(log_root / "shop").uuid != log.uuid


def test_contract_25_a_writer_of_a_replaced_catalog_writes_nothing_into_the_new_one(
    log_root: Path,
) -> None:
    writer = LogWriter.open(log_root, "shop")
    committer = CatalogWriter.attach(log_root, "shop", epoch=1, writer="log-writer")
    drop_catalog(log_root, "shop")
    create_catalog(log_root, "shop")
    writer.append([upsert("1")])
    with pytest.raises(CatalogReplaced):
        writer.commit()
    with pytest.raises(CatalogReplaced):
        committer.publish()
    assert CommitLog.open(log_root / "shop").state.last_entry == 0
