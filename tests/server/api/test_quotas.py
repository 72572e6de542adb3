"""A quota that is used up is told alike on every transport, and a browser's stream comes back."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import httpx
import pytest
import websockets
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import connect

from tailrace.errors import QuotaExceeded
from tailrace.transport.grpc import SERVICE
from tailrace.transport.grpc_status import error_of
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.access.admissions import RecordedAdmissions
from tailrace_server.access.audit import Audit
from tailrace_server.access.door import Door
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import QuotaSettings
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.server.http import HttpFace
from tailrace_server.engine.engine import Engine
from tailrace_server.units import Address
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

EVENTS = {"Accept": "text/event-stream"}
LIVE = "/v1/catalogs/shop/changes/live"
GRAPHQL = "/v1/catalogs/shop/graphql"
SUBSCRIPTION = "subscription { onCatalogChange { version } }"


@dataclass
class Served:
    """Both listeners of a server with quotas."""

    quotas: Quotas
    http: httpx.AsyncClient
    port: int
    channel: grpc.aio.Channel

    def subscribe(self) -> Any:
        call = self.channel.unary_stream(f"/{SERVICE}/Subscribe", None, None)
        return call(SubscribeRequest(catalog="shop").SerializeToString())

    async def refused_over_grpc(self) -> QuotaExceeded:
        call = self.subscribe()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_of(caught.value)
        assert isinstance(error, QuotaExceeded)
        return error

    async def refused_over_a_socket(self, path: str, subprotocol: str, payload: object) -> Any:
        """Return what an ``error`` message brings."""
        url = f"ws://127.0.0.1:{self.port}{path}"
        async with connect(url, subprotocols=[websockets.Subprotocol(subprotocol)]) as socket:
            await socket.send(json.dumps({"type": "connection_init"}))
            await socket.recv()
            message = {"type": "subscribe", "id": "1", "payload": payload}
            await socket.send(json.dumps(message))
            answer = json.loads(await socket.recv())
            assert answer["type"] == "error"
            return answer["payload"]


@asynccontextmanager
async def serving(root: Path, **settings: int) -> AsyncIterator[Served]:
    quotas = Quotas(QuotaSettings(quota_address_share=1, **settings))
    async with Engine(root, admissions=RecordedAdmissions(Audit(), quotas)) as engine:
        door = Door(quotas=quotas)
        server = GrpcServer(engine, door=door)
        port = await server.start("127.0.0.1:0")
        face = HttpFace(engine, CollectorRegistry(), Address("127.0.0.1", 0), door=door)
        answering = asyncio.create_task(face.serve())
        try:
            async with (
                grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
                httpx.AsyncClient(
                    base_url=f"http://{face.address}", timeout=PATIENCE_S, trust_env=False
                ) as http,
            ):
                yield Served(quotas, http, face.address.port, channel)
        finally:
            engine.stop_subscriptions()
            await server.stop(0.5)
            await face.drain(0.5)
            face.stop(0.5)
            await answering


async def test_an_open_subscription_over_one_transport_leaves_none_for_any_other(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([])
    async with serving(log_root, quota_subscriptions=1) as served:
        call = served.subscribe()
        assert await call.read()
        # 1. gRPC, and each WebSocket: an error of its own, the connection stays.
        error = await served.refused_over_grpc()
        assert (error.quota, error.limit, error.used) == ("subscriptions", 1, 1)
        problem = await served.refused_over_a_socket(LIVE, "tailrace.v1", {})
        assert (problem["code"], problem["status"]) == ("QUOTA_EXCEEDED", 429)
        assert problem["figures"]["quota"] == "subscriptions"
        [fault] = await served.refused_over_a_socket(
            GRAPHQL, "graphql-transport-ws", {"query": SUBSCRIPTION}
        )
        assert fault["extensions"]["code"] == "QUOTA_EXCEEDED"
        # 2. Event streams: to a browser any status but 200 is final.
        for path, parameters in ((LIVE, {}), (GRAPHQL, {"query": SUBSCRIPTION})):
            answer = await served.http.get(path, params=parameters, headers=EVENTS)
            assert answer.status_code == 200
            assert answer.text.startswith("retry: ")
            assert "QUOTA_EXCEEDED" in answer.text
        answer = await served.http.post(LIVE, json={}, headers=EVENTS)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        # 3. What ends gives back.
        call.cancel()
        await until(lambda: not any(served.quotas.used.values()))
        call = served.subscribe()
        assert await call.read()
        call.cancel()


async def test_requests_above_the_rate_are_told_when_to_come_again(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([])
    async with serving(log_root, quota_requests=1) as served:
        assert (await served.http.get("/v1/catalogs")).status_code == 200
        answer = await served.http.get("/v1/catalogs")
        while answer.status_code == 200:  # on a machine so slow that a second has passed
            answer = await served.http.get("/v1/catalogs")
        assert answer.status_code == 429
        assert (answer.json()["code"], answer.headers["Retry-After"]) == ("QUOTA_EXCEEDED", "1")
        assert (await served.http.get("/health")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_query_counts_also_if_its_answer_is_wanted_as_a_page(
    log_root: Path, writer: ModelWriter, method: str
) -> None:
    """Only the page itself needs no credential and no quota; it has no query."""
    writer.write([])
    html, query = {"accept": "text/html"}, {"query": "{ __typename }"}
    async with serving(log_root, quota_requests=1) as served:
        answer = await served.http.request(method, GRAPHQL, params=query, headers=html)
        while answer.status_code != 429:  # on a machine so slow that a second has passed
            assert answer.status_code == 406
            answer = await served.http.request(method, GRAPHQL, params=query, headers=html)
        page = await served.http.request(method, GRAPHQL, headers=html)
        assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")


async def test_streams_that_are_under_way_are_counted_and_given_back(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([])
    async with serving(log_root, quota_streams=1) as served:
        call = served.subscribe()
        assert await call.read()
        assert (await served.refused_over_grpc()).quota == "streams"
        assert (await served.http.get("/v1/catalogs")).status_code == 429
        browser = await served.http.get(LIVE, headers=EVENTS)
        assert browser.status_code == 200
        assert browser.text.startswith("retry: ")
        with pytest.raises(websockets.InvalidStatus) as caught:
            await connect(f"ws://127.0.0.1:{served.port}{LIVE}").__aenter__()
        assert caught.value.response.status_code == 429
        call.cancel()
        await until(lambda: not any(served.quotas.used.values()))
        assert (await served.http.get("/v1/catalogs")).status_code == 200
