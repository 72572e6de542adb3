"""Marks and leftovers. Entries on their way: tests/server/wal/state/test_arriving_entry.py."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.files.local_files import LocalArrivals, set_mark

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mark_is_read_as_it_was_set_and_a_written_file_has_none(tmp_path: Path) -> None:
    arrivals = LocalArrivals(str(tmp_path))
    path = tmp_path / "x.json"
    path.write_bytes(b"x")
    os.utime(path, ns=(5_000_001, 5_000_001))  # to the nanosecond, as the time of a write is
    assert arrivals.mark_of("x.json") is None
    set_mark(str(path), 1_234_567)
    assert arrivals.mark_of("x.json") == 1_234_567
    assert arrivals.mark_of("missing.json") is None
    set_mark(str(tmp_path / "missing.json"), 1)  # what cannot be marked is no error


def test_only_old_leftovers_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    for name, age_s in (("old", 2 * 3_600), ("new", 60)):
        path = tmp_path / "tmp" / name
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    LocalArrivals(str(tmp_path)).delete_leftovers()
    assert os.listdir(tmp_path / "tmp") == ["new"]


def test_a_file_that_was_written_to_since_it_was_read_is_another(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "tmp" / "x.1"
    path.write_bytes(b"first")
    found = LocalArrivals(str(tmp_path)).open("x.1", 5) or pytest.fail("it is there")
    os.link(path, tmp_path / "x.json")
    assert found.content_at("x.json", 7) == found.content
    set_mark(str(path), 7)
    marked = found.content_at("x.json", 7) or pytest.fail("it is the same")
    assert (marked.data, marked.mark) == (b"first", 7)
    assert found.content_at("x.json", 8) is None, "another time than before, and not the mark"
    path.write_bytes(b"longer")
    assert found.content_at("x.json", 7) is None
    assert LocalArrivals(str(tmp_path)).open("x.1", 5) is None, "it is larger than that"
