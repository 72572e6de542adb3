"""Inotify itself. What is done with its events: test_local_watch.py beside this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.files.local_watch import CREATED, WRITTEN, Inotify, InotifyUnavailable

if TYPE_CHECKING:
    from pathlib import Path


def test_inotify_refuses_what_it_cannot_watch(tmp_path: Path) -> None:
    watch = Inotify()
    with pytest.raises(InotifyUnavailable):
        watch.watch(tmp_path / "not-there", CREATED)
    watch.close()


def test_events_come_with_the_watch_and_the_name(tmp_path: Path) -> None:
    inotify = Inotify()
    folder = inotify.watch(tmp_path, CREATED)
    names = [f"{number}" * 40 for number in range(300)]  # more than one read takes
    for name in names:
        (tmp_path / name).touch()
    assert [(event.watch, event.name) for event in inotify.drain()] == [
        (folder, name) for name in names
    ]
    file = inotify.watch_file(str(tmp_path / names[0]), WRITTEN)
    (tmp_path / names[0]).write_bytes(b"x")
    assert {event.watch for event in inotify.drain()} == {file}
    assert inotify.drain() == []
    inotify.close()
    inotify.close()
