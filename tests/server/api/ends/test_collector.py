"""However a connection ends, on whatever face: nothing of it waits for the cycle collector.

The server's collector is tuned to examine what is old hardly ever (docs/adr/0033). Whatever lives as long as a
connection has to go with its last reference: each way to end, on each face, is a row here. Peers are bare
sockets, so that what is left is the server's.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from tailrace.transport.grpc import SERVICE
from tailrace.v1.change_capture_pb2 import DemandRequest, ReadChangesRequest, SubscribeRequest
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.api.settings import HttpSettings
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.conformance.shop import upsert
from tests.support import raw_http2
from tests.support.living import without_collector
from tests.support.peers import (
    EVENTS,
    GRAPHQL,
    GRAPHQL_EVENTS,
    GRPC,
    REST,
    Peer,
    Way,
    frame,
    message,
)
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

pytestmark = pytest.mark.slow

EACH: Final = 3
"""Connections of one row: what so many leave behind is no accident."""
PACKAGES: Final = ("tailrace_server", "tailrace", "uvicorn", "websockets", "h11", "starlette")
RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER by which a close is a reset."""
GOODBYE: Final = frame(8, (1000).to_bytes(2, "big"))
HISTORY: Final = "/v1/catalogs/shop/changes"
LIVE: Final = f"{HISTORY}/live"
QUERY: Final = "/v1/catalogs/shop/graphql"


def _call(method: str, request: bytes, *, more: bool = False) -> Callable[[int], bytes]:
    return lambda n: raw_http2.request(f"/{SERVICE}/{method}", request, 2 * n - 1, more=more)


_SUBSCRIBE: Final = SubscribeRequest(catalog="shop", since_version=0)
DEMAND: Final = replace(
    GRPC,
    name="gRPC with demand",
    subscribe=_call(
        "SubscribeWithDemand",
        DemandRequest(subscribe=_SUBSCRIBE, request=1_000).SerializeToString(),
        more=True,
    ),
)
CALLS: Final = (GRPC, DEMAND)
SOCKETS: Final = (REST, GRAPHQL)


@dataclass
class Stage:
    """A server with both listeners."""

    engine: Engine
    http: str
    grpc: str

    def peer(self, way: Way | None = None) -> Peer:
        return Peer(self.grpc if way in CALLS else self.http)

    @asynccontextmanager
    async def subscribed(self, way: Way) -> AsyncIterator[Peer]:
        with self.peer(way) as peer:
            await peer.open(way)
            await peer.say(way.subscribe(1))
            await peer.until(way.begun)
            yield peer


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, log_root: Path, writer: ModelWriter
) -> AsyncIterator[Stage]:
    """Serve a log of some versions, quick to lose patience where the row is about that."""
    writer.write(*([upsert(str(number), text="x" * 100)] for number in range(20)))
    settings = SETTINGS.get(request.node.callspec.params.get("end"))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            Engine(log_root, EngineSettings(heartbeat_interval_s=0.05))
        )
        face = await stack.enter_async_context(listening(engine, settings=settings))
        grpc = GrpcServer(engine)
        port = await grpc.start("127.0.0.1:0")
        stack.push_async_callback(grpc.stop, 1.0)
        stage = Stage(engine, str(face.address), f"127.0.0.1:{port}")
        with stage.peer() as peer:  # the GraphQL schema is made now, while nobody waits for a probe
            await peer.say(REQUESTS["a GraphQL query"])
            await peer.until(b" 200 OK")
        yield stage


async def leaves(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way):
        pass


