"""Pending files: durable, checked, and read by transaction; a lost one is in transactions/test_driver.py."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted, LogError
from tailrace_server.pipeline.catalog.pending import read_pending, rows_of, write_pending
from tailrace_server.pipeline.input.change import CHANGE, Change, to_batch

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [Change(CHANGE, b"%d" % n, transaction) for n, transaction in enumerate("aabca")]


def pending_path(catalog: Path) -> Path:
    (catalog / "segments").mkdir(exist_ok=True)  # every catalog has it
    return catalog / "segments" / "1" / "pending-0-rows.arrow"


def test_rows_are_read_back_by_transaction(tmp_path: Path) -> None:
    written = write_pending(pending_path(tmp_path), to_batch(ROWS))
    assert written.rows == 5
    table = read_pending(tmp_path, written)
    assert list(rows_of(table, ["a", "c"])) == [ROWS[0], ROWS[1], ROWS[3], ROWS[4]]
    assert list(rows_of(table, [])) == []


def test_a_file_that_a_failed_attempt_left_is_replaced(tmp_path: Path) -> None:
    write_pending(pending_path(tmp_path), to_batch(ROWS))
    written = write_pending(pending_path(tmp_path), to_batch(ROWS[:1]))
    assert read_pending(tmp_path, written).num_rows == 1
    assert [path.name for path in pending_path(tmp_path).parent.iterdir()] == [
        "pending-0-rows.arrow"
    ]


@pytest.mark.parametrize("at", [0, 8, -1])
def test_any_other_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = pending_path(tmp_path)
    written = write_pending(path, to_batch(ROWS))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupted, match="checksum of the pending file"):
        read_pending(tmp_path, written)


def test_a_file_that_is_gone_is_noticed(tmp_path: Path) -> None:
    written = write_pending(pending_path(tmp_path), to_batch(ROWS))
    pending_path(tmp_path).unlink()
    with pytest.raises(LogCorrupted, match="it is missing") as raised:
        read_pending(tmp_path, written)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOENT


def test_a_catalog_that_was_dropped_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="its catalog no longer exists"):
        write_pending(tmp_path / "shop" / "segments" / "1" / "a.arrow", to_batch(ROWS))
    assert not any(tmp_path.iterdir())
