"""How fast does the Spark stage read a mangled change stream, per core, against the pure reader?

::

                           ┌─▶ Spark, local[2]: read, exchange, deduplicate, times, exchange, part ─▶ finished
    containers of Avro ────┤
    (each statement 3      └─▶ `tailrace.cdcv2.Reader` over `read_container`, one core ──────────────▶ finished
    times, shuffled)

Both begin with the files and end with the finished updates at hand: as rows of Python in the one, as pieces
of Arrow tables in the other, whose data is still in Avro. "A core" is updates for each second of CPU, of the
JVM and of Python's workers together, so that neither idle waits nor a neighbour's load flatter it.

Neither makes records of them or writes a log; the whole ingest, with its fold, its index of keys, segments and
fsync, is a line of its own. Updates are counted as received, copies included. The session is warm: a first
batch costs the start of the JVM and of Python's workers (about 15 s of CPU), and once on a machine the
compilation of the loops (6 s).
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pyarrow as pa

from bench._harness import machine, median, table
from tailrace.cdcv2 import Progress, Reader, Update
from tailrace_server.cdcv2 import read_container, write_container
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.batch import parts_by_task, read_batch
from tailrace_server.pipeline.cdcv2.files import StreamSchema, parts_of_file
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
from tailrace_server.pipeline.cdcv2.pieces import Kind
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.cdcv2.spark_runner import PART_BYTES, SparkRunner
from tailrace_server.pipeline.cdcv2.state import Control
from tailrace_server.pipeline.cdcv2.steps import SeparateFinished
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.spark.pieces import decoded
from tailrace_server.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

UPDATES = 5_000_000
COPIES = 3
WINDOW = 10_000
"""Updates within which messages are shuffled."""
PER_TIME = 100
PER_MESSAGE = 100
TIMES_PER_PROGRESS = 100
FILES = 8
CORES = 2
SHARES = 4
RUNS = 3

SCHEMA = StreamSchema(
    json.dumps(
        documented_schema(
            {
                "type": "record",
                "name": "product",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "name", "type": "string"},
                    {"name": "stock", "type": ["null", "int"]},
                ],
            }
        )
    )
)


class Found(NamedTuple):
    """What came out, to be compared."""

    updates: int
    times: int
    """Sum of the times of all updates."""
    frontier: int | None


def messages(copies: int) -> Iterator[Any]:
    """Yield the statements of a history, mangled."""
    rng = random.Random(7)
    window: list[Any] = []
    distinct = UPDATES // copies
    last = distinct // PER_TIME
    for time_ in range(1, last + 1):
        first = (time_ - 1) * PER_TIME
        rows = [
            Update((n, f"product number {n}", n % 1000), time_, 1)
            for n in range(first, first + PER_TIME)
        ]
        window.extend([rows] * copies)
        if time_ % TIMES_PER_PROGRESS == 0 or time_ == last:
            lower = (time_ - 1) // TIMES_PER_PROGRESS * TIMES_PER_PROGRESS + 1
            counts = tuple((each, PER_TIME) for each in range(lower, time_ + 1))
            begin = 0 if lower == 1 else lower
            window.extend([Progress((begin,), (time_ + 1,), counts)] * copies)
        if len(window) >= WINDOW // PER_MESSAGE:
            rng.shuffle(window)
            yield from window
            window.clear()
    rng.shuffle(window)
    yield from window


def write_files(folder: Path, copies: int) -> list[Path]:
    """Write the messages, one part of them a file."""
    folder.mkdir()
    found = list(messages(copies))
    files = []
    for number in range(FILES):
        path = folder / f"{number}.avro"
        part = found[number * len(found) // FILES : (number + 1) * len(found) // FILES]
        with path.open("wb") as file:
            write_container(SCHEMA.form, file, part, codec="null")
        files.append(path)
    return files


def read_purely(files: Iterable[Path]) -> tuple[float, Found]:
    """Return how many seconds of CPU the pure reader takes, and what it finds."""
    reader: Reader[int] = Reader()
    updates = times = 0
    started = time.process_time()
    for path in files:
        with path.open("rb") as file:
            for message in read_container(SCHEMA.form, file):
                for finished in reader.receive(message):
                    updates += len(finished.updates)
                    times += sum(each[1] for each in finished.updates)
    seconds = time.process_time() - started
    return seconds, Found(updates, times, reader.frontier[0] if reader.frontier else None)


def cpu_of_spark() -> float:
    """Return the CPU seconds that the JVM and Python's workers have used, those that have ended included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take the pieces of finished updates; yield how many there are and the sum of their times."""
    updates = times = 0
    for batch in batches:
        for piece in batch.column("piece"):
            rows = decoded(piece.as_buffer())
            updates += rows.num_rows
            times += int(rows.column("time").to_numpy().sum())
    yield pa.RecordBatch.from_pydict({"updates": [updates], "times": [times]})


