"""What a watch reports. How a log is followed with it: tests/server/wal/state/test_tailer.py."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.files.local_files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

LONG_S = 60.0
"""Nothing waits for so long: a change or a call ends it."""


@pytest.fixture
def store(log_root: Path) -> LocalFiles:
    create_catalog(log_root, "shop")
    return LocalFiles(log_root / "shop")


def test_new_entries_are_counted_and_any_other_change_is_anything(store: LocalFiles) -> None:
    with closing(store.watch()) as watch:
        assert watch.start()
        assert watch.take_new_entries() is None, "nothing is known of the time before"
        for name in ("log/1.json", "log/2.json"):
            store.create(name, b"x")
        watch.wait(LONG_S)
        assert (watch.changed, watch.take_new_entries(), watch.changed) == (True, 2, False)
        store.create("log/3.json", b"x")
        store.create("published/1.json", b"x")
        watch.wait(LONG_S)
        assert watch.take_new_entries() is None


def test_temporary_names_are_told_once_and_are_no_change(store: LocalFiles, log_root: Path) -> None:
    with closing(store.watch()) as watch:
        assert watch.start()
        for _ in range(2):
            (log_root / "shop" / "tmp" / "1.json.x").write_bytes(b"x")
        watch.wait(LONG_S)
        assert watch.take_arriving() == ["1.json.x"]
        assert (watch.take_arriving(), watch.changed) == ([], False)


def test_what_happens_to_one_file_is_waited_for_and_is_no_change(
    store: LocalFiles, log_root: Path
) -> None:
    store.create("log/1.json", b"x")
    path = log_root / "shop" / "log" / "1.json"
    looks = iter([False, True])

    def is_marked() -> bool:
        os.utime(path)
        return next(looks)

    with closing(store.watch()) as watch:
        assert watch.start()
        assert watch.wait_until("log/1.json", is_marked, LONG_S)
        assert not watch.wait_until("log/missing.json", lambda: True, LONG_S)
        assert not watch.changed


@pytest.mark.parametrize("notified", [True, False])
def test_who_is_woken_waits_no_more(store: LocalFiles, notified: bool) -> None:
    store.create("log/1.json", b"x")
    with closing(store.watch(notified=notified)) as watch:
        assert watch.start() is notified
        watch.wake()
        watch.wait(LONG_S)
        watch.wait_unless_woken(LONG_S)
        assert not watch.wait_until("log/1.json", lambda: False, LONG_S)
