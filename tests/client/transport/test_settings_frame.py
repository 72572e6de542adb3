"""What the client tells a server of HTTP/2 as it connects, read from the socket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Final

from tailrace.transport.grpc import GrpcTransport
from tailrace.transport.target import Target
from tests.client.scripted import PATIENCE_S

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = 4
_MAX_FRAME_SIZE: Final = 5


async def test_messages_may_come_in_one_frame() -> None:
    announced: asyncio.Future[dict[int, int]] = asyncio.get_running_loop().create_future()

    async def listen(reader: StreamReader, writer: StreamWriter) -> None:
        assert await reader.readexactly(len(_PREFACE)) == _PREFACE
        head = await reader.readexactly(9)
        assert head[3] == _SETTINGS
        settings = dict(
            struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(head[:3])))
        )
        if not announced.done():
            announced.set_result(settings)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = GrpcTransport(Target.parse(f"127.0.0.1:{port}", tls=False))
        asking = asyncio.create_task(transport.call("ListCatalogs", b"", PATIENCE_S))
        try:
            async with asyncio.timeout(PATIENCE_S):
                settings = await announced
        finally:
            await transport.close()
            asking.cancel()
            with contextlib.suppress(BaseException):
                await asking
    assert settings[_MAX_FRAME_SIZE] == 4 << 20
