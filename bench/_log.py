"""Logs for the benches: product rows whose captures all have one size (200 bytes as protobuf)."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

from tailrace.criteria import Area, Content, Criteria, Since
from tailrace.position import Position
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from tailrace_server.grants.principal import Principal

CATALOG = "bench"


def mutation(number: int, entity_type: str = "product") -> Mutation:
    """Return an insert whose texts are as long as every other's."""
    return Mutation(
        entity_type=entity_type,
        primary_key=f"{number:09d}",
        before=None,
        after=b'{"id":1%09d,"name":"product %09d","price":"%07d.99","note":"%s"}'
        % (number, number, number % 10_000_000, b"n" * 67),
    )


def write_log(
    root: Path,
    *,
    rows: int,
    rows_per_transaction: int,
    transactions_per_commit: int,
    first: int = 0,
    rare_every: int = 0,
    publish_every: int = 0,
    catalog: str = CATALOG,
) -> None:
    """Append and publish, every n-th commit or (0) at the end; every n-th row is a ``rare``, or none."""
    with LogWriter.open(root, catalog) as writer:
        waiting = commits = 0
        for start in range(first, first + rows, rows_per_transaction):
            stop = min(first + rows, start + rows_per_transaction)
            writer.append(
                [
                    mutation(each, "rare" if rare_every and each % rare_every == 0 else "product")
                    for each in range(start, stop)
                ]
            )
            waiting += 1
            if waiting == transactions_per_commit:
                writer.commit()
                waiting = 0
                commits += 1
                if publish_every and commits % publish_every == 0:
                    writer.publish()
        if waiting:
            writer.commit()
        writer.publish()


def until(due: float) -> None:
    """Sleep until a time; not at all if it has passed."""
    wait = due - time.perf_counter()
    if wait > 0:
        time.sleep(wait)


def write_at_pace(
    root: Path, rate: int, transactions: int, begin: Connection, *, one_step: bool = True
) -> list[float]:
    """Write so many transactions a second of one row each, each at its due time or as soon after as possible.

    Sends the due time of the first one and returns when each was begun, by ``time.perf_counter``, which all
    processes of a machine share. A commit publishes itself unless ``one_step`` is False.
    """
    begun = []
    with LogWriter.open(root, CATALOG) as writer:
        gc.freeze()  # what the imports left is not looked through again
        start_at = time.perf_counter() + 0.2
        begin.send(start_at)
        for number in range(transactions):
            until(start_at + number / rate)
            begun.append(time.perf_counter())
            writer.append([mutation(number)])
            writer.commit(publish=one_step)
            if not one_step:
                writer.publish()
    return begun


async def capture_bytes(root: Path, caller: Principal = ANONYMOUS) -> int:
    """Return the size of one capture of the log as an element of a response to a caller."""
    async with Engine(root) as engine:
        subscription = await engine.subscribe(
            caller,
            CATALOG,
            [Criteria(area=Area.DATA, entity_type=("product",))],
            start=Since(Position(0)),
            content=Content.AFTER,
            codec=PROTOBUF,
        )
        message = await subscription.receive()
        assert isinstance(message, Frames)
        size, rest = divmod(len(message.data), message.count)
        assert rest == 0
        subscription.cancel()
        return size


def measure_capture_bytes(root: Path, caller: Principal = ANONYMOUS) -> int:
    """Return ``capture_bytes`` from code without an event loop."""
    return asyncio.run(capture_bytes(root, caller))