async def resets(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        peer._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


async def comes_and_goes(stage: Stage, way: Way) -> None:
    with stage.peer(way) as peer:
        await peer.open(way)


async def is_ended_by_the_server(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way):
        for _, subscription in stage.engine.subscriptions(ANONYMOUS):
            subscription.stop()
        await until(lambda: not stage.engine.subscriptions(ANONYMOUS))


async def says_goodbye(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        await peer.say(GOODBYE)
        await peer.rest()


async def completes(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        await peer.say(message(type="complete", id="1"))
        await until(lambda: not stage.engine.subscriptions(ANONYMOUS))
        await peer.say(GOODBYE)
        await peer.rest()


async def speaks_nonsense(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        await peer.say(message(type="nonsense"))
        await peer.rest()


async def breaks_the_frame(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        await peer.say(b"\xff\xff\xff\xff")
        await peer.rest()


async def answers_no_probe(stage: Stage, way: Way) -> None:
    async with stage.subscribed(way) as peer:
        await peer.rest()


async def does_not_introduce_itself(stage: Stage, way: Way) -> None:
    with stage.peer(way) as peer:
        await peer.open(way)
        await peer.rest()


SETTINGS: Final = {
    answers_no_probe: HttpSettings(ws_ping_interval_s=0.5, ws_ping_timeout_s=0.2),
    does_not_introduce_itself: HttpSettings(ws_init_timeout_s=0.05),
}
ANY = (leaves, resets, comes_and_goes, is_ended_by_the_server)
OF_SOCKETS = (
    says_goodbye,
    completes,
    speaks_nonsense,
    breaks_the_frame,
    answers_no_probe,
    does_not_introduce_itself,
)
ENDS = [(way, end) for way in (*SOCKETS, EVENTS, GRAPHQL_EVENTS, *CALLS) for end in ANY]
ENDS += [(way, end) for way in SOCKETS for end in OF_SOCKETS]


async def nothing_is_left(once: Callable[[], Awaitable[None]]) -> None:
    """Do something, and then see that doing it more often leaves nothing."""
    await once()  # what is kept for good, caches above all
    with without_collector(*PACKAGES) as living:
        for _ in range(EACH):
            await once()
        await living.back(EACH)


@pytest.mark.parametrize(
    ("way", "end"), ENDS, ids=[f"{way.name}: {end.__name__}" for way, end in ENDS]
)
async def test_contract_20_a_subscriber_leaves_nothing_for_the_collector(
    stage: Stage, way: Way, end: Callable[[Stage, Way], Awaitable[None]]
) -> None:
    """Connection, operation, subscription, task: each goes with its last reference."""
    await nothing_is_left(lambda: end(stage, way))


UPGRADE = "Connection: upgrade\r\nUpgrade: websocket\r\n"
KEY = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


def get(path: str, fields: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = {
    "health": get("/health") * 3,
    "nowhere": get("/nowhere"),
    "no HTTP": b"GET /hea lth\r\n\r\n",
    "a page": get(HISTORY),
    "lines": get(HISTORY, "Accept: application/x-ndjson\r\n"),
    "Arrow": get(HISTORY, "Accept: application/vnd.apache.arrow.stream\r\n"),
    "a bad range": get(f"{HISTORY}?limit=x"),
    "a body that is not JSON": post(f"{HISTORY}/query", b"{" * 1_000),
    "a bad event stream": get(f"{LIVE}?sinceVersion=x", "Accept: text/event-stream\r\n"),
    "no sub-protocol": get(LIVE, UPGRADE + KEY),
    "a bad handshake": get(LIVE, UPGRADE),
    "a socket that is nowhere": get("/nowhere", UPGRADE + KEY),
    "a GraphQL query": post(QUERY, json.dumps({"query": "{ changes { anchor } }"}).encode()),
    "a bad GraphQL query": post(QUERY, json.dumps({"query": "{ changes"}).encode()),
    "half a GraphQL request": post(QUERY, b'{"query": "{ changes { anchor } }"'),
}


@pytest.mark.parametrize("cut", [False, True], ids=["kept alive", "cut at once"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_leaves_nothing_for_the_collector(
    stage: Stage, name: str, cut: bool
) -> None:
    """Also one that is refused, or whose reader has gone: its body may be large."""

    async def once() -> None:
        with stage.peer() as peer:
            await peer.say(REQUESTS[name])
            if not cut:
                await peer.until(b"HTTP/1.1 ")

    await nothing_is_left(once)


READ = replace(
    GRPC,
    subscribe=_call("ReadChanges", ReadChangesRequest(catalog="shop").SerializeToString()),
)
REFUSED = replace(
    GRPC,
    subscribe=_call("Subscribe", SubscribeRequest(catalog="nope").SerializeToString()),
    begun=b"nope",
)


@pytest.mark.parametrize("way", [READ, REFUSED], ids=["history", "refused"])
async def test_a_call_leaves_nothing_for_the_collector(stage: Stage, way: Way) -> None:
    """grpc.aio keeps the error that ends a call, and its frames would keep the call."""

    async def once() -> None:
        with Peer(stage.grpc) as peer:
            await peer.open(way)
            await peer.say(way.subscribe(1))
            await peer.until(way.begun)

    await nothing_is_left(once)
