"""One small interface to a subscription, over every transport. A new face adds its driver to ``DRIVERS``.

A driver serves an engine and reaches it in its own way; errors arrive as the exceptions of tailrace.errors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import grpc
import grpc.aio

import tailrace
from tailrace import wire
from tailrace.capture import Capture, Heartbeat, StateComplete
from tailrace.conditions import ConditionTree
from tailrace.criteria import Area, Content, Operation
from tailrace.errors import TailraceError
from tailrace.transport.grpc_status import error_of
from tailrace.v1.capture_fields_pb2 import ReadStateResponseParts, SubscribeResponseParts
from tailrace.v1.change_capture_pb2 import (
    DemandRequest,
    ReadChangesRequest,
    ReadChangesResponse,
    ReadStateRequest,
    ReadStateResponse,
    SubscribeRequest,
    SubscribeResponse,
)
from tailrace.v1.change_capture_pb2_grpc import ChangeCaptureStub
from tailrace_server.api import requests
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.entrances import OPEN, Entrance
from tests.conformance.graphql_driver import GraphqlEvents, GraphqlWebSocket
from tests.conformance.http_drivers import RestWebSocket, ServerSentEvents
from tests.conformance.reading import PATIENCE_S
from tests.conformance.ways import Acknowledged, Asked, DrivenSubscription, Driver, Page, Rows
from tests.support.inprocess import observer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from tailrace.criteria import Beginning, Criteria
    from tailrace.v1.change_capture_pb2_grpc import ChangeCaptureAsyncStub
    from tailrace_server.live.subscription import Subscription as EngineSubscription
    from tailrace_server.resources.settings import EngineSettings


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ARGUMENTS: Final = {
    "primary_key": "keys",
    "at_version": "at",
    "column": "columns",
    "wait_for_version": "wait_for",
    "overrun_policy": "overrun",
    "where_tree": "where",
}
"""Field of a request → argument of our client, where the names differ."""


class InProcess(Driver):
    """The engine itself."""

    cannot: ClassVar[Mapping[str, str]] = {
        "max_connection_age_s": "there is no connection that could be old"
    }

    @classmethod
    @asynccontextmanager
    async def serve(cls, engine: Engine, entrance: Entrance = OPEN) -> AsyncIterator[Driver]:
        assert entrance is OPEN, "nobody comes in from outside"
        yield cls(engine)

    async def open(self, asked: Asked) -> DrivenSubscription:
        subscription = await self.engine.subscribe(
            ANONYMOUS,
            asked.catalog,
            asked.criteria,
            start=asked.start,
            content=asked.content,
            codec=PROTOBUF,
            demand=asked.demand,
            limits=requests.wish(SubscribeRequest(**asked.more)).limits,
        )
        return _InProcessSubscription(subscription)

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        request = ReadChangesRequest(catalog="shop", **_as_text(bounds))
        history = await self.engine.history(
            ANONYMOUS,
            "shop",
            criteria,
            bounds=requests.history_bounds(request),
            reverse=request.reverse,
            content=content,
            codec=PROTOBUF,
            limit=requests.limit(request),
        )
        uuid = observer_of(self.engine, "shop").log.view.uuid
        captures: list[Capture] = []
        async for frames in history:
            message = SubscribeResponseParts.FromString(frames.data)
            captures.extend(wire.captures(message.captures, uuid))
        next_cursor = None
        if history.has_next:
            last = captures[-1].cursor
            ordinal = 0 if request.reverse else tailrace.END
            next_cursor = tailrace.Cursor(uuid, last.version, last.index, ordinal)
        return Page(captures, history.anchor, history.closed_until, next_cursor, history.truncated)

    async def state(self, entity_type: str = "product", **asked: Any) -> Rows:
        request = ReadStateRequest(catalog="shop", entity_type=entity_type, **_as_messages(asked))
        read = await self.engine.state(
            ANONYMOUS,
            "shop",
            requests.state(request),
            codec=PROTOBUF,
            max_message_bytes=request.max_message_bytes or None,
        )
        with read:
            captures = [
                capture
                async for frames in read
                for capture in wire.captures(
                    ReadStateResponseParts.FromString(frames.data).rows, read.catalog_uuid
                )
            ]
        page = read.next_page()
        return Rows(captures, read.version, read.cursor, None if page is None else str(page))


class _InProcessSubscription:
    def __init__(self, subscription: EngineSubscription) -> None:
        self._subscription = subscription
        self.acknowledgement = subscription.acknowledgement
        self.marks: list[StateComplete] = []

    async def request(self, n: int) -> None:
        """Ask; what is wrong with it is heard from ``receive``, as over a wire."""
        try:
            self._subscription.request(n)
        except TailraceError:
            return

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        message = await self._subscription.receive()
        if isinstance(message, StateComplete):
            self.marks.append(message)
            return ()
        if isinstance(message, Heartbeat):
            return message
        captures = SubscribeResponseParts.FromString(message.data).captures
        assert len(captures) == message.count
        cursor = self.acknowledgement.resume_cursor
        return wire.captures(captures, cursor.catalog_uuid, cursor=cursor)

    async def cancel(self) -> None:
        self._subscription.cancel()
        await asyncio.sleep(0)


class _OverGrpc(Driver):
    def __init__(self, engine: Engine, server: GrpcServer, target: str, entrance: Entrance) -> None:
        super().__init__(engine)
        self._server = server
        self.target = target
        self.entrance = entrance

    async def stop(self) -> None:
        """Stop the server in good order."""
        await self._server.stop(PATIENCE_S)


class OurClient(_OverGrpc):
    """The server on a port, and our client."""

    client: tailrace.Client

    @classmethod
    @asynccontextmanager
    async def serve(cls, engine: Engine, entrance: Entrance = OPEN) -> AsyncIterator[Driver]:
        async with _server(engine, entrance) as (server, target):
            driver = cls(engine, server, target, entrance)
            no_retry = tailrace.Retry(attempts_max=0)
            async with tailrace.connect(
                target, tls=entrance.ca, token=entrance.token, retry=no_retry
            ) as driver.client:
                yield driver

    async def open(self, asked: Asked) -> DrivenSubscription:
        subscription = self.client.subscribe(
            asked.catalog,
            asked.criteria,
            content=asked.content,
            demand=4096 if asked.demand is None else 0,
            **_arguments(asked.start),
            **_renamed(asked.more),
        )
        await subscription.__aenter__()
        if asked.demand:
            subscription.request(asked.demand)
        return _ClientSubscription(subscription)

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        if "since_version" in bounds:
            version = bounds.pop("since_version")
            bounds["since"] = tailrace.Position(version, bounds.pop("since_index", 0))
        if "until_version" in bounds:
            version, index = bounds.pop("until_version"), bounds.pop("until_index", None)
            bounds["until"] = version if index is None else tailrace.Position(version, index)
        read = self.client.read_changes(
            "shop", tuple(criteria), content=content, **_renamed(bounds)
        )
        async with asyncio.timeout(PATIENCE_S), read as history:
            captures = [capture async for capture in history]
            header, end = history.header, history.end
        assert end.has_next == (end.next_cursor is not None)
        return Page(captures, header.anchor, header.closed_until, end.next_cursor, header.truncated)

    async def state(self, entity_type: str = "product", **asked: Any) -> Rows:
        renamed = _renamed(asked)
        if "at_time" in asked:
            del renamed["at_time"]
            renamed["at"] = EPOCH + timedelta(microseconds=asked["at_time"])
        async with (
            asyncio.timeout(PATIENCE_S),
            self.client.state("shop", entity_type, **renamed) as state,
        ):
            header, rows = state.header, [row async for row in state]
        captures = [
            Capture(
                *(header.catalog_uuid, *row.position, 0, row.commit_timestamp),
                *(Area.DATA, Operation.UPSERT, entity_type, row.primary_key, None),
                after=row.image,
                omitted_bytes=row.omitted_bytes,
            )
            for row in rows
        ]
        return Rows(captures, header.version, header.cursor, state.end.next_page)


class _ClientSubscription:
    def __init__(self, subscription: tailrace.Subscription) -> None:
        self._subscription = subscription
        self._messages = subscription.messages()
        self.marks: list[StateComplete] = []

    @property
    def acknowledgement(self) -> Acknowledged:
        return self._subscription.acknowledgement

    async def request(self, n: int) -> None:
        """Ask; what is wrong with it is heard from ``receive``, as over a wire."""
        try:
            self._subscription.request(n)
        except TailraceError:
            return

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        message = await anext(self._messages)
        if isinstance(message, StateComplete):
            self.marks.append(message)
            return ()
        return message

    async def cancel(self) -> None:
        await self._subscription.close()


class BareStub(_OverGrpc):
    """The server on a port, and the generated stub: what a program in another language does."""

    stub: ChangeCaptureAsyncStub

    @classmethod
    @asynccontextmanager
    async def serve(cls, engine: Engine, entrance: Entrance = OPEN) -> AsyncIterator[Driver]:
        assert entrance is OPEN, "our client goes through it, by the same calls"
        async with _server(engine, entrance) as (server, target):
            driver = cls(engine, server, target, entrance)
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with (
                grpc.aio.insecure_channel(target, options) as channel,
                AsyncExitStack() as stack,
            ):
                driver.stub = ChangeCaptureStub(channel)
                driver._stack = stack
                yield driver

    _stack: AsyncExitStack

    async def open(self, asked: Asked) -> DrivenSubscription:
        request = SubscribeRequest(
            catalog=asked.catalog,
            criteria=wire.criteria_messages(asked.criteria),
            body=wire.body_numbers(asked.content),
            **asked.more,
        )
        wire.set_start(request, asked.start)
        call: Any
        if asked.demand is None:
            call = self.stub.Subscribe(request)
        else:
            call = self.stub.SubscribeWithDemand()  # type: ignore[call-arg]  # written to by hand
            await call.write(DemandRequest(subscribe=request, request=asked.demand or None))
        self._stack.callback(call.cancel)
        subscription = _StubSubscription(call)
        await subscription.begin()
        return subscription

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        request = ReadChangesRequest(
            catalog="shop",
            criteria=wire.criteria_messages(criteria),
            body=wire.body_numbers(content),
            **_as_text(bounds),
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                messages: list[ReadChangesResponse] = [
                    each async for each in self.stub.ReadChanges(request)
                ]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        header, end = messages[0].header, messages[-1].end
        uuid = tailrace.Cursor.parse(f"1.{header.catalog_uuid.replace('-', '')}.0.0.0").catalog_uuid
        captures = [c for each in messages for c in _read(each, uuid)]
        assert end.captures == len(captures)
        next_cursor = tailrace.Cursor.parse(end.next_cursor) if end.has_next else None
        return Page(captures, header.anchor, header.closed_until, next_cursor, header.truncated)

    async def state(self, entity_type: str = "product", **asked: Any) -> Rows:
        request = ReadStateRequest(catalog="shop", entity_type=entity_type, **_as_messages(asked))
        try:
            async with asyncio.timeout(PATIENCE_S):
                messages: list[ReadStateResponse] = [
                    each async for each in self.stub.ReadState(request)
                ]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        header, end = messages[0].header, messages[-1].end
        cursor = tailrace.Cursor.parse(header.resume_cursor)
        rows = [row.SerializeToString() for each in messages for row in each.rows]
        assert end.rows == len(rows)
        captures = [*wire.captures(rows, cursor.catalog_uuid)] if rows else []
        return Rows(captures, header.version, cursor, end.next_page or None)


class _StubSubscription:
    acknowledgement: tailrace.Acknowledgement

    def __init__(self, call: Any) -> None:
        self._call = call
        self._ready: deque[tuple[Capture, ...] | Heartbeat] = deque()
        self.marks: list[StateComplete] = []

    async def begin(self) -> None:
        message = await self._read()
        assert not message.captures
        self.acknowledgement = wire.acknowledgement(message.acknowledgement)

    async def request(self, n: int) -> None:
        await self._call.write(DemandRequest(request=n))

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        while not self._ready:
            message = await self._read()
            assert not message.HasField("acknowledgement")
            if message.captures:
                cursor = self.acknowledgement.resume_cursor
                self._ready.append(_read(message, cursor.catalog_uuid, cursor))
            if message.HasField("state_complete"):
                self.marks.append(wire.state_complete(message.state_complete))
                self._ready.append(())
            if message.HasField("heartbeat"):
                self._ready.append(wire.heartbeat(message.heartbeat))
        return self._ready.popleft()

    async def cancel(self) -> None:
        self._call.cancel()

    async def _read(self) -> SubscribeResponse:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        assert isinstance(message, SubscribeResponse), "a subscription never completes"
        return message


@asynccontextmanager
async def _server(engine: Engine, entrance: Entrance) -> AsyncIterator[tuple[GrpcServer, str]]:
    server = GrpcServer(engine, **entrance.served)
    target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    try:
        yield server, target
    finally:
        await server.stop(1.0)


def _as_text(bounds: dict[str, Any]) -> dict[str, Any]:
    """Return bounds with cursors as text."""
    return {
        name: str(value) if isinstance(value, tailrace.Cursor) else value
        for name, value in bounds.items()
    }


def _as_messages(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request with trees as messages."""
    return {
        name: value.message if isinstance(value, ConditionTree) else value
        for name, value in asked.items()
    }


