"""How long from the moment a transaction was due to be written until ten subscribers have its capture?

::

    LogWriter: append, commit (fsync on), 200 transactions/s ──▶ tailrace ──▶ 10 raw subscribers

A commit per transaction, in the two forms that there are: one step, an entry that publishes itself
(``commit(publish=True)``), and two, an entry and then its publication. Latency counts from the *intended* send
time, so a writer that falls behind makes it worse, not better. Subscribers and server have a core each, the
writer runs where there is room; all share the system's clock. As a distribution over all (transaction,
subscriber) pairs.

What the disk alone takes is measured before and after: a bare loop that at the same pace creates a file of
1 KiB, syncs it, links it and syncs the folder, which is what one durable object costs.

Give a folder on the disk to be measured as argument; the default is the system's for temporary files. Some file
systems create files slowly for minutes after many were deleted near by, as this bench does at its end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import uvloop

from bench._harness import (
    CLIENT_CPU,
    SERVER_CPU,
    machine,
    server,
    table,
    tailrace_server,
)
from bench._log import CATALOG, until, write_at_pace, write_log
from bench.one_log_hundred_subscribers import LOADED
from tailrace.v1 import capture_pb2, change_capture_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

RATE = 200
SECONDS = 20
WARM_UP = 200
STREAMS = 10
TRANSACTIONS = RATE * SECONDS
BARE_SECONDS = 5
BARE_BYTES = 1_024


def bare(folder: Path) -> list[float]:
    """Return what one durable object takes at the same pace without any of ours, ms, sorted."""
    folder.mkdir()
    names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    data = b"x" * BARE_BYTES
    taken = []
    start_at = time.perf_counter()
    for number in range(RATE * BARE_SECONDS):
        due = start_at + number / RATE
        until(due)
        file = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)
        os.write(file, data)
        os.fsync(file)
        os.link(f"/proc/self/fd/{file}", f"{number:020d}", dst_dir_fd=names)
        os.fsync(names)
        os.close(file)
        taken.append((time.perf_counter() - due) * 1e3)
    os.close(names)
    return sorted(taken)


def write(root: Path, begin: Connection, one_step: bool, transactions: int) -> None:
    """Write one transaction every 5 ms, on any core."""
    os.sched_setaffinity(0, SERVER_CPU | CLIENT_CPU)
    write_at_pace(root, RATE, WARM_UP + transactions, begin, one_step=one_step)


async def follow(call: Any, received: list[float], transactions: int) -> None:
    """Note when each capture arrived."""
    while len(received) < WARM_UP + transactions:
        message = await call.read()
        now = time.perf_counter()
        if message[0] == 0x0A:
            count = len(change_capture_pb2.SubscribeResponse.FromString(message).captures)
            received.extend([now] * count)


async def measure(
    root: Path, address: str, one_step: bool, transactions: int = TRANSACTIONS
) -> list[float]:
    """Return all latencies in ms, sorted."""
    request = change_capture_pb2.SubscribeRequest(
        catalog=CATALOG,
        criteria=[capture_pb2.Criteria(area=capture_pb2.AREA_DATA, entity_type=["product"])],
        body=[capture_pb2.BODY_AFTER],
    )
    received: list[list[float]] = [[] for _ in range(STREAMS)]
    async with grpc.aio.insecure_channel(address) as channel:
        subscribe = channel.unary_stream("/tailrace.v1.ChangeCapture/Subscribe", None, None)
        calls = [subscribe(request.SerializeToString()) for _ in range(STREAMS)]
        for call in calls:
            await call.read()
        spawn = multiprocessing.get_context("spawn")
        told, begin = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=write, args=(root, begin, one_step, transactions))
        writer.start()
        start_at = await asyncio.to_thread(told.recv)
        await asyncio.gather(
            *(follow(call, each, transactions) for call, each in zip(calls, received, strict=True))
        )
        writer.join()
    return latencies(received, start_at)


def latencies(received: Sequence[Sequence[float]], start_at: float) -> list[float]:
    """Return how long after its due time each event arrived, ms, sorted, without the warm-up.

    Args:
        received: When each event arrived, for each subscriber.
        start_at: When the first event was due.
    """
    due = [start_at + number / RATE for number in range(len(received[0]))]
    return sorted(
        (arrived - expected) * 1e3
        for arrivals in received
        for arrived, expected in zip(arrivals[WARM_UP:], due[WARM_UP:], strict=True)
    )


def latencies_and_cpu_s(
    root: Path, one_step: bool, transactions: int = TRANSACTIONS
) -> tuple[list[float], float]:
    """Run a server and a writer on a new log; return latencies in ms, sorted, and CPU seconds of the server."""
    write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
    with server(tailrace_server(root)) as subject:
        subject.wait_for(LOADED)
        os.sched_setaffinity(0, CLIENT_CPU)
        before = subject.cpu_s()
        found = uvloop.run(measure(root, subject.address, one_step, transactions))
        return found, subject.cpu_s() - before


def quantiles(found: list[float]) -> list[str]:
    """Return p50, p99, p99.9 and the largest, as texts."""
    last = len(found) - 1
    return [f"{found[min(last, int(share * (last + 1)))]:.2f}" for share in (0.5, 0.99, 0.999, 1)]


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory(dir=next(iter(sys.argv[1:]), None)) as name:
        folder = Path(name)
        before = bare(folder / "before")
        one_step, _ = latencies_and_cpu_s(folder / "one", one_step=True)
        two_steps, _ = latencies_and_cpu_s(folder / "two", one_step=False)
        after = bare(folder / "after")
        table(
            f"{TRANSACTIONS:,} transactions at {RATE}/s, a commit each, fsync on, to {STREAMS} subscribers; "
            "ms from the intended send time",
            ["", "p50", "p99", "p99.9", "max", "to reach"],
            [
                ["one durable file, bare, before", *quantiles(before), ""],
                ["**commit that publishes itself**", *quantiles(one_step), "p50 ≤ 3, p99 ≤ 20"],
                ["commit, then publication", *quantiles(two_steps), ""],
                ["one durable file, bare, after", *quantiles(after), ""],
            ],
        )


if __name__ == "__main__":
    main()
