"""The loop of every fuzzer: generated connections against a real server, and some that must succeed.

Each connection is made from a number, its seed. ``FUZZ_S=3600`` sends for an hour instead of a few hundred
connections, and ``FUZZ_SEED`` begins elsewhere. What fails names its seeds; they are printed, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from random import Random
from typing import TYPE_CHECKING, Final

import tailrace
from tests.process.commands import PATIENCE_S, ServerProcess
from tests.robustness.test_misbehaving_peers import write
from tests.support.peers import EVENTS, GRAPHQL, REST, Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

LONG_S: Final = float(os.environ.get("FUZZ_S", "0"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
CONNECTIONS: Final = 300
TOGETHER: Final = 50
"""Connections at the same time; after them fresh clients must be served."""
OPTIONS: Final = (
    *("--log-format", "json", "--probe-interval-s", "1d", "--memory", "256MiB"),
    *("--request-head-s", "2s", "--request-body-s", "2s", "--ws-init-timeout-s", "2s"),
)
"""The faces are not probed meanwhile, as nothing is to be put right; what is left open soon ends."""


async def served_over_grpc(server: ServerProcess) -> None:
    """Connect, subscribe and read, as a client that knows nothing of what has been."""
    async with (
        asyncio.timeout(PATIENCE_S),
        tailrace.connect(server.grpc, retry=tailrace.Retry(first_s=PATIENCE_S)) as client,
        client.subscribe("shop", since=0) as captures,
    ):
        await anext(captures)


async def served_over_http(server: ServerProcess) -> None:
    """Do the same on each face of the HTTP listener."""
    for way in (REST, GRAPHQL, EVENTS):
        with Peer(server.http) as peer:
            async with asyncio.timeout(PATIENCE_S):
                await peer.open(way)
                await peer.say(way.subscribe(1))
                await peer.until(b"product")


async def fuzz(
    root: Path,
    send: Callable[[ServerProcess, Random], Awaitable[None]],
    served: Callable[[ServerProcess], Awaitable[None]],
) -> None:
    """Send what seeds make; a neighbour that was there before must have everything at the end.

    Args:
        root: An empty log root.
        send: Sends what one peer sends; raises for an answer that must not be.
        served: Connects as a client that knows nothing of it.

    Raises:
        AssertionError: The server has ended, or has logged an error; noted with the seeds.
    """
    write(root, 0, 1, 10)
    server = ServerProcess(root, OPTIONS)
    until = time.monotonic() + LONG_S
    async with (
        server.up() as command,
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", since=0) as neighbour,
    ):
        await anext(neighbour)
        seed = SEED
        try:
            while seed < SEED + CONNECTIONS or time.monotonic() < until:
                seeds = range(seed, seed + TOGETHER)
                await asyncio.gather(*(send(server, Random(each)) for each in seeds))
                await served(server)
                assert command.process.returncode is None
                faults = [
                    line for line in command.notes if "Traceback" in line or '"error"' in line
                ]
                assert not faults, faults
                seed = seeds.stop
        except Exception as error:
            error.add_note(f"FUZZ_SEED={seed}, {TOGETHER} connections")
            raise
        print(f"seeds {SEED} to {seed - 1}")
        write(root, 1, 1, 10)
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(neighbour)).version < 2:
                pass
