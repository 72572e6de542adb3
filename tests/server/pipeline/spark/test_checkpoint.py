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


def write_plan(folder: Path, batch_id: int, offset: int) -> None:
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(batch_id)).write_text(
        f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{offset}}}'
    )


def write_files(folder: Path, number: int, *files: Path, name: str = "") -> None:
    (folder / "sources/0").mkdir(parents=True, exist_ok=True)
    entries = [
        json.dumps({"path": file.as_uri(), "timestamp": 10**12, "batchId": number})
        for file in files
    ]
    (folder / "sources/0" / (name or str(number))).write_text("\n".join(["v1", *entries]))


def write_commit(folder: Path, batch_id: int) -> None:
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    (folder / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def planned(folder: Path, *files: Path, batches: int = 4) -> Checkpoint:
    """Return a checkpoint as Spark leaves it before its last batch runs, which has the files."""
    for number in range(batches):
        write_files(folder, number, *(files if number == batches - 1 else ()))
        write_plan(folder, number, number)
        if number < batches - 1:
            write_commit(folder, number)
    checkpoint = Checkpoint(folder)
    (folder / "metadata").write_text('{"id":"5f3fb176-d426-4394-afda-f742f68384de"}')
    return checkpoint


def test_a_packed_file_counts_as_what_it_may_hold(tmp_path: Path) -> None:
    """Unpacked into the driver it would fill the memory of Java."""
    files = [tmp_path / name for name in ("a.json", "b.json.gz")]
    for file in files:
        file.write_bytes(b"x" * 10)
    assert planned(tmp_path / "checkpoint", *files).plan(3).bytes() == 10 + 100 * 10


def test_a_batch_has_the_files_of_all_lists_behind_the_batch_before(tmp_path: Path) -> None:
    """Spark writes a list, then the plan of its batch; stopped in between, it adds another list."""
    files = [tmp_path / name for name in ("a.json", "b.json")]
    checkpoint = planned(tmp_path / "checkpoint")
    write_files(checkpoint.folder, 4, files[0])
    checkpoint.check()
    write_files(checkpoint.folder, 5, files[1])
    write_plan(checkpoint.folder, 4, 5)
    assert checkpoint.plan(4).files == [str(file) for file in files]
    checkpoint.check()


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
    # Replaced by an older file; a file system may have whole seconds only.
    os.utime(files[0], ns=(10**18, 10**18 - 10**9))
    os.utime(files[1], ns=(10**18, 10**18 + 10**8))
    assert checkpoint.changed_files() == [str(files[0])]
    assert Checkpoint(tmp_path / "none").changed_files() == []


def test_a_file_of_a_batch_that_is_gone_is_named(tmp_path: Path) -> None:
    files = [tmp_path / "a 1.json", tmp_path / "b.json"]
    checkpoint = planned(tmp_path / "checkpoint", *files)
    files[0].touch()
    with pytest.raises(InputGone, match=r"b\.json has to be read next"):
        checkpoint.plan(3).check()
    files[1].touch()
    checkpoint.plan(3).check()
    checkpoint.plan(4).check()  # of which nothing is known


def test_a_checkpoint_is_whole_with_what_spark_needs(tmp_path: Path) -> None:
    """Spark deletes older files, and runs the newest batch again if it has no commit."""
    Checkpoint(tmp_path / "new").check()
    folder = tmp_path / "old"
    write_files(folder, 0, tmp_path / "a.json")
    Checkpoint(folder).check()  # stopped before the plan of its first batch
    folder = tmp_path / "long"
    write_files(folder, 19, name="19.compact")
    for number in (20, 21):
        write_files(folder, number)
    for number in (20, 21):
        write_plan(folder, number, number)
    Checkpoint(folder).check()
    write_commit(folder, 21)
    (folder / "commits/.21.crc").write_bytes(b"crc")  # a file of sums that Spark ignores
    Checkpoint(folder).check()


def test_changes_of_a_running_checkpoint_are_noticed(tmp_path: Path) -> None:
    checkpoint = planned(tmp_path / "checkpoint")
    marks = checkpoint.check_kept(checkpoint.marks())
    write_commit(checkpoint.folder, 3)
    write_plan(checkpoint.folder, 4, 4)
    marks = checkpoint.check_kept(marks)
    assert marks.last_batch == 4
    (checkpoint.folder / "offsets/4").unlink()
    with pytest.raises(LogUnreadable, match="offsets/4 was removed while the ingest ran"):
        checkpoint.check_kept(marks)
    for part in ("metadata", "offsets", "sources/0", "commits"):
        checkpoint = planned(tmp_path / part)
        marks = checkpoint.marks()
        (checkpoint.folder / part).rename(tmp_path / part / "aside")
        with pytest.raises(LogUnreadable, match=f"{part} was removed while the ingest ran"):
            checkpoint.check_kept(marks)
