"""Generated HTTP/1.1 against REST, event streams and GraphQL: no request is a fault of the server."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from tests.robustness.fuzz_http1 import connection
from tests.robustness.fuzzing import fuzz, served_over_http

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.process.commands import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

ANSWERED_S: Final = 0.3
"""How long a peer waits for more of an answer; event streams have no end."""
ANSWER_BYTES: Final = 1 << 20
"""What is read of one connection."""


async def send(server: ServerProcess, random: Random) -> None:
    """Send what a peer sends, read what comes, and look at each status."""
    host, _, port = server.http.rpartition(":")
    seen = b""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(connection(random))
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERED_S):
                    while len(seen) < ANSWER_BYTES and (more := await reader.read(1 << 16)):
                        seen += more
        finally:
            writer.transport.abort()
    faults = re.findall(rb"^HTTP/1\.1 5\d\d [^\r]*", seen, re.M)
    assert not faults, seen


async def test_contract_13_22_no_request_is_a_fault_of_the_server_or_keeps_the_next_from_being_served(
    log_root: Path,
) -> None:
    await fuzz(log_root, send, served_over_http)
