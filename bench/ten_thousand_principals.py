"""Do ten thousand principals with one key each cost what ten thousand keyed criteria of one principal cost?

::

    log, written by another process ──▶ engine ──▶ 10,000 subscriptions of one principal, a key each (baseline)
                                           └─────▶ 10,000 principals granted a key each, who ask for all rows

One engine in process for each, in turn, on one core. 50,000 rows in commits of 1,000, of which one in ten is
somebody's. The figure is the processor time of the process until all of those have been received: reading,
matching, the rings, and 5,000 messages of one capture. It does not show a transport.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench._harness import machine, median, pin_to_the_server, stay_with_the_subscribers, table
from bench._log import CATALOG, mutation, write_log
from tailrace.criteria import Area, Criteria
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import Allowance, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tests.support.principals import Holder

if TYPE_CHECKING:
    from tailrace_server.live.subscription import Subscription

KEYS = 10_000
ROWS = 50_000
ROWS_PER_COMMIT = 1_000
WANTED_EVERY = 10
RUNS = 5


def write(root: Path) -> None:
    """Write all rows, a transaction a row, in commits that are published at once."""
    stay_with_the_subscribers()
    with LogWriter.open(root, CATALOG) as writer:
        for start in range(0, ROWS, ROWS_PER_COMMIT):
            for number in range(start, start + ROWS_PER_COMMIT):
                wanted = number % WANTED_EVERY == 0
                key = f"{number // WANTED_EVERY % KEYS if wanted else KEYS + number:09d}"
                writer.append([replace(mutation(number), primary_key=key)])
            writer.commit(publish=True)


async def asked_for(engine: Engine, key: str) -> Subscription:
    """Subscribe to a key, as who is granted everything."""
    criteria = Criteria(area=Area.DATA, primary_key=(key,))
    return await engine.subscribe(ANONYMOUS, CATALOG, [criteria], codec=PROTOBUF)


async def granted(engine: Engine, key: str) -> Subscription:
    """Subscribe to all rows, as somebody who is granted a key."""
    holder = Holder({CATALOG: Grant((Allowance(primary_keys=frozenset({key})),))}, name=key)
    criteria = Criteria(area=Area.DATA)
    return await engine.subscribe(holder, CATALOG, [criteria], codec=PROTOBUF)


async def routing(root: Path, *, by_grant: bool) -> tuple[float, float]:
    """Return processor time in µs a row, and of each subscribe."""
    subscribe = granted if by_grant else asked_for
    async with Engine(root, EngineSettings(heartbeat_interval_s=3600)) as engine:
        begun = time.process_time()
        held = [await subscribe(engine, f"{number:09d}") for number in range(KEYS)]
        subscribed = time.process_time() - begun
        everything = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as tasks:
            taking = [tasks.create_task(take(each, everything)) for each in held]
            writing = multiprocessing.get_context("spawn").Process(target=write, args=(root,))
            writing.start()
            begun = time.process_time()
            for _ in range(ROWS // WANTED_EVERY):
                await everything.acquire()
            routed = time.process_time() - begun
            for each in taking:
                each.cancel()
        await asyncio.to_thread(writing.join)
        return routed / ROWS * 1e6, subscribed / KEYS * 1e6


async def take(subscription: Subscription, taken: asyncio.Semaphore) -> None:
    """Take what comes, and count it."""
    while True:
        message = await subscription.receive()
        for _ in range(message.count if isinstance(message, Frames) else 0):
            taken.release()


def once(*, by_grant: bool) -> tuple[float, float]:
    """Measure on a log of its own."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        return asyncio.run(routing(root, by_grant=by_grant))


def main() -> None:
    """Measure and print."""
    print(machine())
    pin_to_the_server()
    runs = [(once(by_grant=False), once(by_grant=True)) for _ in range(RUNS)]
    rows = []
    for place, name in enumerate(("criteria of one principal", "principals")):
        routed, subscribed = (median([run[place][figure] for run in runs]) for figure in (0, 1))
        ratio = median([run[place][0] / run[0][0] for run in runs])
        rows.append([f"{KEYS:,} {name}", f"{subscribed:.0f}", f"{routed:.2f}", f"{ratio:.2f}"])
    rows[1].append("≤ 1.1")
    table(
        f"{ROWS:,} rows, one in {WANTED_EVERY} wanted; processor time of the engine in µs, median of {RUNS}",
        ["one key each", "a subscribe", "a row", "ratio", "to reach"],
        [[*rows[0], ""], rows[1]],
    )


if __name__ == "__main__":
    main()
