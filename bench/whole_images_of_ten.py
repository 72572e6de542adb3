"""What does it cost to fill images: from a source file's arrival until its transaction may be seen?

::

    rename a file of 10 updates ──▶ ingest --follow --images as-sent ──▶ publication
    rename the same file        ──▶ ingest --follow --images full    ──▶ publication

Updates as PostgreSQL sends them by default: without the row before, and without a large value that they did
not touch. Their keys are drawn from those of a snapshot that another run has taken, so that nearly all are
looked up in the log. Both ingests run at once, and get each file in turns, so whatever else the machine does
meets both.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench._harness import machine, table
from bench.micro_batches_of_ten import opened, put, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = 20_000
SNAPSHOT_ROWS = 1_000
BATCHES = 50
WARM_UP = 10
ROWS = 10
HOLE = "__debezium_unavailable_value"


def message(op: str, key: int, number: int, row: int, text: str, **more: Any) -> str:
    """Return a line about one row."""
    source = {
        **{"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public"},
        **{"table": "product", "txId": number, "lsn": 100 * number + row},
    }
    after = {"id": key, "price": f"{number}.10", "text": text}
    value = {"before": None, "after": after, "source": source, "op": op, **more}
    return json.dumps({"key": {"id": key}, "value": value})


def snapshot() -> Iterator[str]:
    """Yield the rows of the table."""
    for key in range(KEYS):
        yield message("r", key, 1, 0, "t" * 600)


def updates(number: int, seed: random.Random) -> Iterator[str]:
    """Yield a transaction of ten updates with its END."""
    transaction = str(number)
    for row, key in enumerate(seed.sample(range(KEYS), ROWS)):
        order = {"id": transaction, "total_order": row + 1, "data_collection_order": row + 1}
        yield message("u", key, number, row, HOLE, transaction=order)
    counts = [{"data_collection": "public.product", "event_count": ROWS}]
    end = {"status": "END", "id": transaction, "ts_ms": 1762000000000}
    yield json.dumps({**end, "event_count": ROWS, "data_collections": counts})


class Ingest:
    """One ingest that follows a folder of its own."""

    def __init__(self, folder: Path, images: str, stack: ExitStack) -> None:
        """Take the snapshot in a run of its own, then begin to follow."""
        self.folder, self.incoming = folder, folder / "incoming"
        self.incoming.mkdir(parents=True)
        put(folder, self.incoming, 0, snapshot())
        sizes = ["--snapshot-rows", str(SNAPSHOT_ROWS), "--small-batch-rows", "100000", "--quiet"]
        command = [
            *(sys.executable, "-m", "tailrace_server", "ingest", "debezium", "--images", images),
            *("--input", str(self.incoming), "--log", str(folder), "--catalog", "shop", *sizes),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        process = psutil.Popen([*command, "--follow"], stdout=subprocess.DEVNULL)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        self.log = opened(folder / "shop")
        self.first = KEYS // SNAPSHOT_ROWS
        self.latencies: list[float] = []

    def measure(self, number: int, texts: list[str]) -> None:
        """Let a file appear, and wait until it may be seen."""
        started = put(self.folder, self.incoming, number, texts)
        ended = wait_for(self.log, self.first + number)
        if number > WARM_UP:
            self.latencies.append((ended - started) * 1e3)


def main() -> None:
    """Measure and print."""
    print(machine())
    seed = random.Random(7)
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder, ExitStack() as stack:
        ingests = [Ingest(Path(folder) / images, images, stack) for images in ("as-sent", "full")]
        for number in range(1, WARM_UP + BATCHES + 1):
            texts = [*updates(number, seed)]
            for ingest in ingests[:: 1 if number % 2 else -1]:
                ingest.measure(number, texts)
                time.sleep(0.02)  # the other one is idle again
    sent, full = (sorted(ingest.latencies) for ingest in ingests)

    def row(name: str, at: int) -> list[str]:
        return [name, f"{sent[at]:.0f}", f"{full[at]:.0f}", f"{full[at] / sent[at]:.2f}"]

    table(
        f"file of {ROWS} updates renamed → published, ms, {BATCHES} files, {KEYS:,} keys",
        ["", "as sent", "filled", "ratio (p50 to reach: 1.3)"],
        [row("p50", BATCHES // 2), row("p90", BATCHES * 9 // 10)],
    )


if __name__ == "__main__":
    main()
