"""What does a state cost that a hundred subscribers begin with, against catching up on as many captures?

::

    log of 100,000 rows ──▶ tailrace ──▶ 100 raw subscribers from the oldest position    (baseline)
                        ──▶ tailrace ──▶ 100 raw subscribers with initial STATE

Each row was inserted once, so both are sent the same captures, in another order, and with three bytes more for
what they stand for. All begin at once, and so share the version, the scan and the frames. The server has the
first core, subscribers the second; the two are taken in turn. It does not show a base: all rows are found in
the log. Nor does it show subscribers that begin one after the other, nor a network.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from bench._harness import (
    machine,
    median,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import measure_capture_bytes, write_log
from bench.one_log_hundred_subscribers import rates, warm_up, write_warm_up

STREAMS = 100
ROWS = 100_000
"""To each subscriber."""
RUNS = 5
_KIND_BYTES = 3


def begin(
    root: Path, start: str, capture_bytes: int, streams: int, rows: int
) -> tuple[float, float]:
    """Return captures a second and server CPU µs a delivery."""
    with server(tailrace_server(root)) as subject:
        warm_up(subject, capture_bytes)
        before = subject.cpu_s()
        size = capture_bytes + (_KIND_BYTES if start == "state" else 0)
        asked: dict[str, Any] = {"capture_bytes": size, "start": start}
        with subscribers(subject.address, streams, rows, **asked) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def main(streams: int = STREAMS, rows: int = ROWS, runs: int = RUNS) -> None:
    """Measure and print; smaller numbers are for a first look."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_log(root, rows=rows, rows_per_transaction=100, transactions_per_commit=2_000)
        write_warm_up(root)
        size = measure_capture_bytes(root)
        found = [
            [begin(root, start, size, streams, rows) for start in ("oldest", "state")]
            for _ in range(runs)
        ]
    shown = []
    for place, kind in enumerate(("catch-up", "state")):
        rate, cpu = (median([run[place][figure] for run in found]) for figure in (0, 1))
        ratio = median([run[place][1] / run[0][1] for run in found])
        shown.append([kind, f"{rate / 1e6:.2f} M/s", f"{cpu:.3f} µs", f"{ratio:.2f}"])
    shown[1].append("≤ 1.3")
    shown[0].append("")
    table(
        f"{streams} subscribers, {rows:,} captures of {size} bytes to each; median of {runs} runs",
        ["", "captures/s", "server CPU a capture", "CPU / CPU of catch-up", "to reach"],
        shown,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
