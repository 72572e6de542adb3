"""A served log root, and a channel to it."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from tailrace.transport.grpc import SERVICE
from tailrace.transport.grpc_status import error_of
from tailrace_server.api.grpc import GrpcServer, GrpcSettings
from tailrace_server.api.transport_security.proxies import NO_PROXIES
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.admission import FREE
from tailrace_server.resources.settings import EngineSettings
from tests.support.held_port import HeldPort
from tests.support.inprocess import PATIENCE_S, ModelWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.resources.admission import Admissions


OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    # A small window, so that a reader that stops is noticed after some messages.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)


@dataclass
class Served:
    """A running server, and raw calls to it."""

    engine: Engine
    server: GrpcServer
    port: int
    channel: grpc.aio.Channel

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stream(self, method: str, request: Message | bytes) -> Any:
        """Begin a call with one request; messages are bytes."""
        return self.channel.unary_stream(f"/{SERVICE}/{method}", None, None)(_bytes(request))

    def both(self, *requests: Message | bytes) -> Any:
        """Begin SubscribeWithDemand with these requests; the request stream stays open."""
        call = self.channel.stream_stream(f"/{SERVICE}/SubscribeWithDemand", None, None)()  # type: ignore[call-arg]
        return call, [_bytes(request) for request in requests]

    async def refused(self, method: str, request: Message | bytes) -> Exception:
        """Return the error that a call ends with, as the client sees it."""
        try:
            if method in ("ListCatalogs", "GetSchema"):
                call = self.channel.unary_unary(f"/{SERVICE}/{method}", None, None)
                await call(_bytes(request), timeout=PATIENCE_S)
            elif method == "SubscribeWithDemand":
                both, data = self.both(request)
                for each in data:
                    await both.write(each)
                await _to_the_end(both)
            else:
                await _to_the_end(self.stream(method, request))
        except grpc.aio.AioRpcError as error:
            return error_of(error)
        raise AssertionError("the call was not refused")


async def _to_the_end(call: Any) -> None:
    while isinstance(await call.read(), bytes):
        pass


def _bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


@pytest.fixture
async def serve(log_root: Path, writer: ModelWriter) -> AsyncIterator[Any]:
    """Return a function that serves the log root, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(
            grpc_settings: GrpcSettings | None = None,
            root: Path = log_root,
            *,
            admissions: Admissions = FREE,
            proxies: TrustedProxies = NO_PROXIES,
            **settings: Any,
        ) -> Served:
            settings.setdefault("heartbeat_interval_s", 0.05)
            engine = Engine(root, EngineSettings(**settings), admissions)
            await stack.enter_async_context(engine)
            server = GrpcServer(engine, grpc_settings, proxies=proxies)
            held = stack.enter_context(closing(HeldPort()))
            await server.start(held.address)
            stack.push_async_callback(server.stop, 0.5)
            channel = grpc.aio.insecure_channel(held.address, OPTIONS)
            await stack.enter_async_context(channel)
            return Served(engine, server, held.number, channel)

        yield start
