"""How fast does an ingest read Debezium's envelopes into a log, against the Parquet that Spark makes of them?

::

    files of envelopes ──┬─▶ ingest: decode, group, order, consolidate ─▶ segments, fsync, an entry a batch
                         └─▶ from_json, sort by LSN ─────────────────────▶ parquet, uncompressed

Both read the same files, in turns, in one session. The driver's memory is the peak of this process's RSS above
what it was before an ingest, at a quarter of the rows and at all of them.

The options give the input another shape. All but `--shape usual` only print time and memory of the ingest::

    usual        transactions of 1 to 50 rows in six tables, with END
    one          one transaction
    many         transactions of one row, all in one batch
    types        2,000 entity types
    hot          one key has half of all rows
    wide         rows of 1 MiB: a thousandth of the rows
    unusable     no line can be used
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench._harness import machine, median, table
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.spark.session import spark_session
from tailrace_server.pipeline.transactions.ingest import run_ingest
from tailrace_server.pipeline.transactions.settings import IngestSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tailrace_server.pipeline.run.progress import IngestCounters

ROWS: Final = 1_200_000
CORES: Final = 2
RUNS: Final = 3
ROWS_PER_FILE: Final = 50_000
KEYS: Final = 200_000
SHAPES: Final = ("usual", "one", "many", "types", "hot", "wide", "unusable")
SOURCE: Final = Debezium(keys={"*": ("id",)}, whole_before=("*",))

ENVELOPE: Final = (
    "before string, after string, op string, ts_ms long, source struct<connector string, name string, "
    "ts_ms long, schema string, table string, txId long, lsn long>, "
    "transaction struct<id string, total_order long>"
)


class Ingested(NamedTuple):
    """What one ingest cost."""

    seconds: float
    peak_bytes: int
    """The most that the driver's RSS was above what it was before."""
    counters: IngestCounters
    worker_bytes: int
    """The peak of the RSS of any Python worker so far."""


