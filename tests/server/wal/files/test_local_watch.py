"""What a watcher reports of logs. How logs are followed with it: tests/server/wal/state/test_tailer.py."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.local_watch import (
    Event,
    FileWait,
    Inotify,
    InotifyUnavailable,
    LocalWatcher,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_S = 60.0
"""Nothing waits for so long: a change or a call ends it."""


@pytest.fixture
def store(log_root: Path) -> LocalFiles:
    create_catalog(log_root, "shop")
    return LocalFiles(log_root / "shop")


@pytest.fixture
def watcher() -> Iterator[LocalWatcher]:
    with closing(LocalWatcher()) as found:
        yield found


def test_new_entries_are_counted_and_any_other_change_is_anything(
    store: LocalFiles, watcher: LocalWatcher
) -> None:
    watch = store.watch(watcher, "shop")
    watcher.wait(0)
    assert watch.take_new_entries() is None, "nothing is known of the time before"
    for name in ("log/1.json", "log/2.json"):
        store.create(name, b"x")
    assert watcher.wait(LONG_S) == ["shop"]
    assert (watch.changed, watch.take_new_entries(), watch.changed) == (True, 2, False)
    store.create("log/3.json", b"x")
    store.create("published/1.json", b"x")
    watcher.wait(LONG_S)
    assert watch.take_new_entries() is None


def test_temporary_names_are_reported_once_and_are_no_change(
    store: LocalFiles, watcher: LocalWatcher, log_root: Path
) -> None:
    watch = store.watch(watcher, "shop")
    watcher.wait(0)
    for _ in range(2):
        (log_root / "shop" / "tmp" / "1.json.x").write_bytes(b"x")
    assert watcher.wait(LONG_S) == ["shop"]
    assert watch.take_arriving() == ["1.json.x"]
    assert (watch.take_arriving(), watch.changed) == ([], False)


def test_each_log_has_its_own_reports_and_one_that_left_has_none(
    store: LocalFiles, watcher: LocalWatcher, log_root: Path
) -> None:
    create_catalog(log_root, "depot")
    other_store = LocalFiles(log_root / "depot")
    watch, other = store.watch(watcher, "shop"), other_store.watch(watcher, "depot")
    watcher.wait(0)
    other_store.create("log/1.json", b"x")
    assert watcher.wait(LONG_S) == ["depot"]
    assert (watch.changed, other.take_new_entries()) == (False, 1)
    other.close()
    other_store.create("log/2.json", b"x")
    store.create("log/1.json", b"x")
    assert watcher.wait(LONG_S) == ["shop"]
    assert (watch.take_new_entries(), other.changed) == (1, False)


def test_dropped_events_count_as_a_change_of_every_log(
    store: LocalFiles, watcher: LocalWatcher, log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_catalog(log_root, "depot")
    watches = [store.watch(watcher, "shop"), LocalFiles(log_root / "depot").watch(watcher, "depot")]
    monkeypatch.setattr(Inotify, "drain", lambda self: [Event(-1, b"")])
    assert sorted(map(str, watcher.wait(0))) == ["depot", "shop"]
    assert [(each.changed, each.take_new_entries()) for each in watches] == [(True, None)] * 2


def test_a_watch_that_fails_half_way_leaves_nothing_watched(
    store: LocalFiles, watcher: LocalWatcher, log_root: Path
) -> None:
    (log_root / "shop" / "checkpoints").rmdir()
    with pytest.raises(InotifyUnavailable) as raised:
        store.watch(watcher, "shop")
    assert not raised.value.is_shortage
    store.create("log/1.json", b"x")
    watcher.wait(0)
    watcher.wake()
    assert watcher.wait(LONG_S) == []


def test_a_wait_that_is_woken_ends_once(store: LocalFiles, watcher: LocalWatcher) -> None:
    watcher.wake()
    watcher.wake()
    assert watcher.wait(LONG_S) == []
    store.watch(watcher, "shop")
    assert watcher.wait(LONG_S) == [], "the first log wakes who waits without its descriptor"


def test_a_change_of_one_file_is_waited_for(store: LocalFiles, log_root: Path) -> None:
    store.create("log/1.json", b"x")
    path = log_root / "shop" / "log" / "1.json"
    looks = iter([False, True])

    def is_marked() -> bool:
        os.utime(path)
        return next(looks)

    with closing(FileWait()) as waits:
        assert waits.wait_until(str(path), is_marked, LONG_S)
        assert not waits.wait_until(str(path), lambda: False, 0)
        assert not waits.wait_until(f"{path}.missing", lambda: True, LONG_S)
