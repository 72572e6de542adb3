"""Generated HTTP/2 against the gRPC face: whatever one peer sends, the next one is served as if it had not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from tests.robustness.fuzz_http2 import connection
from tests.robustness.fuzzing import fuzz, served_over_grpc
from tests.support.raw_http2 import PING, frame

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.process.commands import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

ANSWERED_S: Final = 0.3
"""How long a peer waits for an answer to its last ping. Many get none: what they sent is cut off."""


async def send(server: ServerProcess, random: Random) -> None:
    """Send what a peer sends, and wait until the server has dealt with it, if that can be seen."""
    host, _, port = server.grpc.rpartition(":")
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(connection(random) + frame(PING, 0, 0, b"the last"))
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERED_S):
                    seen = b""
                    while b"the last" not in seen and (more := await reader.read(1 << 16)):
                        seen = seen[-8:] + more
        finally:
            writer.transport.abort()


async def test_contract_13_22_no_bytes_of_a_peer_keep_the_next_one_from_being_served(
    log_root: Path,
) -> None:
    await fuzz(log_root, send, served_over_grpc)
