"""Generated HTTP/2 against the gRPC face: whatever one peer sends, the next one is served as if it had not.

``FUZZ_S=3600`` sends for an hour instead of a few hundred connections, and ``FUZZ_SEED`` begins elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

import tailrace
from tests.process.commands import PATIENCE_S, ServerProcess
from tests.robustness.test_misbehaving_peers import write
from tests.support.fuzz_http2 import connection
from tests.support.raw_http2 import PING, frame

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

LONG_S: Final = float(os.environ.get("FUZZ_S", "0"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
CONNECTIONS: Final = 300
TOGETHER: Final = 20
"""Connections at the same time; after them a fresh client must be served."""
ANSWERED_S: Final = 0.3
"""How long a peer waits for an answer to its last ping. Many get none: what they sent is cut off."""


async def send(port: int, data: bytes) -> None:
    """Send what a peer sends, and wait until the server has dealt with it, if that can be seen."""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data + frame(PING, 0, 0, b"the last"))
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERED_S):
                    seen = b""
                    while b"the last" not in seen and (more := await reader.read(1 << 16)):
                        seen = seen[-8:] + more
        finally:
            writer.transport.abort()


async def served(server: ServerProcess) -> None:
    """Connect, subscribe and read, as a client that knows nothing of what has been."""
    async with (
        asyncio.timeout(PATIENCE_S),
        tailrace.connect(server.grpc, retry=tailrace.Retry(first_s=PATIENCE_S)) as client,
        client.subscribe("shop", since=0) as captures,
    ):
        await anext(captures)


async def test_contract_13_22_no_bytes_of_a_peer_keep_the_next_one_from_being_served(
    log_root: Path,
) -> None:
    """The faces are not probed meanwhile: nothing is to be put right."""
    write(log_root, 0, 1, 10)
    server = ServerProcess(log_root, ("--log-format", "json", "--probe-interval-s", "1d"))
    until = time.monotonic() + LONG_S
    async with (
        server.up() as command,
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", since=0) as neighbour,
    ):
        await anext(neighbour)
        port = int(server.grpc.rpartition(":")[2])
        seed = SEED
        while seed < SEED + CONNECTIONS or time.monotonic() < until:
            seeds = range(seed, seed + TOGETHER)
            try:
                await asyncio.gather(*(send(port, connection(Random(each))) for each in seeds))
                await served(server)
            except Exception as error:
                error.add_note(f"seeds {seeds.start} to {seeds.stop - 1}")
                raise
            assert command.process.returncode is None, seeds
            faults = [line for line in command.notes if "Traceback" in line]
            assert not faults, (seeds, faults)
            seed = seeds.stop
        write(log_root, 1, 1, 10)
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(neighbour)).version < 2:
                pass
