"""By which hosts the listener may be asked: over HTTP and WebSockets, and every name there is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from tailrace_server.api.settings import HttpSettings
from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


async def test_a_page_that_rebound_its_name_reads_nothing(log_root: Path) -> None:
    """Neither with a request nor over a WebSocket, whose Origin is the name that it rebound."""
    settings = HttpSettings(http_hosts="good.example")
    asked = {
        ("GET /v1/catalogs HTTP/1.1\r\n", ""),
        ("GET /health HTTP/1.1\r\n", ""),
        ("GET /v1/catalogs/shop/changes/live HTTP/1.1\r\n", UPGRADE),
        ("GET /v1/system/graphql HTTP/1.1\r\n", f"{UPGRADE}Origin: http://%s:7412\r\n"),
    }
    with capture_logs() as lines:
        async with Engine(log_root) as engine, listening(engine, settings=settings) as face:
            for line, rest in asked:
                for host, refused in (("evil.example", True), ("good.example", False)):
                    reader, writer = await asyncio.open_connection("127.0.0.1", face.address.port)
                    own = rest.replace("%s", host)
                    writer.write(f"{line}Host: {host}:7412\r\n{own}\r\n".encode())
                    async with asyncio.timeout(PATIENCE_S):
                        status = await reader.readuntil(b"\r\n")
                        body = await reader.readuntil(b"http_hosts") if refused else b""
                    assert (b" 421 " in status) is refused, (line, host, status)
                    assert not refused or b"Host 'evil.example:7412' is not a name of this" in body
                    writer.close()
            assert face.sockets.statistics().guards["host"] == len(asked)
    told = [line for line in lines if line["event"] == "host refused"]
    assert [(line["host"], line["setting"]) for line in told] == [
        ("evil.example:7412", "http_hosts")
    ]
