"""Generated WebSockets against REST and GraphQL: whatever one peer sends, the next one is served."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from tests.robustness.fuzz_websocket import connection, frame
from tests.robustness.fuzzing import fuzz, served_over_http

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.process.commands import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

ANSWERED_S: Final = 0.3
"""How long a peer waits for an answer to its handshake, then to its last ping; many get none."""


async def send(server: ServerProcess, random: Random) -> None:
    """Shake hands, send the pieces, and wait until the server has dealt with them, if that can be seen."""
    one = connection(random)
    host, _, port = server.http.rpartition(":")
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(host, int(port))

        async def until(mark: bytes) -> bytes:
            seen = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERED_S):
                    while mark not in seen and (more := await reader.read(1 << 16)):
                        seen = seen[-4096:] + more
            return seen

        try:
            writer.write(one.handshake)
            answer = await until(b"\r\n\r\n")
            assert b" 500 " not in answer.partition(b"\r\n")[0], answer
            for piece in (*one.pieces, frame(9, b"the last")):
                writer.write(piece)
                await asyncio.sleep(0)
            await until(b"the last")
        finally:
            writer.transport.abort()


async def test_contract_13_45_no_frames_of_a_peer_keep_the_next_one_from_being_served(
    log_root: Path,
) -> None:
    await fuzz(log_root, send, served_over_http)
