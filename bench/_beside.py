"""The same work by another server and by ours, in turn: a log that many subscribers read, and follow.

All want everything; and then all want one row in a hundred. The others have no filter: their readers get
everything and would have to choose, which they are not charged here. So a rate counts rows of the log that a
subscriber has behind it, sent or not.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bench._harness import machine, median, stay_with_the_subscribers, table
from bench._log import measure_capture_bytes, write_log
from bench.one_log_hundred_subscribers import CAPTURES, catch_up, live, write_warm_up

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBSCRIBERS: Final = (1, 10, 50)
RUNS: Final = 3
FILTERED: Final = "filtered"
"""The catalog in which few rows are wanted,"""
FILTERED_ROWS: Final = 1_000_000
RARE_EVERY: Final = 100
"""namely one in so many."""


class Rival(Protocol):
    """How another server is measured."""

    def __call__(self, streams: int, size: int, *, is_live: bool) -> tuple[float, float]:
        """Return events a second and server CPU µs a delivery, for events of so many bytes."""


def filtered(root: Path, streams: int, size: int) -> tuple[float, float]:
    """Return rows of the log a second and server CPU µs a row, for subscribers that want few of them."""
    rate, cpu_us = catch_up(
        root,
        streams,
        size,
        FILTERED_ROWS // RARE_EVERY,
        catalog=FILTERED,
        criteria="rare",
        capture_bytes=size - len("product") + len("rare"),
    )
    return rate * RARE_EVERY, cpu_us / RARE_EVERY


def beside(name: str, rival: Rival) -> None:
    """Measure the other server and ours, and print both."""
    print(machine())
    stay_with_the_subscribers()
    everything, few = [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "logs"
        root.mkdir()
        write = partial(write_log, root, rows_per_transaction=100, transactions_per_commit=2000)
        most = max(CAPTURES[streams] for streams in SUBSCRIBERS)
        write(rows=most)
        write(rows=FILTERED_ROWS, rare_every=RARE_EVERY, catalog=FILTERED)
        write_warm_up(root)
        size = measure_capture_bytes(root)
        for streams in SUBSCRIBERS:
            runs = [
                (
                    rival(streams, size, is_live=False),
                    catch_up(root, streams, size),
                    filtered(root, streams, size),
                    rival(streams, size, is_live=True),
                    live(root, streams, size),
                )
                for _ in range(RUNS)
            ]
            theirs, caught, chosen, theirs_live, lived = map(_cell, zip(*runs, strict=True))
            everything.append(
                [
                    streams,
                    theirs,
                    caught,
                    _ratio(runs, 1, 0),
                    theirs_live,
                    lived,
                    _ratio(runs, 4, 3),
                ]
            )
            few.append([streams, theirs, chosen, _ratio(runs, 2, 0)])
    unit = f"and server CPU a row, rows of {size} bytes, median of {RUNS} runs"
    table(
        f"everything: deliveries/s {unit}",
        [
            *("subscribers", f"catch-up: {name}", "tailrace", "ratio"),
            *(f"live: {name}", "tailrace", "ratio"),
        ],
        everything,
    )
    table(
        f"one row in {RARE_EVERY}: rows behind a subscriber/s {unit}",
        ["subscribers", f"catch-up: {name}", "tailrace", "ratio"],
        few,
    )


def _cell(runs: Sequence[tuple[float, float]]) -> str:
    rate, cpu = (median([run[figure] for run in runs]) for figure in (0, 1))
    return f"{rate / 1e6:.2f} M/s, {cpu:.3f} µs"


def _ratio(runs: Sequence[Sequence[tuple[float, float]]], ours: int, theirs: int) -> str:
    return f"{median([run[ours][0] / run[theirs][0] for run in runs]):.1f}x"
