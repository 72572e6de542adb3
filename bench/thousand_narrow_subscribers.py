"""What does a message cost where each subscriber wants one key of ten thousand?

::

    50,000 rows over 10,000 keys, commits of 2,000 ──▶ tailrace ──▶ 1,000 raw subscribers of one key each
    5 constant messages of the same size           ──▶ grpc.aio ──▶ 1,000 raw subscribers      (baseline)

Every subscriber gets five captures of about 200 bytes in five commits, so nearly each is a message of its own;
a commit has 200 of them for 200 subscribers. The baseline has them ready and sends those of a stream one after
the other. The figure is the CPU time of the server alone, from /proc: writer and subscribers share the other
core, and heartbeats are off. It does not show what a subscription costs that gets nothing;
ten_thousand_idle_subscriptions does.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench._harness import (
    Server,
    bare_server,
    machine,
    median,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, measure_capture_bytes, mutation, write_log
from tailrace_server.wal.log_writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = 50_000
KEYS = 10_000
ROWS_PER_COMMIT = 2_000
STREAMS = 1_000
EACH = ROWS // KEYS
"""Captures that each subscriber gets."""
WANTED = [f"{key:09d}" for key in range(0, KEYS, KEYS // STREAMS)]
RUNS = 5
WARM_UP_ROUNDS = 2
"""Rounds of the same before the one that counts, each on subscribers of its own."""


def write(root: Path) -> None:
    """Write all rows, a transaction a row, in commits that are published at once."""
    with LogWriter.open(root, CATALOG) as writer:
        for start in range(0, ROWS, ROWS_PER_COMMIT):
            for number in range(start, start + ROWS_PER_COMMIT):
                row = mutation(number)
                writer.append([replace(row, primary_key=f"{number % KEYS:09d}")])
            writer.commit(publish=True)


def tailrace(size: int) -> tuple[float, float]:
    """Return server CPU µs a message, and messages; of the last of a few rounds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        with server(tailrace_server(root)) as subject:
            for _ in range(WARM_UP_ROUNDS):
                a_round(subject, root, size)
            return a_round(subject, root, size)


def a_round(subject: Server, root: Path, size: int) -> tuple[float, float]:
    """Let a thousand subscribe, write, and return what ``tailrace`` does."""
    options = {"capture_bytes": size, "start": "new", "keys": WANTED}
    with subscribers(subject.address, STREAMS, EACH, **options) as process:
        before = subject.cpu_s()
        write(root)
        report = result(process)
        used = subject.cpu_s() - before
    return used / report["messages"] * 1e6, float(report["messages"])


def bare(size: int) -> float:
    """Return server CPU µs a message of the baseline."""
    with server(bare_server(EACH, 1, size)) as subject:
        options = {"capture_bytes": size, "start": "new", "go": True}
        for _ in range(WARM_UP_ROUNDS + 1):
            with subscribers(subject.address, STREAMS, EACH, **options) as process:
                before = subject.cpu_s()
                report = result(process)
                used = subject.cpu_s() - before
        return float(used / report["messages"] * 1e6)


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        size = measure_capture_bytes(root)
    runs = [(bare(size), *tailrace(size)) for _ in range(RUNS)]
    table(
        f"{ROWS:,} rows over {KEYS:,} keys to {STREAMS:,} subscribers of one key each; server CPU, median of "
        f"{RUNS} runs",
        ["", "messages", "µs a message", "s in all", "to reach"],
        [
            ["bare grpc.aio", EACH * STREAMS, *_cost([run[0] for run in runs]), ""],
            [
                "tailrace",
                f"{median([run[2] for run in runs]):.0f}",
                *_cost([run[1] for run in runs]),
                "",
            ],
            ["ratio", "", f"{median([run[1] / run[0] for run in runs]):.2f}", "", "≤ 1.3"],
        ],
    )


def _cost(each: Sequence[float]) -> list[str]:
    return [f"{median(each):.0f}", f"{median(each) * EACH * STREAMS / 1e6:.2f}"]


if __name__ == "__main__":
    main()
