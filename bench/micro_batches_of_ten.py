"""How long from a source file's arrival until subscribers may see its transaction?

::

    rename a file of 10 rows and their END ──▶ ingest --follow (Spark) ──▶ commit ──▶ publication

The file is renamed into the folder; the clock stops when the publication can be read. One file at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench._harness import machine, table
from tailrace.errors import TailraceError
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCHES = 100
WARM_UP = 20
ROWS = 10
PATIENCE_S = 120.0


def lines(number: int) -> Iterator[str]:
    """Yield one transaction of ten updates, as Debezium writes it, with its BEGIN and END."""
    transaction = f"{1000 + number}:{number}"
    counts = [{"data_collection": "public.product", "event_count": ROWS}]
    marker = {"id": transaction, "ts_ms": 1762000000000}
    yield json.dumps({"status": "BEGIN", **marker, "event_count": None, "data_collections": None})
    for row in range(ROWS):
        source = {
            **{"connector": "postgresql", "schema": "public", "table": "product"},
            **{"txId": 1000 + number, "lsn": 10_000 * number + row, "ts_ms": 1762000000000},
        }
        value = {
            "before": {"id": row, "price": f"{number}.10", "text": "t" * 60},
            "after": {"id": row, "price": f"{number + 1}.10", "text": "t" * 60},
            "source": source,
            "op": "u",
            "transaction": {
                **{"id": transaction, "total_order": row + 1, "data_collection_order": row + 1},
            },
        }
        yield json.dumps({"key": {"id": row}, "value": value})
    yield json.dumps({"status": "END", **marker, "event_count": ROWS, "data_collections": counts})


def put(folder: Path, incoming: Path, number: int, texts: Iterable[str] | None = None) -> float:
    """Let a file appear, and return when; without texts, that of one transaction."""
    temporary = folder / "writing"
    temporary.write_text("".join(f"{line}\n" for line in texts or lines(number)))
    now = time.perf_counter()
    temporary.rename(incoming / f"shop-{number:06d}.json")
    return now


def wait_for(log: CommitLog, version: int) -> float:
    """Return when a version can be seen."""
    deadline = time.perf_counter() + PATIENCE_S
    while log.view.published < version:
        log.refresh()
        assert time.perf_counter() < deadline, "ingest has published nothing"
        time.sleep(0.001)
    return time.perf_counter()


def opened(path: Path) -> CommitLog:
    """Open a log as soon as ingest has made it."""
    deadline = time.perf_counter() + PATIENCE_S
    while True:
        try:
            return CommitLog.open(path)
        except TailraceError:
            assert time.perf_counter() < deadline, "ingest has made no log"
            time.sleep(0.05)


def measure(folder: Path) -> list[float]:
    """Return the latencies in ms, sorted."""
    incoming = folder / "incoming"
    incoming.mkdir()
    put(folder, incoming, 0)
    command = ["-m", "tailrace_server", "ingest", "debezium", "--input", str(incoming), "--quiet"]
    process = psutil.Popen(
        [sys.executable, *command, "--log", str(folder), "--catalog", "shop", "--follow"],
        stdout=subprocess.DEVNULL,
    )
    try:
        log = opened(folder / "shop")
        wait_for(log, 1)
        latencies = []
        for number in range(1, WARM_UP + BATCHES):
            started = put(folder, incoming, number)
            ended = wait_for(log, number + 1)
            if number >= WARM_UP:
                latencies.append((ended - started) * 1e3)
    finally:
        process.terminate()
        process.wait(60)
    return sorted(latencies)


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        latencies = measure(Path(folder))

    def quantile(share: float) -> str:
        return f"{latencies[min(len(latencies) - 1, int(share * len(latencies)))]:.0f}"

    table(
        f"file of {ROWS} rows renamed → published, ms, {BATCHES} files",
        ["p50", "p90", "p99", "max", "to reach"],
        [[quantile(0.5), quantile(0.9), quantile(0.99), quantile(1.0), "p50 ≤ 250"]],
    )


if __name__ == "__main__":
    main()