def _renamed(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request as arguments of our client."""
    renamed = {_ARGUMENTS.get(name, name): value for name, value in asked.items()}
    if "wait_ms" in renamed:
        renamed["wait_s"] = renamed.pop("wait_ms") / 1000
    if "where_parameter" in renamed:
        given = (each.split("=", 1) for each in renamed.pop("where_parameter"))
        renamed["parameters"] = {name: value for name, value in given}
    return renamed


def _arguments(start: Beginning | None) -> dict[str, Any]:
    match start:
        case None:
            return {}
        case tailrace.FromState(after):
            return {"initial": tailrace.Initial.STATE, "after": after}
        case tailrace.Since(position):
            return {"since": position}
        case tailrace.After(cursor, from_time):
            return {"after": cursor, "from_time": from_time}
        case tailrace.FromTime(timestamp):
            return {"from_time": timestamp}


DRIVERS: Final[dict[str, type[Driver]]] = {
    "in-process": InProcess,
    "client": OurClient,
    "stub": BareStub,
    "rest-ws": RestWebSocket,
    "sse": ServerSentEvents,
    "graphql-ws": GraphqlWebSocket,
    "graphql-sse": GraphqlEvents,
}
"""Every way in, by name."""


@asynccontextmanager
async def serving(
    root: Path, way_in: str, settings: EngineSettings, entrance: Entrance = OPEN
) -> AsyncIterator[Driver]:
    """Serve a log root and reach it in one of the ways."""
    async with Engine(root, settings) as engine, DRIVERS[way_in].serve(engine, entrance) as driver:
        yield driver


def _read(
    message: SubscribeResponse | ReadChangesResponse,
    uuid: UUID,
    cursor: tailrace.Cursor | None = None,
) -> tuple[Capture, ...]:
    encoded = [each.SerializeToString() for each in message.captures]
    return wire.captures(encoded, uuid, cursor=cursor)
