"""Requests behind a proxy: the client's address, scheme, host and path; and what browsers are told."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets import Subprotocol
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tailrace.criteria import Operation
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tailrace_server.api.transport_security.proxies import NO_PROXIES, TrustedProxies
from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

LIVE = "/v1/catalogs/shop/changes/live"
HERE = TrustedProxies(("127.0.0.1",))
SAID = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}


@pytest.fixture
async def engine(log_root: Path, writer: ModelWriter) -> AsyncIterator[Engine]:
    writer.write([ModelMutation("product", "1", Operation.REMOVE, None, None)])
    async with Engine(log_root) as engine:
        yield engine


async def shown(engine: Engine, proxies: TrustedProxies, headers: dict[str, str]) -> str:
    """Return the address that /subscriptions shows of a WebSocket that comes with headers."""
    async with listening(engine, proxies=proxies) as face:
        base = f"127.0.0.1:{face.address.port}"
        async with (
            connect(
                f"ws://{base}{LIVE}",
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=headers,
                proxy=None,
            ) as socket,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            await socket.send('{"type": "connection_init"}')
            await socket.send('{"type": "subscribe", "id": "1", "payload": {}}')
            async with asyncio.timeout(PATIENCE_S):
                while "subscribed" not in str(await socket.recv()):
                    pass
            answer = (await http.get(f"http://{base}/subscriptions")).text
    found = json.loads(answer)
    (one,) = found["subscriptions"] if isinstance(found, dict) else found
    return str(one["peer"]["address"] if isinstance(one["peer"], dict) else one["peer"])


@pytest.mark.parametrize(("proxies", "address"), [(HERE, "203.0.113.7"), (NO_PROXIES, "127.0.0.1")])
async def test_a_trusted_proxy_says_who_the_client_is_and_nobody_else_does(
    engine: Engine, proxies: TrustedProxies, address: str
) -> None:
    assert (await shown(engine, proxies, SAID)).partition(":")[0] == address


async def test_the_host_that_a_proxy_names_must_be_one_of_ours(engine: Engine) -> None:
    settings = HttpSettings(http_hosts="db.example")
    async with (
        listening(engine, proxies=HERE, settings=settings) as face,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{face.address.port}") as http,
    ):
        for host, status in (("db.example", 200), ("evil.example", 421)):
            answer = await http.get("/v1/catalogs", headers={"x-forwarded-host": host})
            assert answer.status_code == status
    async with (
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{face.address.port}") as http,
    ):
        answer = await http.get("/v1/catalogs", headers={"x-forwarded-host": "evil.example"})
        assert answer.status_code == 200  # nobody's word: it is passed over


async def test_paths_are_the_same_below_the_root_path_and_documents_name_it(engine: Engine) -> None:
    settings = HttpSettings(root_path="/changes")
    async with (
        listening(engine, proxies=HERE, settings=settings) as face,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{face.address.port}") as http,
    ):
        for path in ("/health", "/v1/catalogs", "/v1/docs", "/v1/openapi.json"):
            assert (await http.get(path)).status_code == 200
            assert (await http.get(f"/changes{path}")).status_code == 200
        for path in ("/changes/changes/health", "/changesv1/catalogs", "/Changes/health"):
            assert (await http.get(path)).status_code == 404
        moved = await http.get("/changes")
        assert (moved.status_code, moved.headers["location"]) == (308, "/changes/")
        openapi = (await http.get("/v1/openapi.json")).json()
        assert openapi["servers"] == [{"url": "/changes"}]


async def asked(engine: Engine, settings: HttpSettings, **request: Any) -> httpx.Response:
    async with (
        listening(engine, settings=settings) as face,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{face.address.port}") as http,
    ):
        return await http.request(**request)


async def test_pages_of_other_origins_read_answers_where_they_are_named(engine: Engine) -> None:
    settings = HttpSettings(http_origins="https://*.example.com")
    origin = "https://shop.example.com"
    for path in ("/v1/catalogs", "/health", "/v1/system/graphql?query={__typename}"):
        found = await asked(engine, settings, method="GET", url=path, headers={"origin": origin})
        assert found.headers["access-control-allow-origin"] == origin
    preflight = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    url = "/v1/catalogs/shop/changes/query"
    found = await asked(engine, settings, method="OPTIONS", url=url, headers=preflight)
    assert found.status_code == 200
    assert "authorization" in found.headers["access-control-allow-headers"].lower()
    foreign = {**preflight, "origin": "https://example.com"}
    found = await asked(engine, settings, method="OPTIONS", url=url, headers=foreign)
    assert found.status_code == 400
    assert "access-control-allow-origin" not in found.headers


async def test_an_origin_that_may_read_may_not_open_websockets_by_that(engine: Engine) -> None:
    settings = HttpSettings(http_origins="https://shop.example.com")
    async with listening(engine, settings=settings) as face:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(
                f"ws://127.0.0.1:{face.address.port}{LIVE}",
                origin="https://shop.example.com",  # type: ignore[arg-type]
                proxy=None,
            ):
                pass
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/health", "/metrics", "/nowhere", "/v1/catalogs", "/v1/docs"]
)
async def test_browsers_neither_guess_types_nor_show_us_in_frames(
    engine: Engine, path: str
) -> None:
    found = await asked(engine, HttpSettings(), method="GET", url=path)
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["x-frame-options"] == "DENY"
    policy = found.headers.get("content-security-policy", "")
    is_page = found.headers["content-type"].startswith("text/html")
    assert ("frame-ancestors 'none'" in policy) is is_page
    assert ("script-src 'self';" in policy) is is_page
