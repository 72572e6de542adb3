"""How long from the moment a transaction was due to be written until ten subscribers have its capture?

::

    LogWriter: append, commit, publish (fsync on), 200 transactions/s ──▶ tailrace ──▶ 10 raw subscribers

Latency counts from the *intended* send time, so a writer that falls behind makes it worse, not better.
Subscribers and server have a core each, the writer runs where there is room; all share the system's clock.
As a distribution over all (transaction, subscriber) pairs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
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
from bench._log import CATALOG, write_at_pace, write_log
from tailrace.v1 import capture_pb2, change_capture_pb2

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RATE = 200
SECONDS = 20
WARM_UP = 200
STREAMS = 10
TRANSACTIONS = RATE * SECONDS


def write(root: Path, begin: Connection) -> None:
    """Write one transaction every 5 ms, on any core."""
    os.sched_setaffinity(0, SERVER_CPU | CLIENT_CPU)
    write_at_pace(root, RATE, WARM_UP + TRANSACTIONS, begin)


async def follow(call: Any, received: list[float]) -> None:
    """Note when each capture arrived."""
    while len(received) < WARM_UP + TRANSACTIONS:
        message = await call.read()
        now = time.perf_counter()
        if message[0] == 0x0A:
            count = len(change_capture_pb2.SubscribeResponse.FromString(message).captures)
            received.extend([now] * count)


async def measure(root: Path, address: str) -> list[float]:
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
        writer = spawn.Process(target=write, args=(root, begin))
        writer.start()
        start_at = await asyncio.to_thread(told.recv)
        await asyncio.gather(*map(follow, calls, received))
        writer.join()
    due = [start_at + number / RATE for number in range(WARM_UP + TRANSACTIONS)]
    return sorted(
        (arrived - expected) * 1e3
        for arrivals in received
        for arrived, expected in zip(arrivals[WARM_UP:], due[WARM_UP:], strict=True)
    )


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        with server(tailrace_server(root)) as subject:
            os.sched_setaffinity(0, CLIENT_CPU)
            latencies = uvloop.run(measure(root, subject.address))

    def quantile(share: float) -> str:
        return f"{latencies[min(len(latencies) - 1, int(share * len(latencies)))]:.2f}"

    table(
        f"{TRANSACTIONS:,} transactions at {RATE}/s, fsync on, to {STREAMS} subscribers; "
        "ms from the intended send time",
        ["p50", "p99", "p99.9", "max", "to reach"],
        [[quantile(0.5), quantile(0.99), quantile(0.999), quantile(1.0), "p50 ≤ 3, p99 ≤ 20"]],
    )


if __name__ == "__main__":
    main()
