"""Has a figure that users notice become worse since the last release?

::

    catch-up and live to ten subscribers      against bare grpc.aio that sends constant bytes
    a commit of 2,000 rows, of one row        against an Arrow file of the same rows, made durable
    200 transactions/s to ten subscribers     against one bare durable file, and a message of bare grpc.aio
    memory of an idle server                  against an idle server of bare grpc.aio

Each figure is a ratio to a baseline of the same run, and a smaller one is better. ``make bench-gate`` compares
the ratios with those in gate.json, and fails if one is larger by more than `TOLERANCE`: single runs on a shared
machine differ by so much. ``python -m bench.gate --update`` writes the ratios of this run to gate.json; do
that for a release, or when a figure has become better.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import latency_of_two_hundred_a_second as latency
from bench import log_writer
from bench._harness import (
    bare_server,
    machine,
    median,
    server,
    stay_with_the_subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, measure_capture_bytes, mutation, write_log
from bench.one_log_hundred_subscribers import bare, catch_up, live, write_warm_up
from tailrace_server.wal.log_writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOLERANCE: Final = 0.25
STREAMS: Final = 10
RUNS: Final = 3
SMALL_COMMITS: Final = 500
KEPT: Final = Path(__file__).with_suffix(".json")


def delivery(root: Path, size: int) -> dict[str, float]:
    """Return the seconds of catch-up and live, each against bare grpc.aio."""
    runs = [
        (bare(STREAMS, size), catch_up(root, STREAMS, size), live(root, STREAMS, size))
        for _ in range(RUNS)
    ]
    return {
        "catch-up to 10, time": median([base[0] / caught[0] for base, caught, _ in runs]),
        "catch-up to 10, server CPU": median([caught[1] / base[1] for base, caught, _ in runs]),
        "live to 10, time": median([base[0] / lived[0] for base, _, lived in runs]),
        "live to 10, server CPU": median([lived[1] / base[1] for base, _, lived in runs]),
    }


def writer(root: Path) -> dict[str, float]:
    """Return the CPU of commits, each against an Arrow file of the same rows."""
    rows = [mutation(number) for number in range(100_000)]
    parts = [rows[start : start + 2_000] for start in range(0, len(rows), 2_000)]
    batches = [log_writer.batch_of(part) for part in parts]
    few = [[row] for row in rows[:SMALL_COMMITS]]
    few_batches = [log_writer.batch_of(part) for part in few]
    ways: dict[str, tuple[Callable[[LogWriter, int], None], int]] = {
        "append_batch of 2,000, CPU": (lambda log, at: log.append_batch(batches[at]), len(batches)),
        "append of 2,000, CPU": (lambda log, at: log.append(parts[at]), len(parts)),
        "append_batch of one, CPU": (lambda log, at: log.append_batch(few_batches[at]), len(few)),
        "append of one, CPU": (lambda log, at: log.append(few[at]), len(few)),
    }
    found: dict[str, list[float]] = {}
    for run in range(RUNS):
        large = log_writer.write_arrow(root / f"large {run}", batches)[0]
        small = log_writer.write_arrow(root / f"small {run}", few_batches)[0]
        for name, (append, commits) in ways.items():
            cpu_s, _ = log_writer.write_log(root / f"{name} {run}", append, commits)
            found.setdefault(name, []).append(cpu_s / (small if commits == len(few) else large))
    return {name: median(ratios) for name, ratios in found.items()}


def paced(root: Path, size: int) -> dict[str, float]:
    """Return latency and server CPU at 200 transactions/s to ten subscribers."""
    file_ms = latency.bare(root / "bare")
    found, cpu_s = latency.latencies_and_cpu_s(root / "paced", True)
    deliveries = (latency.WARM_UP + latency.TRANSACTIONS) * latency.STREAMS
    message_us = bare(STREAMS, size)[1] * (65_536 // size)
    return {
        "200/s to 10, p50": found[len(found) // 2] / file_ms[len(file_ms) // 2],
        "200/s to 10, server CPU a delivery": cpu_s / deliveries * 1e6 / message_us,
    }


def idle(root: Path) -> dict[str, float]:
    """Return the anonymous memory of an idle server."""
    LogWriter.open(root / "idle", CATALOG).close()
    with server(tailrace_server(root / "idle", http="127.0.0.1:0")) as subject:
        ours = settled(subject.anonymous_bytes)
    with server(bare_server(1, 1, 200)) as subject:
        return {"idle memory": ours / settled(subject.anonymous_bytes)}


def settled(measure: Callable[[], int]) -> int:
    """Return a size once it no longer changes, or after ten seconds."""
    sizes = [measure()]
    while len(sizes) < 20 and not (
        len(sizes) > 6 and all(one == other for one, other in pairwise(sizes[-4:]))
    ):
        time.sleep(0.5)
        sizes.append(measure())
    return sizes[-1]


def measured() -> dict[str, float]:
    """Measure everything; return the ratios by name."""
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        logs = root / "logs"
        logs.mkdir()
        write_log(logs, rows=200_000, rows_per_transaction=100, transactions_per_commit=2000)
        write_warm_up(logs)
        size = measure_capture_bytes(logs)
        return {**paced(root, size), **delivery(logs, size), **writer(root), **idle(root)}


def compare(found: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """Print a table, and return the names of figures that became worse."""
    worse = [name for name, ratio in found.items() if ratio > kept[name] * (1 + TOLERANCE)]
    rows: list[list[Any]] = [
        [name, f"{kept[name]:.2f}", f"{ratio:.2f}", "**worse**" if name in worse else ""]
        for name, ratio in found.items()
    ]
    table(
        "ratios to the baseline of the same run; smaller is better",
        ["figure", "kept", "now", ""],
        rows,
    )
    return worse


def main() -> None:
    """Measure, and compare or update."""
    print(machine())
    found = measured()
    if "--update" in sys.argv[1:]:
        KEPT.write_text(
            json.dumps({name: round(each, 2) for name, each in found.items()}, indent=2) + "\n"
        )
        print(f"written: {os.path.relpath(KEPT)}")
        return
    if worse := compare(found, json.loads(KEPT.read_text())):
        sys.exit(f"worse than gate.json by more than {TOLERANCE:.0%}: {', '.join(worse)}")


if __name__ == "__main__":
    main()
