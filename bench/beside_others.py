"""How fast does a log reach many subscribers, beside RabbitMQ streams, Redis Streams and etcd in the same run?

::

    log of captures   ──▶ tailrace ──▶ raw subscribers       stream, keys ──▶ each of the others ──▶ raw readers
    LogWriter         ──▶ tailrace ──▶ the same, attached before     writer ──▶ … ──▶ the same, attached before
    200 commits/s     ──▶ tailrace ──▶ 10 subscribers        200 writes/s ──▶ each of the others ──▶ 10 readers

Events are as large as our captures on the wire; in etcd, key and value together. Each server has the first core
alone, subscribers and writers the second; nobody decodes. Each run has a server that has just started. For
catch-up ours finds a log that another process has written, and the others have taken their events in before.

At full speed, RabbitMQ is read by its stream protocol with ten chunks of credit, and written a thousand entries
a publication. Redis is read by ``XREAD COUNT 1000``, and written 2,000 a ``MULTI … EXEC``. etcd is read by
``Watch``, and written in transactions of 300 puts. Ours is written in commits of 2,000 rows that publish
themselves. Live, the time counts from the first write, the writer has its data ready, and the CPU of a server
includes taking them in; so with few subscribers a rate is the writer's.

At 200 events/s each event is a commit, a publication, an ``XADD`` or a put of its own. The writer sends the
next one when that is confirmed, and latency counts from the time when an event was due. The writer may run on
both cores.

Ours and etcd sync each commit to the disk; RabbitMQ writes files without syncing them, and Redis keeps
everything in memory. Only ours filters. The readers of the others take everything and would have to choose,
for which they are not charged here; so with one row in a hundred, a rate counts the rows of the log that a
subscriber has behind it, sent or not.

The others are Debian's ``rabbitmq-server``, ``redis-server`` and ``etcd-server``; one that is not installed is
left out. ``--rows 10000 --seconds 1`` tries the bench itself. ``TMPDIR`` names a folder on the disk to be
measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bench._etcd import MISSING as NO_ETCD
from bench._etcd import EtcdWriter, etcd
from bench._harness import (
    CLIENT_CPU,
    SERVER_CPU,
    Server,
    machine,
    median,
    readers,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, measure_capture_bytes, mutation, until, write_log
from bench._rabbitmq import MISSING as NO_RABBITMQ
from bench._rabbitmq import RabbitmqWriter, rabbitmq
from bench._redis import MISSING as NO_REDIS
from bench._redis import RedisWriter, redis
from bench.latency_of_two_hundred_a_second import (
    RATE,
    STREAMS,
    WARM_UP,
    latencies,
    latencies_and_cpu_s,
    quantiles,
)
from bench.log_writer import batch_of
from bench.one_log_hundred_subscribers import LOADED, catch_up, rates
from tailrace_server.wal.log_writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import psutil

EVENTS: Final = {1: 1_000_000, 10: 200_000, 50: 200_000, 200: 50_000}
"""To each of so many subscribers."""
CATCH_UP: Final = (1, 10, 50)
RUNS: Final = 3
COMMIT_ROWS: Final = 2_000
FILTERED: Final = "filtered"
"""The catalog in which few rows are wanted,"""
FILTERED_ROWS: Final = 1_000_000
RARE_EVERY: Final = 100
"""namely one in so many."""

Rates = tuple[float, float]
"""Events a second, and server CPU µs a delivery."""


class Writer(Protocol):
    """How events get into another server."""

    def prepared(self, events: int) -> Callable[[], None]:
        """Return the function that writes so many; all are confirmed when it returns."""

    def put(self) -> None:
        """Write one; it is confirmed when this returns."""

    def close(self) -> None:
        """Close the connection."""


class Subject(Protocol):
    """A server that is measured, with events of ``size`` bytes."""

    @property
    def name(self) -> str:
        """Its name, for the head of a column."""

    def rates(self, streams: int, events: int, size: int, *, is_live: bool) -> Rates:
        """Measure catch-up or live."""

    def paced(self, events: int, size: int) -> tuple[list[float], float]:
        """Return latencies in ms, sorted, at 200 events/s after a warm-up, and CPU seconds of the server."""


@dataclass(frozen=True)
class Tailrace:
    """Our server."""

    root: Path
    name: str = "tailrace"

    def rates(self, streams: int, events: int, size: int, *, is_live: bool) -> Rates:
        """Measure catch-up or live."""
        if is_live:
            return self._live(streams, events, size)
        return catch_up(self.root, streams, size, events, warm=False)

    def _live(self, streams: int, events: int, size: int) -> Rates:
        commits = [
            batch_of([mutation(number) for number in range(first, first + COMMIT_ROWS)])
            for first in range(0, events, COMMIT_ROWS)
        ]
        with tempfile.TemporaryDirectory(dir=self.root.parent) as folder:
            root = Path(folder)
            with LogWriter.open(root, CATALOG) as writer, server(tailrace_server(root)) as subject:
                subject.wait_for(LOADED)
                options = {"capture_bytes": size, "start": "new", "catalog": CATALOG}
                with subscribers(subject.address, streams, events, **options) as process:
                    before, begun = subject.cpu_s(), time.perf_counter()
                    for each in commits:
                        writer.append_batch(each)
                        writer.commit(publish=True)
                    return rates(since(begun, result(process)), subject.cpu_s() - before)

    def filtered(self, streams: int, rows: int, size: int) -> Rates:
        """Return rows of the log a second and server CPU µs a row, for subscribers that want few of them."""
        rate, cpu_us = catch_up(
            self.root,
            streams,
            size,
            rows // RARE_EVERY,
            warm=False,
            catalog=FILTERED,
            criteria="rare",
            capture_bytes=size - len("product") + len("rare"),
        )
        return rate * RARE_EVERY, cpu_us / RARE_EVERY

    def paced(self, events: int, size: int) -> tuple[list[float], float]:
        """Return latencies and CPU; every commit publishes itself."""
        return latencies_and_cpu_s(self.root.parent / "paced", True, events)


@dataclass(frozen=True)
class Other:
    """Another server: how to run, write and read it."""

    name: str
    kind: str
    package: str
    is_missing: bool
    run: Callable[[], AbstractContextManager[Server]]
    writer: Callable[[str, int], Writer]
    """Connects to an address, for events of so many bytes."""

    def rates(self, streams: int, events: int, size: int, *, is_live: bool) -> Rates:
        """Measure catch-up or live."""
        with self.run() as server, contextlib.closing(self.writer(server.address, size)) as writer:
            fill = writer.prepared(events)
            if not is_live:
                fill()
            before = server.cpu_s()
            with self._readers(server, streams, events, size, live=is_live) as process:
                if not is_live:
                    return rates(result(process), server.cpu_s() - before)
                before, begun = server.cpu_s(), time.perf_counter()
                fill()
                return rates(since(begun, result(process)), server.cpu_s() - before)

    def paced(self, events: int, size: int) -> tuple[list[float], float]:
        """Return latencies and CPU; every write is confirmed before the next."""
        events += WARM_UP
        with self.run() as server, contextlib.closing(self.writer(server.address, size)) as writer:
            before = server.cpu_s()
            options = {"live": True, "timed": True}
            with self._readers(server, STREAMS, events, size, **options) as process:
                os.sched_setaffinity(0, SERVER_CPU | CLIENT_CPU)
                start_at = time.perf_counter() + 0.2
                for number in range(events):
                    until(start_at + number / RATE)
                    writer.put()
                stay_with_the_subscribers()
                arrivals = result(process)["arrivals"]
            return latencies(arrivals, start_at), server.cpu_s() - before

    def _readers(
        self, server: Server, streams: int, events: int, size: int, **options: bool
    ) -> AbstractContextManager[psutil.Popen]:
        return readers(self.kind, server.address, streams, events, event_bytes=size, **options)


OTHERS: Final = (
    Other("RabbitMQ streams", "rabbitmq", "rabbitmq-server", NO_RABBITMQ, rabbitmq, RabbitmqWriter),
    Other("Redis Streams", "redis", "redis-server", NO_REDIS, redis, RedisWriter),
    Other("etcd", "etcd", "etcd-server", NO_ETCD, etcd, EtcdWriter),
)


def compare(root: Path, others: Sequence[Other], rows: int, seconds: int) -> None:
    """Measure our server and others in turn, and print the tables."""
    size = measure_capture_bytes(root)
    ours = Tailrace(root)
    subjects: list[Subject] = [ours, *others]
    # Latency first: some file systems create files slowly after many were deleted, as they are further down.
    events = RATE * seconds
    table(
        f"{RATE} events/s to {STREAMS} subscribers for {seconds} s; ms from the intended send time",
        ["", "p50", "p99", "server CPU, cores", "server CPU a delivery"],
        [[each.name, *_paced_cells(*each.paced(events, size), events)] for each in subjects],
    )
    header = ["subscribers", *(each.name for each in subjects)]
    unit = f"M/s and server CPU a delivery, events of {size} bytes, median of {RUNS} runs"

    def median_of_runs(is_live: bool, streams: int) -> list[str]:
        events = min(rows, EVENTS[streams])
        runs = [
            [each.rates(streams, events, size, is_live=is_live) for each in subjects]
            for _ in range(RUNS)
        ]
        return [_cell(each) for each in zip(*runs, strict=True)]

    table(
        f"live at full speed: deliveries, {unit}",
        header,
        [[streams, *median_of_runs(True, streams)] for streams in EVENTS],
    )
    caught = [[streams, *median_of_runs(False, streams)] for streams in CATCH_UP]
    table(f"catch-up: deliveries, {unit}", header, caught)
    few = []
    for streams, _, *theirs in caught:
        runs = [ours.filtered(int(streams), min(rows, FILTERED_ROWS), size) for _ in range(RUNS)]
        few.append([streams, _cell(runs), *theirs])
    table(
        f"one row in {RARE_EVERY}, catch-up: rows behind a subscriber, {unit}",
        header,
        few,
    )


def since(begun: float, report: dict[str, Any]) -> dict[str, Any]:
    """Return a report whose time counts from the first write."""
    return report | {"seconds": report["done_at"] - begun}


def _cell(runs: Sequence[Rates]) -> str:
    rate, cpu_us = (median([run[figure] for run in runs]) for figure in (0, 1))
    return f"{rate / 1e6:.2f} M/s, {cpu_us:.3f} µs"


def _paced_cells(found: list[float], cpu_s: float, events: int) -> list[str]:
    writes = WARM_UP + events
    cores, cpu_us = cpu_s / (writes / RATE), cpu_s / (writes * STREAMS) * 1e6
    return [*quantiles(found)[:2], f"{cores:.3f}", f"{cpu_us:.0f} µs"]


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument(
        "--rows", type=int, default=FILTERED_ROWS, help="events at most, a multiple of 1,000"
    )
    arguments.add_argument("--seconds", type=int, default=10, help="of the measurement of latency")
    options = arguments.parse_args()
    print(machine())
    for each in OTHERS:
        if each.is_missing:
            print(f"{each.name} is left out: apt-get install {each.package}")
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "logs"
        root.mkdir()
        write = partial(write_log, root, rows_per_transaction=100, transactions_per_commit=2000)
        write(rows=min(options.rows, max(EVENTS[streams] for streams in CATCH_UP)))
        rows = min(options.rows, FILTERED_ROWS)
        write(rows=rows, rare_every=RARE_EVERY, catalog=FILTERED)
        others = [each for each in OTHERS if not each.is_missing]
        compare(root, others, options.rows, options.seconds)


if __name__ == "__main__":
    main()
