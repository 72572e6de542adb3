"""A real gRPC server that says exactly what a test wants it to, call by call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

import grpc
import grpc.aio

from tailrace.cursor import Cursor
from tailrace.position import TimestampMicros
from tailrace.transport.grpc import SERVICE
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import (
    Acknowledgement,
    DemandRequest,
    Heartbeat,
    SubscribeResponse,
)
from tailrace_server.api.errors import grpc_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from tailrace.errors import TailraceError

    Script = Callable[["Call"], Awaitable[None]]

CATALOG_UUID: Final = UUID("6f1c2a5e-0b0e-4d4f-9c39-5d3f6a1b2c3d")
PATIENCE_S: Final = 20.0
"""How long a test waits for what must happen."""


class Call:
    """One call of SubscribeWithDemand, seen from the server."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self.first = DemandRequest()
        self.demand = 0
        """Requested so far."""

    async def begin(self, *, heartbeat_interval_ms: int = 60_000, version: int = 0) -> None:
        """Read the subscribe and acknowledge it; the log's end is after ``version``."""
        self.first = await self.read()
        after = self.first.subscribe.after
        await self.send(
            SubscribeResponse(
                acknowledgement=Acknowledgement(
                    subscription_id="scripted",
                    catalog=self.first.subscribe.catalog,
                    catalog_uuid=str(CATALOG_UUID),
                    start=capture_pb2.Position(version=version + 1),
                    resume_cursor=after or str(Cursor(CATALOG_UUID, version, 2**31 - 1)),
                    published_version=version,
                    heartbeat_interval_ms=heartbeat_interval_ms,
                )
            )
        )

    async def read(self) -> DemandRequest:
        """Return the next request message."""
        async with asyncio.timeout(PATIENCE_S):
            data = await self._context.read()
        assert isinstance(data, bytes), "the client has no more requests"
        request = DemandRequest.FromString(data)
        self.demand += request.request
        return request

    async def demanded(self, n: int) -> None:
        """Read until ``n`` captures have been requested in all."""
        while self.demand < n:
            await self.read()

    async def send(self, message: SubscribeResponse) -> None:
        await self._context.write(message.SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        await self._context.write(data)

    async def captures(self, *versions: int) -> None:
        """Send one message with the lead capture of each version."""
        await self.send(SubscribeResponse(captures=[lead(version) for version in versions]))

    async def heartbeat(self, version: int, *, next_within_ms: int = 60_000) -> None:
        """Send a heartbeat that has passed a whole version."""
        await self.send(
            SubscribeResponse(
                heartbeat=Heartbeat(
                    published_version=version,
                    resume_cursor=str(Cursor(CATALOG_UUID, version, 2**31 - 1)),
                    records_scanned=version,
                    next_within_ms=next_within_ms,
                )
            )
        )

    async def fail(self, error: TailraceError) -> None:
        """End the call with an error."""
        await self._context.abort(*grpc_status(error))

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with a bare status, as a proxy does."""
        await self._context.abort(code, details)

    async def silence(self) -> None:
        """Say nothing until the client goes away."""
        await asyncio.Event().wait()


def committed_at(version: int) -> TimestampMicros:
    """Return when a version was committed, µs."""
    return TimestampMicros(1_700_000_000_000_000 + version)


def lead(version: int) -> capture_pb2.Capture:
    return capture_pb2.Capture(
        version=version,
        commit_timestamp=committed_at(version),
        area=capture_pb2.AREA_INFRASTRUCTURE,
        operation=capture_pb2.OPERATION_TRANSACTION,
    )


class ScriptedServer:
    """Runs one script a call, in turn; on port 0."""

    def __init__(self, *scripts: Script, read: Script | None = None) -> None:
        self._scripts = list(scripts)
        self._read_script = read
        self.calls: list[Call] = []
        self.target = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handlers = {
            "SubscribeWithDemand": grpc.stream_stream_rpc_method_handler(self._subscribe),
            "ReadChanges": grpc.unary_stream_rpc_method_handler(self._read),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._server.stop(None)

    async def _subscribe(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        call = Call(context)
        self.calls.append(call)
        await self._scripts[len(self.calls) - 1](call)

    async def _read(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        assert self._read_script is not None
        await self._read_script(Call(context))
