"""Ingests that are killed: at named places, at any moment, driver, JVM or task; then run again."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.ingest import checkpoint_folder, run_ingest
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.sample_shop.topics import make_feed, write_feed
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.files.documents import ENTRIES
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.killable import Command, end
from tests.process.ingest.reading import published
from tests.process.ingest.truth import check_against_truth
from tests.server.pipeline.shapes import BY_ID
from tests.support.polling import wait_until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace_server.sample_shop.topics import Feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

SEEDS = int(os.environ.get("KILL_SEEDS", "2"))
KILLS_EACH = int(os.environ.get("KILLS_EACH", "3"))
"""Random kills for each seed; `make test-long` has more of both."""
FILES_AHEAD = 20
"""More batches than an ingest does before it is killed at random."""


class Ingest(Command):
    """An ingest of Debezium's files in small batches."""

    def __init__(
        self,
        folder: Path,
        log_root: Path,
        *,
        batch_bytes: int = 100 * 1024,
        window_ms: int = 0,
        large: bool = False,
    ) -> None:
        """Prepare it.

        Args:
            folder: Where its input is.
            log_root: Where its catalog is.
            batch_bytes: Input of one batch.
            window_ms: With a window commits have publications, without one they publish themselves.
            large: Tasks write the segments, as in a large batch; else the driver does.
        """
        rows = 0 if large else 20_000
        super().__init__(
            *("debezium", folder, log_root, "--master", "local[2]", "--transaction-idle", "1h"),
            *("--batch-bytes", f"{batch_bytes}B", "--publish-window", f"{window_ms}ms"),
            *("--small-batch-rows", str(rows), "--key", "*=id"),
            *("--whole-before", "*"),
        )
        self._settings = IngestSettings(
            input=self.input,
            log=log_root,
            catalog="shop",
            source=Debezium(keys=BY_ID, whole_before=("*",)),
            batch_bytes=batch_bytes,
            small_batch_rows=rows,
            publish_window_s=window_ms / 1000,
        )

    def run_in(self, spark: SparkSession, **changes: Any) -> None:
        """Run to the end in a session that is there, which saves the start of one."""
        run_ingest(replace(self._settings, **changes), ProgressReporter(quiet=True), spark)

    def planned(self) -> list[int]:
        """Return the batches that Spark has planned."""
        return self._noted("offsets")

    def noted(self) -> list[int]:
        """Return the batches that Spark has committed for itself, in its checkpoint."""
        return self._noted("commits")

    def steps(self) -> int:
        """Count what has been planned, committed to the log, and noted; opening the log is one, too."""
        entries = self.catalog / ENTRIES
        written = len(os.listdir(entries)) if entries.is_dir() else 0
        return len(self.planned()) + written + len(self.noted())

    def committed(self) -> int:
        """Return the last batch that the log knows; -1 for none."""
        writers = CommitLog.open(self.catalog).state.writers.values()
        return max((writer.batch_id for writer in writers), default=-1)

    def _noted(self, kind: str) -> list[int]:
        folder = checkpoint_folder(self._settings) / kind
        names = [name.name for name in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())


