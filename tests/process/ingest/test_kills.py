"""Ingests that are killed: at named places, at any moment, driver, JVM or task; then run again."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tailrace_server.feed.topics import make_feed, write_feed
from tailrace_server.pipeline.stream import CHECKPOINT
from tailrace_server.wal.writer import LogWriter
from tests.process.ingest.killable import Command, end, unless_gone
from tests.process.ingest.reading import published
from tests.process.ingest.truth import check_against_truth
from tests.support.polling import wait_until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tailrace_server.feed.topics import Feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

KILLS = 50
"""Over all seeds of the random kills."""
SEEDS = 5


class Ingest(Command):
    """An ingest of Debezium's files in small batches."""

    def __init__(self, folder: Path, log_root: Path, *options: str) -> None:
        given = ("--master", "local[2]", "--batch-bytes", "100KiB", "--transaction-idle", "1h")
        super().__init__("debezium", folder, log_root, *given, *options)

    def batches(self) -> int:
        """How many batches Spark has planned."""
        folder = self.catalog / CHECKPOINT / "offsets"
        return sum(name.name.isdigit() for name in folder.iterdir()) if folder.is_dir() else 0


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


@pytest.mark.parametrize(
    "failpoint",
    [
        "segment.before_rename=kill@2",
        "segment.after_rename=kill@2",
        "pipeline.before_commit=kill@2",
        "schema.after_link=kill@3",
        "commit.checked=kill@4",
        "entry.before_link=kill@5",
        "entry.linked=kill@5",
        "entry.after_link=kill@5",
        "pipeline.after_commit=kill@2",
        "pipeline.before_publish=kill@2",
        "publication.before_link=kill@2",
        "publication.after_link=kill@2",
    ],
)
def test_contract_34_a_driver_killed_at_a_named_place_loses_and_doubles_nothing(
    tmp_path: Path, log_root: Path, failpoint: str
) -> None:
    """With a window its commits have publications, without one they publish themselves."""
    window = "1ms" if "publi" in failpoint else "0"
    ingest = Ingest(tmp_path, log_root, "--publish-window", window)
    feed = prepare(ingest, 5, 40, parts=4)
    assert ingest.run(failpoint) == -signal.SIGKILL
    assert ingest.run() == 0, ingest.said()
    check_against_truth(ingest.catalog, feed)


@pytest.mark.parametrize("failpoint", ["segment.before_rename", "segment.after_rename"])
def test_contract_34_a_task_killed_at_a_named_place_loses_and_doubles_nothing(
    tmp_path: Path, log_root: Path, failpoint: str
) -> None:
    """In a large batch segments are written by tasks; the driver reports that Spark gave up."""
    ingest = Ingest(tmp_path, log_root, "--small-batch-rows", "0", "--batch-bytes", "1MiB")
    feed = prepare(ingest, 6, 40, parts=2)
    LogWriter.create_catalog(log_root, "shop")  # has a segment of its own, not written by a task
    assert ingest.run(f"{failpoint}=kill") == 1
    assert "error: Spark gave up" in ingest.said()
    assert "Traceback" not in ingest.said()
    assert published(ingest.catalog) == 0
    assert ingest.run() == 0, ingest.said()
    check_against_truth(ingest.catalog, feed)


def test_contract_34_a_dead_jvm_is_told_in_one_line_and_a_new_run_goes_on(
    tmp_path: Path, log_root: Path
) -> None:
    ingest = Ingest(tmp_path, log_root)
    feed = prepare(ingest, 8, 60, parts=12)
    process = ingest.start()
    try:
        wait_for_batches(ingest, process, 2)
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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_contract_34_kills_at_any_moment_lose_and_double_nothing(
    tmp_path: Path, log_root: Path, seed: int
) -> None:
    """Driver or JVM, whichever the seed says, while batches run; the last seed takes large batches."""
    dice = random.Random(seed)
    large = ("--small-batch-rows", "0") if seed == SEEDS - 1 else ()
    ingest = Ingest(tmp_path, log_root, *large)
    feed = prepare(ingest, seed, 400, parts=40)
    for _ in range(KILLS // SEEDS):
        process = ingest.start()
        try:
            if not wait_for_batches(ingest, process, ingest.batches() + 1):
                break
            time.sleep(dice.uniform(0.0, 1.0 if not large else 4.0))
            machine = java(process)
            if dice.random() < 0.5 and machine is not None:
                unless_gone(machine.kill)
                process.wait(timeout=60)
            else:
                unless_gone(process.kill)
        finally:
            end(process)
    assert ingest.run() == 0, ingest.said()
    check_against_truth(ingest.catalog, feed)


def wait_for_batches(ingest: Ingest, process: subprocess.Popen[bytes], count: int) -> bool:
    """Wait until Spark has planned so many batches; False if the process ended before."""
    wait_until(lambda: ingest.batches() >= count or process.poll() is not None, 120)
    return ingest.batches() >= count


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
