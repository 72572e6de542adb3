"""How fast does a program write the log, beside what Arrow needs to make the same rows durable?

::

    100,000 rows ─▶ append_batch(record batch) ─┐
                 ─▶ append(list of mutations)  ─┼─▶ commits of 2,000 rows, each durable
                 ─▶ pyarrow: an IPC file each  ─┘

One thread. What counts is its processor time, beside the device's, which is the same: one ``fsync``
of a file of the same rows. Our commits make an entry and two names durable besides. Inserts have one
image, updates two, of which one value in four differs. The writer is warm: its compiled code is loaded.

What it does not show: transactions of few rows, each of which has a lead; declared types, which Python
checks value by value.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench._harness import machine, median, table
from bench._log import mutation
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace_server.wal.record.mutation import Mutation

ROWS = 100_000
PER_COMMIT = 2_000
RUNS = 7


def updated(row: Mutation) -> Mutation:
    """Return an update of a row that changes its price."""
    assert row.after is not None
    return replace(row, before=row.after, after=row.after.replace(b".99", b".49"))


def batch_of(rows: Sequence[Mutation]) -> pa.RecordBatch:
    """Return rows as a program would have them that works with Arrow."""
    return pa.RecordBatch.from_pydict(
        {
            "entity_type": pa.array([row.entity_type for row in rows], pa.utf8()),
            "primary_key": pa.array([row.primary_key for row in rows], pa.utf8()),
            "operation": pa.array([row.operation for row in rows], pa.uint8()),
            "before": pa.array([row.before for row in rows], pa.binary()),
            "after": pa.array([row.after for row in rows], pa.binary()),
        }
    )


Times = tuple[float, float]
"""Processor seconds and seconds."""


def write_log(root: Path, append: Callable[[LogWriter, int], None], commits: int) -> Times:
    """Write the log with a way to append the rows of a commit; return the time without opening it."""
    with LogWriter.open(root, "bench") as writer:
        begun = now()
        for place in range(commits):
            append(writer, place)
            writer.commit()
        return since(begun)


def write_arrow(root: Path, batches: Sequence[pa.RecordBatch]) -> Times:
    """Write each batch to a file of its own, and make that durable; return the time."""
    root.mkdir()
    begun = now()
    for place, batch in enumerate(batches):
        with (root / f"{place}.arrow").open("wb") as file:
            with pa.ipc.new_file(file, batch.schema) as arrow:
                arrow.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
    return since(begun)


def now() -> Times:
    """Return the time."""
    return time.thread_time(), time.perf_counter()


def since(begun: Times) -> Times:
    """Return the time that has passed."""
    cpu, clock = now()
    return cpu - begun[0], clock - begun[1]


def ways(
    root: Path, rows: Sequence[Mutation], batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[str, Callable[[], Times]]]:
    """Yield each way with a call that writes everything once."""
    commits = len(batches)
    parts = [rows[start : start + PER_COMMIT] for start in range(0, len(rows), PER_COMMIT)]
    yield (
        "append_batch",
        lambda: write_log(root / "b", lambda log, at: log.append_batch(batches[at]), commits),
    )
    yield "append", lambda: write_log(root / "a", lambda log, at: log.append(parts[at]), commits)
    yield "pyarrow", lambda: write_arrow(root / "p", batches)


def main() -> None:
    """Measure and print."""
    print(machine())
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    lines = []
    inserts = [mutation(number) for number in range(count)]
    for kind, rows in (("inserts", inserts), ("updates", [updated(row) for row in inserts])):
        parts = [rows[start : start + PER_COMMIT] for start in range(0, count, PER_COMMIT)]
        batches = [batch_of(part) for part in parts]
        runs: dict[str, list[Times]] = {}
        for number in range(RUNS + 1):
            with tempfile.TemporaryDirectory() as folder:
                for way, write in ways(Path(folder), rows, batches):
                    found = write()
                    if number:  # the first run loads and warms
                        runs.setdefault(way, []).append(found)
                for name in "ab":
                    log = CommitLog.open(Path(folder, name, "bench")).state
                    assert log.published == len(batches)
        for way, figures in runs.items():
            ratios = [
                one / other for (one, _), (other, _) in zip(figures, runs["pyarrow"], strict=True)
            ]
            cpu = median([cpu for cpu, _ in figures])
            wall = median([wall for _, wall in figures])
            lines.append(
                [
                    kind,
                    way,
                    f"{cpu / count * 1e6:.2f} µs",
                    f"{count / cpu / 1e3:,.0f} k",
                    f"{min(count / cpu for cpu, _ in figures) / 1e3:,.0f} to "
                    f"{max(count / cpu for cpu, _ in figures) / 1e3:,.0f} k",
                    f"{count / wall / 1e3:,.0f} k",
                    f"{median(ratios):.1f}",
                ]
            )
    table(
        f"{count:,} rows in commits of {PER_COMMIT:,}, median of {RUNS}",
        [
            "rows",
            "way",
            "CPU a row",
            "rows a CPU second",
            "of all runs",
            "rows/s",
            "CPU of pyarrow",
        ],
        lines,
    )


if __name__ == "__main__":
    main()