def java(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Return the JVM of an ingest."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return next((c for c in children if "java" in c.name()), None)
    except psutil.NoSuchProcess:
        return None


def prepare(ingest: Ingest, seed: int, transactions: int, parts: int) -> Feed:
    feed = make_feed(seed, transactions)
    for _ in write_feed(feed, ingest.input, parts=parts):
        pass
    return feed


def check(ingest: Ingest, feed: Feed) -> None:
    """Nothing is lost, nothing is there twice, versions are dense, every checksum is right."""
    check_against_truth(ingest.catalog, feed)
    assert verify(ingest.catalog).sound


IN_THE_LOG = pytest.mark.nightly(
    "tests/server/wal/test_crash.py kills a writer at each of these places, and the rows beside this one"
    " in tests/process/ingest/test_kills.py kill an ingest before and after an entry"
)
JVM = pytest.mark.nightly(
    "tests/process/ingest/test_kills.py: the driver is killed at this place, and the JVM after a commit"
)
BY_TASKS = pytest.mark.nightly(
    "tests/process/ingest/test_kills.py: in a large batch a task dies before and the JVM after a segment"
)
LATER = pytest.mark.nightly(
    "tests/process/ingest/test_kills.py: task workers die before the commit, the driver at this place"
)
DEATHS = {"driver": -signal.SIGKILL, "jvm": 1}
"""How a driver ends, by who was killed."""


def kill_at(ingest: Ingest, place: str, victim: str, nth: str = "") -> None:
    """Run until driver or JVM is killed, and see that it died of that, in one line."""
    assert ingest.run(f"{place}=kill:{victim}{nth}") == DEATHS[victim]
    assert ("error: Spark gave up" in ingest.said()) == (victim == "jvm")
    assert "Traceback" not in ingest.said()


@pytest.mark.parametrize(
    ("place", "victim"),
    [
        ("entry.linked@5", "driver"),
        *(
            pytest.param(place, "driver", marks=IN_THE_LOG)
            for place in (
                "segment.before_rename@2",
                "segment.after_rename@2",
                "schema.after_link@3",
                "commit.checked@4",
                "entry.before_link@5",
                "entry.after_link@5",
                "publication.before_link@2",
                "publication.after_link@2",
            )
        ),
        ("pipeline.before_commit@2", "driver"),
        ("pipeline.after_commit@2", "driver"),
        ("pipeline.before_publish@2", "driver"),
        ("pipeline.spark_committed@2", "driver"),
        ("pipeline.after_commit@2", "jvm"),
        pytest.param("pipeline.before_commit@2", "jvm", marks=JVM),
        pytest.param("pipeline.before_publish@2", "jvm", marks=JVM),
        pytest.param("pipeline.spark_committed@2", "jvm", marks=JVM),
    ],
)
def test_contract_34_driver_or_jvm_killed_at_a_named_place_lose_and_double_nothing(
    tmp_path: Path, log_root: Path, spark: SparkSession, place: str, victim: str
) -> None:
    ingest = Ingest(tmp_path, log_root, window_ms=1 if "publi" in place else 0)
    feed = prepare(ingest, 5, 40, parts=4)
    name, at, count = place.partition("@")
    kill_at(ingest, name, victim, at + count)
    if name == "pipeline.after_commit":
        assert (ingest.committed(), ingest.noted()) == (1, [0])
    elif name == "pipeline.spark_committed":
        assert ingest.noted()[:2] == [0, 1]
    ingest.run_in(spark)
    check(ingest, feed)


@pytest.mark.parametrize(
    ("place", "victim"),
    [
        ("segment.before_rename", "task"),
        pytest.param("segment.before_rename", "driver", marks=BY_TASKS),
        pytest.param("segment.after_rename", "task", marks=BY_TASKS),
        ("segment.after_rename", "jvm"),
    ],
)
def test_contract_34_a_large_batch_killed_where_tasks_write_loses_and_doubles_nothing(
    tmp_path: Path, log_root: Path, spark: SparkSession, place: str, victim: str
) -> None:
    """The place is reached in a task. Without a task the driver reports that Spark gave up."""
    ingest = Ingest(tmp_path, log_root, batch_bytes=1 << 20, large=True)
    feed = prepare(ingest, 6, 40, parts=2)
    create_catalog(log_root, "shop")  # has a segment of its own, not written by a task
    if victim == "task":
        assert ingest.run(f"{place}=kill") == 1
        assert "error: Spark gave up" in ingest.said()
        assert "Traceback" not in ingest.said()
    else:
        kill_at(ingest, place, victim)
    assert published(ingest.catalog) == 0
    ingest.run_in(spark)
    check(ingest, feed)


@pytest.mark.parametrize(
    "place",
    [
        "pipeline.before_commit@1",
        pytest.param("pipeline.after_commit@1", marks=LATER),
        pytest.param("pipeline.before_publish@1", marks=LATER),
    ],
)
def test_contract_34_task_workers_killed_while_the_driver_commits_lose_and_double_nothing(
    tmp_path: Path, log_root: Path, spark: SparkSession, place: str
) -> None:
    """The next batch has to do without them; Spark may start others, or give up."""
    window_ms = 1 if "publish" in place else 0
    ingest = Ingest(tmp_path, log_root, batch_bytes=220_000, window_ms=window_ms, large=True)
    feed = prepare(ingest, 6, 40, parts=2)
    name, at, count = place.partition("@")
    status = ingest.run(f"{name}=kill:tasks{at}{count}")
    assert status == 0 or (status == 1 and "error: Spark gave up" in ingest.said())
    assert "Traceback" not in ingest.said()
    ingest.run_in(spark)
    check(ingest, feed)


@pytest.mark.nightly(
    "tests/process/ingest/test_kills.py: the rows that kill a JVM at a named place see the same line"
)
def test_contract_34_a_dead_jvm_is_told_in_one_line_and_a_new_run_goes_on(
    tmp_path: Path, log_root: Path
) -> None:
    ingest = Ingest(tmp_path, log_root)
    feed = prepare(ingest, 8, 60, parts=12)
    process = ingest.start()
    try:
        wait_for(ingest, process, 6)
        machine = java(process)
        assert machine is not None
        machine.kill()
        assert process.wait(timeout=60) == 1
    finally:
        end(process)
    assert "error: Spark gave up" in ingest.said()
    assert "Traceback" not in ingest.said()
    assert ingest.run() == 0, ingest.said()
    check_against_truth(ingest.catalog, feed)


@pytest.mark.parametrize(
    "seed",
    [
        *(
            pytest.param(
                seed,
                marks=pytest.mark.nightly(
                    "tests/process/ingest/test_kills.py: the last seed, and small batches at named places"
                ),
            )
            for seed in range(SEEDS - 1)
        ),
        SEEDS - 1,
    ],
)
def test_contract_34_kills_at_any_moment_lose_and_double_nothing(
    tmp_path: Path, log_root: Path, spark: SparkSession, seed: int
) -> None:
    """Driver or JVM, whichever the seed says, while batches run; the last seed takes large batches.

    Each file is a batch, and before each start there are more than are waited for: every kill finds
    work under way.
    """
    dice = random.Random(seed)
    large = seed == SEEDS - 1
    ingest = Ingest(tmp_path, log_root, batch_bytes=1, large=large)
    feed = make_feed(seed, 400)
    parts = write_feed(feed, ingest.input, parts=80)
    files = 0
    for _ in range(KILLS_EACH):
        while files < len(ingest.planned()) + FILES_AHEAD:
            files += len(next(parts))
        before, steps = ingest.steps(), dice.randint(2, 6 if large else 12)
        process = ingest.start()
        try:
            wait_for(ingest, process, before + steps)
            machine = java(process)
            if machine is not None and dice.random() < 0.5:
                machine.kill()
                status = process.wait(timeout=60)
                assert (status, "error: Spark gave up" in ingest.said()) == (1, True)
            else:
                process.kill()
                assert process.wait() == -signal.SIGKILL
        finally:
            end(process)
        assert len(ingest.noted()) < files
    for _ in parts:
        pass
    ingest.run_in(spark, batch_bytes=1 << 30)
    check(ingest, feed)


def wait_for(ingest: Ingest, process: subprocess.Popen[bytes], steps: int) -> None:
    """Wait until an ingest has done so many steps, those of earlier ones included, or ended."""
    wait_until(lambda: ingest.steps() >= steps or process.poll() is not None, 120)


def test_contract_36_an_ingest_that_wakes_up_behind_another_is_fenced(
    tmp_path: Path, log_root: Path
) -> None:
    """One is held just before its entry; a second, with the same checkpoint, does all the work."""
    ingest = Ingest(tmp_path, log_root)
    feed = prepare(ingest, 9, 40, parts=2)
    gate = tmp_path / "gate"
    held = ingest.start(f"pipeline.before_commit=pause:{gate}")
    try:
        paused = gate.with_name("gate.paused")
        wait_until(lambda: paused.exists() or held.poll() is not None, 120)
        assert paused.exists()
        other = Ingest(tmp_path, log_root)
        assert other.run() == 0, other.said()
        gate.touch()
        assert held.wait(timeout=60) == 1
    finally:
        end(held)
    assert "error: fenced: this writer's epoch is" in ingest.said()
    check_against_truth(ingest.catalog, feed)
