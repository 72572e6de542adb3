"""What an ingest keeps of its Spark checkpoint."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogUnreadable
from tailrace_server.pipeline.spark.checkpoint import Checkpoint, InputGone

if TYPE_CHECKING:
    from pathlib import Path


def test_ingests_that_start_at_once_take_one_name(tmp_path: Path) -> None:
    """Else the log would know one of them by a name that the checkpoint does not have any more."""
    together = Barrier(4)

    def query_id(folder: Path) -> str:
        together.wait()
        return Checkpoint(folder).query_id()

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            folder = tmp_path / str(number)
            names = set(threads.map(query_id, [folder] * 4))
            assert names == {Checkpoint(folder).query_id()}
            assert [each.name for each in folder.iterdir()] == ["metadata"]


def test_a_packed_file_counts_as_what_it_may_hold(tmp_path: Path) -> None:
    """Unpacked into the driver it would fill the memory of Java."""
    entries = []
    for name in ("a.json", "b.json.gz"):
        (tmp_path / name).write_bytes(b"x" * 10)
        entries.append(json.dumps({"path": f"file://{tmp_path}/{name}", "batchId": 3}))
    sources = tmp_path / "checkpoint/sources/0"
    sources.mkdir(parents=True)
    (sources / "3").write_text("\n".join(["v1", *entries]))
    assert Checkpoint(tmp_path / "checkpoint").plan(3).bytes() == 10 + 100 * 10


def test_a_file_that_changed_after_it_was_read_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("same", "longer ä", "gone")]
    entries = []
    for file in files:
        file.write_text("{}")
        os.utime(file, ns=(10**18, 10**18))
        entries.append(
            json.dumps({"path": file.as_uri(), "timestamp": 10**12, "batchId": 0})  # ms
        )
    sources = tmp_path / "checkpoint/sources/0"
    sources.mkdir(parents=True)
    (sources / "0").write_text("\n".join(["v1", *entries]))
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert checkpoint.changed_files() == []
    files[1].write_text("{}{}")
    files[2].unlink()
    assert checkpoint.changed_files() == [str(files[1])]
    assert Checkpoint(tmp_path / "none").changed_files() == []


def planned(folder: Path, batch_id: int, *files: Path) -> Checkpoint:
    """Return a checkpoint as Spark leaves it before a batch runs."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / str(batch_id)).write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":0}')
    (folder / "sources/0").mkdir(parents=True)
    entries = [json.dumps({"path": file.as_uri(), "batchId": batch_id}) for file in files]
    (folder / "sources/0" / str(batch_id)).write_text("\n".join(["v1", *entries]))
    return Checkpoint(folder)


def test_a_file_of_a_batch_that_is_gone_is_named(tmp_path: Path) -> None:
    files = [tmp_path / "a 1.json", tmp_path / "b.json"]
    checkpoint = planned(tmp_path / "checkpoint", 3, *files)
    files[0].touch()
    with pytest.raises(InputGone, match=r"b\.json was to be read next"):
        checkpoint.plan(3).check()
    files[1].touch()
    checkpoint.plan(3).check()
    checkpoint.plan(4).check()  # of which nothing is known


@pytest.mark.parametrize("part", ["offsets/3", "sources/0/3"])
def test_a_checkpoint_that_has_lost_a_part_is_named(tmp_path: Path, part: str) -> None:
    checkpoint = planned(tmp_path, 3)
    checkpoint.check()
    if part.startswith("offsets"):
        (tmp_path / part).write_text("")
    else:
        (tmp_path / part).unlink()
    with pytest.raises(LogUnreadable, match=r"is damaged: .*see --take-over"):
        checkpoint.check()
