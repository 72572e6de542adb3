"""What peers send: refused with words where there is no room, ended where it is not finished."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.api.settings import HttpSettings
from tests.support.inprocess import PATIENCE_S
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace_server.api.byte_budget import ByteBudget
    from tests.server.api.rest.conftest import RawSocket, Served

    Serve = Callable[..., Awaitable[Served]]

BODY = 100_000
HEAD = (
    b"POST /v1/catalogs/shop/changes/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % (BODY + 1)
)


def arrived(inbound: ByteBudget, before: int) -> bool:
    return inbound.refused > 0 or inbound.bytes >= before + BODY


async def sent(served: Served, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def initialised(served: Served) -> RawSocket:
    raw = await served.raw()
    raw.writer.write(raw.frame(1, b'{"type":"connection_init"}'))
    await raw.reader.readuntil(b'"connection_ack"}')
    return raw


async def test_a_body_that_waits_while_others_send_is_answered_413(serve: Serve) -> None:
    served = await serve(memory_bytes=8 * 2 * BODY)
    inbound = served.face.sockets.inbound
    readers = []
    for _ in range(2):
        before = inbound.bytes
        readers.append(await sent(served, HEAD + b" " * BODY))
        await until(partial(arrived, inbound, before))
    (first, writer), (_, other) = readers
    # It has had the time to take more; the one that has held its bytes for longer goes.
    async with asyncio.timeout(PATIENCE_S):
        head = await first.readuntil(b"\r\n\r\n")
        size = int(re.findall(rb"content-length: (\d+)", head)[0])
        problem: dict[str, Any] = json.loads(await first.readexactly(size))
    assert head.startswith(b"HTTP/1.1 413 ")
    assert problem["status"] == 413
    assert f"{inbound.bytes_max} bytes" in problem["detail"]
    assert served.guards == {"inbound_memory": 1}
    # What it goes on to send is dropped, and the neighbour's body is taken.
    writer.write(b" " * BODY)
    other.write(b"{")
    writer.transport.abort()
    other.transport.abort()
    await until(lambda: not inbound.bytes)


@pytest.mark.parametrize("fragments", [1, 4])
async def test_a_message_that_is_not_finished_ends_its_socket_though_it_pings(
    serve: Serve, fragments: int
) -> None:
    served = await serve(HttpSettings(request_body_s=0.2))
    raw = await initialised(served)
    for number in range(fragments):
        raw.writer.write(raw.frame(0 if number else 1, b" " * 100, fin=False))
        raw.writer.write(raw.frame(9, b"here"))
    assert await raw.close_code() == 1008
    assert served.guards["unfinished_message"] == 1
    raw.close()


async def test_a_socket_that_holds_too_much_is_closed_with_1009(serve: Serve) -> None:
    served = await serve(memory_bytes=8 * BODY)
    raw = await initialised(served)
    part = b" " * 60_000
    raw.writer.write(raw.frame(1, part, fin=False) + raw.frame(0, part, fin=False))
    assert await raw.close_code() == 1009
    assert served.guards["inbound_memory"] == 1
    raw.close()
    await until(lambda: not served.face.sockets.inbound.bytes)
