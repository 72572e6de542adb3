"""Does one subscriber that stops reading cost its 49 neighbours, or the server's memory, anything?

::

    writer: a commit of 2,000 captures after the other ──▶ tailrace ──▶ 50 raw subscribers, none or one stalled

Throughput of the others against the same run with none stalled, in turn; and growth of the server's
anonymous memory (RssAnon) over 60 s with the stalled one, after a warm-up in which what the server keeps of
reads and frames has come to its bounds (about 300 commits).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench._harness import machine, median, result, server, subscribers, table, tailrace_server
from bench._log import CATALOG, measure_capture_bytes, mutation, write_log
from tailrace_server.wal.log_writer import LogWriter

CAPTURES = 100_000
PER_COMMIT = 2_000
STREAMS = 50
RUNS = 3
SOAK_S = 60.0
WARM_UP_S = 30.0


def append(root: Path, captures: int) -> None:
    """Publish captures, a commit after the other."""
    write_log(
        root,
        rows=captures,
        rows_per_transaction=100,
        transactions_per_commit=PER_COMMIT // 100,
        publish_every=1,
    )


def throughput(stalled: int) -> tuple[float, int]:
    """Return captures a second that the reading subscribers got, and the size of a capture."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=100, rows_per_transaction=100, transactions_per_commit=1)
        size = measure_capture_bytes(root)
        options = {"capture_bytes": size, "start": "new", "catalog": CATALOG, "stalled": stalled}
        with (
            server(tailrace_server(root)) as subject,
            subscribers(subject.address, STREAMS - 1, CAPTURES, **options) as process,
        ):
            append(root, CAPTURES)
            report = result(process)
        return report["captures"] / report["seconds"], size


def growth() -> float:
    """Return by how much anonymous memory grew in a minute with one stalled subscriber, bytes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=100, rows_per_transaction=100, transactions_per_commit=1)
        options = {"capture_bytes": measure_capture_bytes(root), "start": "new", "stalled": 1}
        with (
            server(tailrace_server(root, "--send-deadline-s", "10m")) as subject,
            subscribers(subject.address, STREAMS - 1, 1 << 40, **options),
            LogWriter.open(root, CATALOG) as writer,
        ):
            _write_for(writer, WARM_UP_S)
            before = subject.anonymous_bytes()
            _write_for(writer, SOAK_S)
            return subject.anonymous_bytes() - before


def _write_for(writer: LogWriter, seconds: float) -> None:
    until = time.monotonic() + seconds
    rows = [mutation(number) for number in range(100)]
    while time.monotonic() < until:
        for _ in range(PER_COMMIT // 100):
            writer.append(rows)
        writer.commit()
        writer.publish()


def main() -> None:
    """Measure and print."""
    print(machine())
    pairs = [(throughput(0)[0], throughput(1)[0]) for _ in range(RUNS)]
    growths = [growth() for _ in range(RUNS)]
    table(
        f"49 of {STREAMS} subscribers, {CAPTURES:,} captures each, median of {RUNS}",
        ["none stalled", "one stalled", "ratio", f"RssAnon growth in {SOAK_S:.0f} s, one stalled"],
        [
            [
                f"{median([one for one, _ in pairs]) / 1e6:.2f} M/s",
                f"{median([other for _, other in pairs]) / 1e6:.2f} M/s",
                f"{median([other / one for one, other in pairs]):.2f}",
                f"{median(growths) / (1 << 20):.2f} MiB",
            ]
        ],
    )


if __name__ == "__main__":
    main()