def read_in_tasks(
    spark: SparkSession, files: Iterable[Path], aside: Path
) -> tuple[float, float, Found]:
    """Return how long the stage takes, in seconds and in seconds of CPU, and what it finds."""
    found = [
        part
        for ordinal, path in enumerate(files, 1)
        for part in parts_of_file(str(path), ordinal, path.stat().st_size, PART_BYTES)
    ]
    started, cpu = time.perf_counter(), cpu_of_spark()
    with SparkRunner(spark, SHARES) as runner:
        control = Control("product", [], SCHEMA.text)
        reading = read_batch(runner, parts_by_task(found, 4 * CORES), SCHEMA, aside, control)
        step = SeparateFinished(aside / "state.arrow", None, reading.frontier, SHARES)
        left = runner.only(runner.run(reading.open, step), Kind.FINISHED_UPDATES)
        sums = left.mapInArrow(count, "updates long, times long").toArrow().to_pydict()
    seconds = time.perf_counter() - started
    cpu = cpu_of_spark() - cpu
    return seconds, cpu, Found(sum(sums["updates"]), sum(sums["times"]), reading.frontier)


def ingest(spark: SparkSession, folder: Path, log: Path) -> float:
    """Return how long the whole ingest takes, to the publication."""
    settings = Cdcv2Settings(
        input=folder,
        log=log,
        catalog="bench",
        folding=Folding(SCHEMA, "product", ("id",)),
        small_batch_rows=0,
        batch_bytes=1 << 40,
    )
    log.mkdir()
    started = time.perf_counter()
    outcome = ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping(), spark=spark)
    seconds = time.perf_counter() - started
    assert outcome.counters.rows == UPDATES // COPIES // PER_TIME * PER_TIME
    assert outcome.counters.published == UPDATES // COPIES // PER_TIME
    return seconds


def main() -> None:
    """Measure and print."""
    print(machine())
    rows = []
    conf = {"spark.driver.memory": "4g"}
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as name,
        spark_session("bench", master=f"local[{CORES}]", quick=False, conf=conf) as spark,
    ):
        folder = Path(name)
        for copies in (COPIES, 1):
            files = write_files(folder / f"of-{copies}", copies)
            bare, expected = read_purely(files)
            taken = []
            for run in range(RUNS + 1):
                seconds, cpu, found = read_in_tasks(spark, files, folder)
                assert found == expected, (found, expected)
                if run:  # the first one warms up
                    taken.append((seconds, cpu))
            pure, stage = UPDATES / bare, UPDATES / median([one for one, _ in taken])
            core = UPDATES / median([other for _, other in taken])
            rows.append(
                [
                    f"each statement {copies} times",
                    f"{stage / 1e3:.0f} k updates/s",
                    "400 k",
                    f"{core / 1e3:.0f} k",
                    f"{pure / 1e3:.0f} k",
                    f"{core / pure:.2f}",
                    "1",
                ]
            )
        whole = [ingest(spark, folder / f"of-{COPIES}", folder / f"log{run}") for run in range(2)]
    table(
        f"{UPDATES:,} updates as received, median of {RUNS}",
        ["", "stage", "to reach", "a core", "pure reader", "a core against it", "to reach"],
        rows,
    )
    print(
        f"whole ingest, {COPIES} copies, {UPDATES // COPIES:,} records: "
        f"{UPDATES / whole[-1] / 1e3:.0f} k updates/s"
    )


if __name__ == "__main__":
    main()