def lines(shape: str, rows: int) -> Iterator[str]:
    """Yield the messages of an input."""
    rng = random.Random(1)
    tables = [f"table_{number:04}" for number in range(2_000 if shape == "types" else 6)]
    pad = "x" * (1 << 19 if shape == "wide" else 40)
    rows = rows // 1_000 if shape == "wide" else rows
    revisions: dict[tuple[str, int], int] = {}
    done, transaction = 0, 1_000
    while done < rows:
        transaction += 1
        size = {"one": rows, "many": 1}.get(shape) or rng.randint(1, 50)
        size = min(size, rows - done)
        for order in range(1, size + 1):
            lsn = 10_000_000 + 48 * (done + order)
            name, key = rng.choice(tables), rng.randrange(KEYS // len(tables) + 1)
            if shape == "hot" and rng.random() < 0.5:
                name, key = tables[0], 7
            revision = revisions.get((name, key), 0)
            revisions[name, key] = revision + 1
            before, after = (image(name, key, each, pad) for each in (revision, revision + 1))
            if shape == "unusable":
                yield f'{{"before":{before},"after":{after},"source":{{"table":"{name}"'
                continue
            yield (
                f'{{"before":{before if revision else "null"},"after":{after},'
                '"source":{"version":"3.0.0.Final","connector":"postgresql","name":"shop",'
                f'"ts_ms":{1_760_000_000_000 + transaction},"snapshot":"false","db":"shop",'
                f'"schema":"public","table":"{name}","txId":{transaction},"lsn":{lsn}}},'
                f'"op":"{"u" if revision else "c"}","ts_ms":{1_760_000_000_003 + transaction},'
                f'"transaction":{{"id":"{transaction}:{lsn}","total_order":{order}}}}}'
            )
        done += size
        if shape != "unusable":
            yield f'{{"status":"END","id":"{transaction}:{lsn}","event_count":{size}}}'


def image(name: str, key: int, revision: int, pad: str) -> str:
    """Return the image of a row at one of its revisions."""
    return (
        f'{{"id":{key},"name":"{name} {key}","price":"{revision % 9973}.10","stock":{revision % 997},'
        f'"note":"revision {revision} {pad}"}}'
    )


def write_files(folder: Path, shape: str, rows: int) -> int:
    """Write an input, in one file if its lines cannot be used; return its size in bytes."""
    folder.mkdir()
    total = done = 0
    file = None
    for text in lines(shape, rows):
        if file is None or (done >= ROWS_PER_FILE and shape != "unusable"):
            if file is not None:
                file.close()
            file, done = (folder / f"{total:012}.json").open("w"), 0
        total += file.write(f"{text}\n")
        done += 1
    assert file is not None
    file.close()
    return total


def ingest(spark: SparkSession, folder: Path, log: Path, batch_bytes: int) -> Ingested:
    """Ingest a folder."""
    log.mkdir()
    settings = IngestSettings(
        input=folder, log=log, catalog="bench", source=SOURCE, batch_bytes=batch_bytes
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    started = time.perf_counter()
    counters = run_ingest(settings, ProgressReporter(quiet=True), spark).counters
    seconds = time.perf_counter() - started
    peak = resident("VmHWM") - before
    return Ingested(seconds, peak, counters, max(map(worker_peak, Path("/proc").glob("[0-9]*"))))


def resident(name: str, process: Path = Path("/proc/self")) -> int:
    """Return a size of a process's memory in bytes."""
    for line in (process / "status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def worker_peak(process: Path) -> int:
    """Return the peak of a Python worker's RSS in bytes; 0 for any other process."""
    try:
        is_worker = b"pyspark.daemon" in (process / "cmdline").read_bytes()
        return resident("VmHWM", process) if is_worker else 0
    except OSError:  # it has ended
        return 0


def seconds_of_parquet(spark: SparkSession, folder: Path, target: Path) -> float:
    """Return how long Spark takes to parse the same files and write them, sorted."""
    started = time.perf_counter()
    (
        spark.read.text(str(folder))
        .selectExpr(f"from_json(value, '{ENVELOPE}') AS envelope")
        .select("envelope.*")
        .where("op IS NOT NULL")
        .orderBy("source.lsn")
        .write.option("compression", "none")
        .parquet(str(target))
    )
    return time.perf_counter() - started


def compare(spark: SparkSession, folder: Path, rows: int, batch_bytes: int) -> None:
    """Measure both writers in turns, and the driver's memory at two sizes."""
    parts = {count: folder / f"input-{count}" for count in (rows // 4, rows)}
    sizes = {count: write_files(part, "usual", count) for count, part in parts.items()}
    pairs, peaks = [], {}
    for run in range(RUNS + 1):
        for count, part in parts.items():
            log = folder / f"log-{count}-{run}"
            ours = ingest(spark, part, log, batch_bytes)
            assert ours.counters.rows == count
            peaks[count] = ours.peak_bytes
            shutil.rmtree(log)
        theirs = seconds_of_parquet(spark, parts[rows], folder / f"parquet-{run}")
        shutil.rmtree(folder / f"parquet-{run}")
        if run:  # the first one warms both up
            pairs.append((ours.seconds, theirs))
    table(
        f"{rows:,} envelopes, {sizes[rows] / 1e6:,.0f} MB, median of {RUNS}",
        [
            "ingest",
            "parquet, sorted",
            "ratio of speeds",
            "to reach",
            *map("{:,} rows".format, parts),
        ],
        [
            [
                f"{rows / median([one for one, _ in pairs]) / 1e3:.0f} k rows/s",
                f"{rows / median([other for _, other in pairs]) / 1e3:.0f} k rows/s",
                f"{median([other / one for one, other in pairs]):.2f}",
                "0.8",
                *(f"driver + {peaks[count] / 1e6:.0f} MB" for count in parts),
            ]
        ],
    )


def measure_shape(
    spark: SparkSession, folder: Path, shape: str, rows: int, batch_bytes: int
) -> None:
    """Measure one ingest of an extreme shape at two sizes."""
    found = []
    for count in (rows // 4, rows):
        part = folder / f"input-{count}"
        size = write_files(part, shape, count)
        ours = ingest(spark, part, folder / f"log-{count}", batch_bytes)
        found.append(
            [
                f"{ours.counters.lines:,}",
                f"{size / 1e6:,.0f} MB",
                f"{ours.counters.versions:,}",
                f"{ours.counters.quarantined:,}",
                f"{ours.seconds:.1f} s",
                f"{ours.peak_bytes / 1e6:.0f} MB",
                f"{ours.worker_bytes / 1e6:.0f} MB",
            ]
        )
        shutil.rmtree(part)
    header = ["lines", "input", "versions", "quarantined", "time", "driver's peak"]
    header.append("worker's peak")
    table(f"shape {shape}", header, found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="usual")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--batch-bytes", type=int, default=1 << 40, help="default: one batch")
    options = parser.parse_args()
    print(machine())
    conf = {"spark.driver.memory": "3g"}
    with (
        tempfile.TemporaryDirectory(dir=os.getcwd()) as name,
        spark_session("bench", master=f"local[{CORES}]", quick=False, conf=conf) as spark,
    ):
        if options.shape == "usual":
            compare(spark, Path(name), options.rows, options.batch_bytes)
        else:
            measure_shape(spark, Path(name), options.shape, options.rows, options.batch_bytes)


if __name__ == "__main__":
    main()
