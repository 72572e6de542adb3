"""The file of the audit, while others move it away or empty it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace_server.access.audit_trail import AuditFile
from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = b'{"n":1}\n', b'{"n":2}\n'


def write(file: AuditFile, data: bytes) -> None:
    place = 0
    while place < len(data):
        place = file.append(data, place)


def test_it_appends_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(ONE)
    file = AuditFile(path)
    write(file, TWO)
    file.close()
    assert path.read_bytes() == ONE + TWO


@pytest.mark.parametrize("created", [False, True])
def test_a_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path, created: bool) -> None:
    """As logrotate does, with ``create`` and without."""
    path, rotated = tmp_path / "audit", tmp_path / "audit.1"
    file = AuditFile(path)
    write(file, ONE)
    path.rename(rotated)
    if created:
        path.touch()
    write(file, TWO)
    file.close()
    assert (rotated.read_bytes(), path.read_bytes()) == (ONE, TWO)


def test_a_file_that_was_emptied_begins_with_the_next_line(tmp_path: Path) -> None:
    """As logrotate does with ``copytruncate``: no hole is left before the line."""
    path = tmp_path / "audit"
    file = AuditFile(path)
    write(file, ONE)
    os.truncate(path, 0)
    write(file, TWO)
    file.close()
    assert path.read_bytes() == TWO


@pytest.mark.parametrize("emptied", [False, True])
def test_a_line_whose_begin_is_gone_is_written_again_whole(tmp_path: Path, emptied: bool) -> None:
    path = tmp_path / "audit"
    file = AuditFile(path)
    data = ONE + TWO
    begun = len(ONE) + 3
    write(file, data[:begun])
    if emptied:
        os.truncate(path, 0)
    else:
        path.unlink()
    place = begun
    while place < len(data):
        place = file.append(data, place)
    file.close()
    assert path.read_bytes() == TWO


def test_others_than_owner_and_group_may_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    AuditFile(path).close()
    assert path.stat().st_mode & 0o007 == 0


def test_a_file_that_cannot_be_opened_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"--audit .*/none/audit: No such file or directory; "):
        AuditFile(tmp_path / "none" / "audit")
    with pytest.raises(CannotStart, match="Is a directory"):
        AuditFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CannotStart, match="a named pipe; give a file, or stderr"):
        AuditFile(tmp_path / "pipe")
