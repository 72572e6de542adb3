"""What the listener says of itself. The running server: tests/process/test_serve.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from tailrace_server.api.settings import HttpSettings
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.server.wal.logs import write
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_health_says_that_a_catalog_cannot_be_read_and_goes_on_with_the_others(
    log_root: Path,
) -> None:
    write(log_root, "shop", 1)
    write(log_root, "broken", 1)
    (log_root / "broken" / "catalog.json").write_bytes(b"{}\n")
    async with (
        Engine(log_root, EngineSettings()) as engine,
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{face.address.port}") as http,
        asyncio.timeout(PATIENCE_S),
    ):
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        [fault] = answer.json()["faults"]
        assert (fault["kind"], fault["subject"]) == ("log_unreadable", "broken")


async def test_idle_connections_outlast_those_of_a_proxy_or_end_when_told(
    log_root: Path, writer: ModelWriter
) -> None:
    assert HttpSettings().http_keepalive_s > 60  # of nginx and ALB
    async with (
        Engine(log_root) as engine,
        listening(engine, settings=HttpSettings(http_keepalive_s=1)) as face,
    ):
        reader, stream = await asyncio.open_connection(*face.address)
        stream.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert b'"status"' in await reader.read()  # to the end of the connection
        stream.close()
