"""How fast is a server that has just started, for those who all come back at once?

::

    tailrace, just serving  ──▶ 1, 10, 50 raw subscribers     first catch-up, to fifth of the same
                            ──▶ the same of a log unread      on the server that is warm by then
    SIGTERM, and a new one  ──▶ 50 raw subscribers            from the signal until the last is live again

Captures of 200 bytes, 200,000 to each, in commits of 2,000. Everything is told as a ratio within one run. The
fifth catch-up finds the log in the server's cache, the first has to read it. So a second catalog is read by the
server once it is warm: what the first takes longer than that, the process has to thank for being new.
Connections are new each time, so theirs is no difference. The restart counts imports, opening, what ``serving``
waits for, and the connecting of 50 subscribers; beside it stands the catch-up of the same on the warm server.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench._harness import (
    Server,
    free_port,
    machine,
    median,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, measure_capture_bytes, write_log

CAPTURES = 200_000
STREAMS = (1, 10, 50)
RUNS = 3
UNREAD = "unread"
"""The catalog that is first read by a warm server."""


def write(root: Path) -> None:
    """Write two catalogs of one size."""
    for catalog in (CATALOG, UNREAD):
        write_log(
            root,
            rows=CAPTURES,
            rows_per_transaction=100,
            transactions_per_commit=20,
            catalog=catalog,
        )


def catch_up(subject: Server, streams: int, size: int, catalog: str) -> tuple[float, float]:
    """Return captures a second and the server's CPU µs a capture."""
    before = subject.cpu_s()
    options = {"capture_bytes": size, "catalog": catalog}
    with subscribers(subject.address, streams, CAPTURES, **options) as process:
        report = result(process)
    cpu_s = subject.cpu_s() - before
    return report["captures"] / report["seconds"], cpu_s / report["captures"] * 1e6


def first_to_fifth(root: Path, streams: int, size: int) -> list[tuple[float, float]]:
    """Return the figures of the first and the fifth catch-up, and of the unread log thereafter."""
    with server(tailrace_server(root, "--log-format", "json")) as subject:
        runs = [catch_up(subject, streams, size, CATALOG) for _ in range(5)]
        return [runs[0], runs[4], catch_up(subject, streams, size, UNREAD)]


def restart(root: Path, streams: int, size: int) -> dict[str, float]:
    """Return the seconds of a warm catch-up, and from SIGTERM until the same is done by a new server.

    The warm one counts the start of the process of subscribers too, as the other does.
    """
    port = free_port()
    command = tailrace_server(root, "--log-format", "json", "--grpc", f"127.0.0.1:{port}")
    with server(command) as subject:
        for _ in range(2):
            begun = time.perf_counter()
            catch_up(subject, streams, size, CATALOG)
            warm_s = time.perf_counter() - begun
        begun = time.perf_counter()
    stopped_s = time.perf_counter() - begun
    with server(command) as subject:
        serving_s = time.perf_counter() - begun
        start_cpu_s = subject.cpu_s()
        catch_up(subject, streams, size, CATALOG)
        memory = subject.anonymous_bytes() / (1 << 20)
    return {
        "warm catch-up": warm_s,
        "SIGTERM to ended": stopped_s,
        "to serving": serving_s,
        "to the last one live": time.perf_counter() - begun,
        "CPU to serving": start_cpu_s,
        "MiB": memory,
    }


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "logs"
        root.mkdir()
        write(root)
        size = measure_capture_bytes(root)
        rows = []
        for streams in STREAMS:
            runs = [first_to_fifth(root, streams, size) for _ in range(RUNS)]
            figures = [
                f"{median([run[kind][0] for run in runs]) / 1e6:.2f} M/s, "
                f"{median([run[kind][1] for run in runs]):.2f} µs"
                for kind in range(3)
            ]
            ratios = [
                f"{median([run[0][figure] / run[kind][figure] for run in runs]):.2f}"
                for kind in (1, 2)
                for figure in (0, 1)
            ]
            rows.append([streams, *figures, *ratios])
        table(
            f"captures of {size} bytes, {CAPTURES:,} to each; captures/s and server CPU a capture, "
            f"median of {RUNS} servers",
            [
                *("subscribers", "first", "fifth", "unread log, warm server"),
                *("first/fifth, rate", "CPU", "first/unread, rate", "CPU"),
            ],
            rows,
        )
        runs_of = [restart(root, STREAMS[-1], size) for _ in range(RUNS)]
        table(
            f"restart under {STREAMS[-1]} subscribers that resume {CAPTURES:,} captures behind, s, "
            f"median of {RUNS}",
            list(runs_of[0]),
            [[f"{median([run[name] for run in runs_of]):.2f}" for name in runs_of[0]]],
        )


if __name__ == "__main__":
    main()
