"""What does a reader that is far behind a log of hot keys cost, with the latest of each key and with all of it?

::

    log of 300,000 updates of KEYS keys ──▶ engine ──▶ a reader from version 1 until it has caught up
                                                       ├─ all of it (RESYNC)
                                                       └─ the latest of each key (LATEST)

The engine in process, gRPC's frames, images included; CPU of the whole process, so of both its reader threads
too. The last case has every key once: nothing can be left out, and the pass that looks for it is on top.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bench._harness import machine, median, table
from bench._log import CATALOG, mutation
from tailrace.capture import Heartbeat
from tailrace.criteria import Area, CatchUp, Content, Criteria, Since
from tailrace.position import Position
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import SubscriptionLimits
from tailrace_server.wal.log_writer import LogWriter

ROWS = 300_000
RUNS = 3
KEYS = (1_000, 100_000, ROWS)
_ROWS_A_COMMIT = 50_000


def write(root: Path, keys: int) -> None:
    """Write updates of so many keys, in turn."""
    with LogWriter.open(root, CATALOG) as writer:
        for start in range(0, ROWS, _ROWS_A_COMMIT):
            for first in range(start, start + _ROWS_A_COMMIT, 100):
                writer.append([mutation(number % keys) for number in range(first, first + 100)])
            writer.commit(publish=True)


async def read(root: Path, catch_up: CatchUp) -> tuple[int, float]:
    """Return the captures that a reader gets until it has caught up, and the CPU seconds of the process."""
    async with Engine(root) as engine:
        started = time.process_time()
        subscription = await engine.subscribe(
            ANONYMOUS,
            CATALOG,
            (Criteria(area=Area.DATA),),
            start=Since(Position(1)),
            content=Content.AFTER,
            codec=PROTOBUF,
            limits=SubscriptionLimits(catch_up=catch_up, heartbeat_interval_s=0.2),
        )
        published = subscription.acknowledgement.published
        captures = 0
        while True:
            message = await subscription.receive()
            if isinstance(message, Frames):
                captures += message.count
            elif isinstance(message, Heartbeat) and message.cursor.version >= published:
                return captures, time.process_time() - started


def main() -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {0})
    print(machine())
    rows = []
    for keys in KEYS:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), keys)
            found: dict[CatchUp, list[float]] = {kind: [] for kind in CatchUp}
            for _ in range(RUNS):
                for kind, runs in found.items():
                    captures, seconds = asyncio.run(read(Path(folder), kind))
                    assert captures == (ROWS if kind is CatchUp.ALL else keys)
                    runs.append(seconds)
        whole, latest = median(found[CatchUp.ALL]), median(found[CatchUp.LATEST])
        rows.append(
            [
                f"{keys:,}",
                f"{ROWS:,}",
                f"{keys:,}",
                f"{whole:.2f} s",
                f"{latest:.2f} s",
                f"{latest / whole:.2f}",
            ]
        )
    table(
        f"a reader {ROWS:,} captures behind, median of {RUNS}",
        ["keys", "captures, all", "captures, latest", "CPU, all", "CPU, latest", "latest / all"],
        rows,
    )


if __name__ == "__main__":
    main()
