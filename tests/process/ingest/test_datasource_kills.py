"""Programs that write through the data source: killed and started again, or held during a take-over."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tailrace_server.pipeline.dataframe.datasource import register
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.killable import Killable, end
from tests.process.ingest.reading import published
from tests.process.ingest.sink_program import add_frame, check_transactions, run, start_stream
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REPEATED = pytest.mark.nightly(
    "tests/process/ingest/test_datasource_kills.py: the other rows die before and after the commit, in batch"
    " and stream, as driver, JVM and themselves; the fence is the same for both"
)
HELD = 4
"""Versions of the first file, which are in the log before anything is killed."""


class Program(Killable):
    """The program, with two files to write behind one that the log has."""

    def __init__(self, spark: SparkSession, folder: Path, log_root: Path, kind: str) -> None:
        self.kind = kind
        self.frames = folder / "frames"
        self.catalog = log_root / "shop"
        self.checkpoint = folder / "checkpoint"
        module = "tests.process.ingest.sink_program"
        super().__init__(folder, module, kind, self.frames, self.catalog, self.checkpoint)
        register(spark)
        add_frame(self.frames, 1, range(1, 1 + HELD))
        self.run_in(spark)
        (self.frames / "0001.parquet").unlink()
        for number in (2, 3):
            add_frame(self.frames, number, range(10 * number, 10 * number + HELD))

    def run_in(self, spark: SparkSession) -> None:
        """Run it to the end in a session that is there, which saves the start of one."""
        run(spark, self.kind, self.frames, self.catalog, self.checkpoint)

    def check(self) -> None:
        """Nothing is lost, nothing is there twice, versions are dense, every checksum is right."""
        ranges = (range(1, 1 + HELD), range(20, 20 + HELD), range(30, 30 + HELD))
        check_transactions(self.catalog, [number for each in ranges for number in each])

    def noted(self) -> bool:
        """Whether Spark has noted the second batch of the stream as done."""
        return (self.checkpoint / "commits" / "1").exists()


@pytest.mark.parametrize(
    ("kind", "place", "victim", "batches"),
    [
        pytest.param("stream", "segment.after_rename", "driver", {1}, marks=REPEATED),
        # The process that commits may live on.
        ("batch", "pipeline.before_commit", "driver", {1, 2}),
        pytest.param("stream", "pipeline.before_commit", "itself", {1}, marks=REPEATED),
        pytest.param("batch", "pipeline.after_commit", "driver", {2}, marks=REPEATED),
        ("stream", "pipeline.after_commit", "driver", {2}),
        ("stream", "pipeline.after_commit", "jvm", {2}),
        ("batch", "pipeline.after_commit", "itself", {2}),
    ],
)
def test_contract_34_a_program_that_writes_through_the_source_and_is_killed_goes_on(
    tmp_path: Path,
    log_root: Path,
    spark: SparkSession,
    kind: str,
    place: str,
    victim: str,
    batches: set[int],
) -> None:
    """Under the same name, with the same numbers or the same checkpoint.

    The places are reached in a task and in the process that commits, which may be the one that dies:
    the program is not told what became of its commit.
    """
    program = Program(spark, tmp_path, log_root, kind)
    status = program.run(f"{place}=kill" if victim == "itself" else f"{place}=kill:{victim}")
    assert status == (-signal.SIGKILL if victim == "driver" else 1)
    assert published(program.catalog) in {HELD * count for count in batches}
    assert not program.noted()
    program.run_in(spark)
    program.check()


@pytest.mark.parametrize("kind", [pytest.param("batch", marks=REPEATED), "stream"])
def test_contract_36_a_program_that_wakes_up_before_its_commit_is_fenced_with_the_name_of_the_holder(
    tmp_path: Path, log_root: Path, spark: SparkSession, kind: str
) -> None:
    program = Program(spark, tmp_path, log_root, kind)
    gate = tmp_path / "gate"
    held = program.start(f"pipeline.before_commit=pause:{gate}")
    try:
        paused = gate.with_name("gate.paused")
        wait_until(lambda: paused.exists() or held.poll() is not None, 120)
        assert paused.exists()
        checkpoint = tmp_path / "newer"
        start_stream(
            spark, program.frames, program.catalog, checkpoint, "newer", take_over=True
        ).awaitTermination()
        before = CommitLog.open(program.catalog).state.last_entry
        gate.touch()
        assert held.wait(timeout=120) == 1
    finally:
        end(held)
    assert "fenced: this writer's epoch is" in program.said()
    assert "is held by newer on " in program.said()
    assert CommitLog.open(program.catalog).state.last_entry == before
    program.check()
