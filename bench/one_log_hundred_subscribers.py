"""How much of what grpc.aio can do at all does the server reach, live and in catch-up?

::

    log of 200,000 captures ──▶ tailrace ──▶ 1, 10, 100 raw subscribers      (catch-up: from the oldest)
    one commit of 200,000   ──▶ tailrace ──▶ 1, 10, 100 raw subscribers      (live: attached before)
    constant bytes          ──▶ grpc.aio ──▶ 1, 10, 100 raw subscribers      (baseline, same message size)

Captures of 200 bytes, 327 a message; five times as many of them where one subscriber would
be done in 60 ms. The server has the first core, subscribers the second. Servers are warmed up, ours on
another catalog until it encodes by machine code and has the memory that it will have: pages that a virtual
machine gets from its host cost up to 30 µs each, once. It does not show decoding in clients, nor a network.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

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
from bench._log import CATALOG, measure_capture_bytes, write_log

CAPTURES = {1: 1_000_000, 10: 200_000, 50: 200_000, 100: 200_000}
"""To each of so many subscribers."""
RUNS = {1: 9, 10: 3, 50: 3, 100: 3}
"""Of each kind, in turn: single runs of one subscriber differ by a third."""
WARM_UP = 1_000_000
"""Captures of another catalog that are read first: more than the caches hold."""
WARM_UP_CATALOG = "warmup"
LOADED = b"compiled loops loaded"
"""The last line of a start."""


def catch_up(
    root: Path,
    streams: int,
    size: int,
    captures: int | None = None,
    *,
    warm: bool = True,
    **options: Any,
) -> tuple[float, float]:
    """Return captures a second and server CPU µs a delivery, from the oldest position.

    Args:
        root: The log root.
        streams: Subscribers.
        size: Bytes of a capture.
        captures: To each of them; None: as CAPTURES has it.
        warm: False for a server that has just started.
        options: Of the subscribers, where they differ.
    """
    options = {"capture_bytes": size} | options
    with server(tailrace_server(root)) as subject:
        if warm:
            warm_up(subject, size)
        else:
            subject.wait_for(LOADED)
        before = subject.cpu_s()
        wanted = CAPTURES[streams] if captures is None else captures
        with subscribers(subject.address, streams, wanted, **options) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def live(logs: Path, streams: int, size: int) -> tuple[float, float]:
    """Return the same for a commit that is published while everybody is attached."""
    with tempfile.TemporaryDirectory(dir=logs.parent) as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        shutil.copytree(logs / WARM_UP_CATALOG, root / WARM_UP_CATALOG, copy_function=os.link)
        with server(tailrace_server(root)) as subject:
            warm_up(subject, size)
            options = {"capture_bytes": size, "start": "new", "catalog": CATALOG}
            captures = CAPTURES[streams]
            with subscribers(subject.address, streams, captures, **options) as process:
                before = subject.cpu_s()
                write_log(
                    root,
                    rows=captures,
                    rows_per_transaction=100,
                    transactions_per_commit=2000,
                    first=1,
                )
                report = result(process)
            return rates(report, subject.cpu_s() - before)


def write_warm_up(root: Path) -> None:
    """Write a second catalog, to be read before anything is measured."""
    write_log(
        root,
        rows=WARM_UP,
        rows_per_transaction=100,
        transactions_per_commit=2000,
        catalog=WARM_UP_CATALOG,
    )


def warm_up(subject: Server, size: int, ca: str | None = None, token: str | None = None) -> None:
    """Let a server load what it loads once, and fill its caches, on another catalog.

    Args:
        subject: The server.
        size: Bytes of a capture.
        ca: Of one over TLS.
        token: For one that asks for it.
    """
    subject.wait_for(LOADED)
    options = {"capture_bytes": size, "catalog": WARM_UP_CATALOG, "ca": ca, "token": token}
    with subscribers(subject.address, 2, WARM_UP, **options) as process:
        result(process)


def bare(streams: int, size: int) -> tuple[float, float]:
    """Return the same for constant bytes."""
    captures_a_message = 65536 // size
    messages = CAPTURES[streams] // captures_a_message
    with server(bare_server(messages, captures_a_message, size)) as subject:
        wanted = messages * captures_a_message
        options = {"capture_bytes": size, "go": True}
        with subscribers(subject.address, 2, wanted, **options) as process:
            result(process)
        before = subject.cpu_s()
        with subscribers(subject.address, streams, wanted, **options) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def rates(report: dict[str, float], cpu_s: float) -> tuple[float, float]:
    """Return captures a second and CPU µs a capture."""
    return report["captures"] / report["seconds"], cpu_s / report["captures"] * 1e6


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "logs"
        root.mkdir()
        most = max(CAPTURES.values())
        write_log(root, rows=most, rows_per_transaction=100, transactions_per_commit=2000)
        write_warm_up(root)
        size = measure_capture_bytes(root)
        rows = []
        for streams in CAPTURES:
            runs = [
                (bare(streams, size), catch_up(root, streams, size), live(root, streams, size))
                for _ in range(RUNS[streams])
            ]
            base, caught, lived = (
                tuple(median([run[kind][figure] for run in runs]) for figure in (0, 1))
                for kind in (0, 1, 2)
            )
            rows.append(
                [
                    streams,
                    *(
                        f"{each[0] / 1e6:.2f} M/s, {each[1]:.2f} µs"
                        for each in (base, caught, lived)
                    ),
                    f"{median([run[1][0] / run[0][0] for run in runs]):.2f}",
                    f"{median([run[2][0] / run[0][0] for run in runs]):.2f}",
                ]
            )
        table(
            f"captures of {size} bytes, {CAPTURES[100]:,} to each; captures/s and server CPU a capture, "
            f"median of {min(RUNS.values())} runs or more",
            ["subscribers", "bare grpc.aio", "catch-up", "live", "catch-up/bare", "live/bare"],
            rows,
        )


if __name__ == "__main__":
    main()
