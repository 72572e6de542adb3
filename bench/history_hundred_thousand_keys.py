"""Does history cost the same with one key and with 100,000, and for how long does the event loop stand still?

::

    500 commits of one row ──▶ engine ──▶ history of 1 / 10,000 / 100,000 keys, a request each
                                  └─────▶ a task that wants its turn every millisecond

One process, no sockets, a new engine for each read: from the bytes of a request to the last frame. With more
than one key, one row in ten is asked for. A subscription with the same keys is opened and cancelled after it,
whose pauses count.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from bench._harness import machine, median, pin_to_the_server, table
from bench._log import CATALOG, write_log
from tailrace.criteria import Content
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api import requests
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS

COMMITS = 500
WANTED = COMMITS // 10
KEYS = (1, 10_000, 100_000)
RUNS = 5
_ELSEWHERE = 500_000_000
"""From here on are keys that no row has."""


def request(keys: int) -> bytes:
    """Return a request for so many keys, of which some are those of rows; at least one."""
    message = SubscribeRequest(catalog=CATALOG)
    criteria = message.criteria.add(entity_type=["product"])
    known = min(keys, WANTED)
    criteria.primary_key.extend(f"{number * 10:09d}" for number in range(known))
    criteria.primary_key.extend(f"{_ELSEWHERE + number:09d}" for number in range(keys - known))
    return message.SerializeToString()


async def read(engine: Engine, data: bytes, keys: int) -> float:
    """Return the seconds of one history."""
    started = time.perf_counter()
    _, wish = requests.subscribe(SubscribeRequest.FromString(data))
    history = await engine.history(
        ANONYMOUS, CATALOG, wish.criteria, content=Content.AFTER, codec=PROTOBUF
    )
    found = 0
    async for frames in history:
        found += frames.count
    assert found == min(keys, WANTED), found
    return time.perf_counter() - started


async def subscribe(engine: Engine, data: bytes) -> None:
    """Open a subscription and cancel it."""
    _, wish = requests.subscribe(SubscribeRequest.FromString(data))
    subscription = await engine.subscribe(ANONYMOUS, CATALOG, wish.criteria, codec=PROTOBUF)
    await asyncio.sleep(0)
    subscription.cancel()


async def longest_pause(pauses: list[float]) -> None:
    """Note the longest time without a turn, until cancelled."""
    last = time.perf_counter()
    pauses.append(0.0)
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        pauses[-1] = max(pauses[-1], now - last - 0.001)
        last = now


async def figures(root: Path) -> list[tuple[list[float], list[float]]]:
    """Return the seconds and the longest pauses of the runs of each number of keys."""
    out: list[tuple[list[float], list[float]]] = [([], []) for _ in KEYS]
    asked = [request(keys) for keys in KEYS]
    for run in range(RUNS + 1):  # the first one warms up
        for keys, data, (seconds, pauses) in zip(KEYS, asked, out, strict=True):
            async with Engine(root) as engine:
                watching = asyncio.create_task(longest_pause(pauses))
                await asyncio.sleep(0)
                seconds.append(await read(engine, data, keys))
                await subscribe(engine, data)
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            if not run:
                seconds.clear()
                pauses.clear()
    return out


def main() -> None:
    """Measure and print."""
    print(machine())
    pin_to_the_server()
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder), rows=COMMITS, rows_per_transaction=1, transactions_per_commit=1)
        found = asyncio.run(figures(Path(folder)))
    rows = [
        [
            f"{keys:,}",
            f"{median(seconds):.3f}",
            f"{median([s / one for s, one in zip(seconds, found[0][0], strict=True)]):.1f}",
            f"{median(pauses) * 1e3:.0f}",
        ]
        for keys, (seconds, pauses) in zip(KEYS, found, strict=True)
    ]
    table(
        f"history over {COMMITS} commits of one row, median of {RUNS}; to reach: 3 × one key",
        [
            "keys",
            "seconds",
            "against one key",
            "longest pause of the loop, ms (median of the runs)",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
