"""What does a reader lose that allows only HTTP/2's default frames of 16 KiB?

::

    log of 1,000,000 captures ──▶ tailrace ──▶ 1 raw subscriber that allows frames of 16 KiB (default), 64 KiB,
                                               1 MiB, 4 MiB (ours)

Messages have 64 KiB. Each kind in turn from one warm server, which has the first core. It does not show a
network, nor decoding.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from bench._harness import (
    Server,
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

CAPTURES: Final = 1_000_000
RUNS: Final = 9
FRAMES: Final = {"16 KiB": 16 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "4 MiB": 4 << 20}


def catch_up(subject: Server, size: int, frame_bytes: int) -> tuple[float, float]:
    """Return captures a second and server CPU µs a capture, from the oldest position."""
    before = subject.cpu_s()
    options = {"capture_bytes": size, "frame_bytes": frame_bytes}
    with subscribers(subject.address, 1, CAPTURES, **options) as process:
        report = result(process)
    return rates(report, subject.cpu_s() - before)


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=CAPTURES, rows_per_transaction=100, transactions_per_commit=2000)
        write_warm_up(root)
        size = measure_capture_bytes(root)
        with server(tailrace_server(root)) as subject:
            warm_up(subject, size)
            runs = [
                [catch_up(subject, size, each) for each in FRAMES.values()] for _ in range(RUNS)
            ]
    table(
        f"captures of {size} bytes to one subscriber, median of {RUNS} runs",
        ["frames up to", "captures/s", "server CPU a capture", "rate / 16 KiB", "CPU / 16 KiB"],
        [
            [
                name,
                f"{median([run[place][0] for run in runs]) / 1e6:.2f} M",
                f"{median([run[place][1] for run in runs]):.2f} µs",
                *(
                    f"{median([run[place][figure] / run[0][figure] for run in runs]):.2f}"
                    for figure in (0, 1)
                ),
            ]
            for place, name in enumerate(FRAMES)
        ],
    )


if __name__ == "__main__":
    main()
