"""What verification counts and names. Every kind of damage: tests/server/wal/test_damage.py."""

from __future__ import annotations

import os
from itertools import accumulate
from typing import TYPE_CHECKING

from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import upsert, write, write_files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_sound_log_is_counted_and_its_progress_told(log_root: Path) -> None:
    write(log_root, "shop", 3)
    progress: list[tuple[int, int]] = []
    result = verify(log_root / "shop", lambda done, total: progress.append((done, total)))
    assert result.sound
    assert (result.transactions, result.batches, result.segments) == (3, 3, 3)
    assert result.rows == CommitLog.open(log_root / "shop").state.end_row
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_one_run_names_every_damaged_segment_and_goes_on_behind_it(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 3)
    view = CommitLog.open(log_root / "shop").view
    paths = [view.batch(place).segment.path for place in range(3)]
    (log_root / "shop" / paths[0]).unlink()
    os.truncate(log_root / "shop" / paths[2], view.batch(2).offset + 1)
    result = verify(log_root / "shop")
    assert {fault.path for fault in result.faults} == {paths[0], paths[2]}
    assert result.batches == 3


def test_each_damaged_part_of_a_batch_is_named(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 2)
    ref = CommitLog.open(log_root / "shop").view.batch(0)
    file = log_root / "shop" / ref.segment.path
    data = bytearray(file.read_bytes())
    places = [ref.offset, *accumulate(ref.body_lengths, initial=ref.offset + ref.head_length)][:4]
    for place in places:
        data[place + 9] ^= 1
    file.write_bytes(data)
    found = [(fault.path, fault.offset) for fault in verify(log_root / "shop").faults]
    assert found == [(ref.segment.path, place) for place in places]


def test_damaged_objects_behind_one_that_breaks_the_chain_are_named(log_root: Path) -> None:
    write(log_root, "shop", 8)
    log = CommitLog.open(log_root / "shop")
    change_settings(log.store, log.view, {"max_bytes": 1 << 40}, 5)
    files = [f"log/{object_name(number)}" for number in (3, 5, 6)] + [f"settings/{object_name(1)}"]
    for each in files:
        (log.path / each).write_bytes((log.path / each).read_bytes()[:-2] + b"!!")
    assert [fault.path for fault in verify(log.path).faults] == files


def test_a_lost_publication_is_named_though_later_ones_are_there(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for key in "12":
            writer.append([upsert(key)])
            writer.commit()
            writer.publish()
    assert verify(log_root / "shop").publications == 2
    (log_root / "shop" / "published" / object_name(1)).unlink()
    assert "published/" + object_name(1) in {
        fault.path for fault in verify(log_root / "shop").faults
    }
