"""By which hosts the listener may be asked: over HTTP and WebSockets, and every name there is."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tailrace_server.api.http_hosts import Hosts
from tailrace_server.api.settings import HttpSettings
from tailrace_server.capture.engine import Engine
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:7412", "localhost.", "shop.localhost:80"),
        *("127.0.0.1", "127.0.0.1:7412", "10.1.2.3:1", "[::1]:7412", "[fe80::1]", ""),
        *("db.example.com:7412", "DB.example.com", "a.b.corp.example", socket.gethostname()),
    ],
)
def test_names_that_no_foreign_page_has_are_ours(host: str) -> None:
    assert Hosts("db.example.com", ["*.corp.example"]).has(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7412", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("corp.example", "notcorp.example", "[evil.example]", "evil.example@localhost"),
        *("localhost:80:80", "127.0.0.1, evil.example", "2130706433", "[::1", "\u00e9"),
    ],
)
def test_other_names_are_not_ours(host: str) -> None:
    assert not Hosts("127.0.0.1", ["*.corp.example"]).has(host)
    assert Hosts("127.0.0.1", ["*"]).has(host)


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
                    assert not refused or b"Host 'evil.example:7412' is no name of this" in body
                    writer.close()
            assert face.sockets.statistics().guards["host"] == len(asked)
    told = [line for line in lines if line["event"] == "host refused"]
    assert [(line["host"], line["setting"]) for line in told] == [
        ("evil.example:7412", "http_hosts")
    ]
