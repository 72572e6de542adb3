"""Files that get a name when they are whole. With logs, and killed: test_local_files.py beside this."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogError
from tailrace_server.wal.files.new_file import WRITE_BUFFERS_MAX, NewFile, make_folder_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_has_no_name_until_it_is_linked(tmp_path: Path) -> None:
    file = NewFile(str(tmp_path / "final"), str(tmp_path / "temporary"))
    os.write(file.descriptor, b"whole")
    assert list(tmp_path.iterdir()) == []
    file.link()
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final").read_bytes() == b"whole"


def test_more_buffers_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    file = NewFile(str(tmp_path / "final"), str(tmp_path / "temporary"))
    chunks = [bytes([number % 256]) * 3 for number in range(2 * WRITE_BUFFERS_MAX + 1)]
    file.write(chunks)
    file.begin_sync(0, 3)
    file.sync()
    file.link()
    file.close()
    file.close()
    assert (tmp_path / "final").read_bytes() == b"".join(chunks)


def test_the_folder_of_a_dropped_catalog_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    for _ in range(2):
        make_folder_of(tmp_path / "segments" / "1" / "a.arrow")
    assert (tmp_path / "segments" / "1").is_dir()
    with pytest.raises(LogError, match="its catalog no longer exists"):
        make_folder_of(tmp_path / "dropped" / "1" / "a.arrow")
