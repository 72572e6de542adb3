"""Drivers of the HTTP listener: live over WebSocket and as server-sent events, history as JSON pages."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httpx
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

import tailrace
from tailrace_server.api.grpc import GrpcStatistics
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.server import metrics
from tailrace_server.api.server.http import HttpFace
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.units import Address
from tests.conformance import json_captures
from tests.conformance.entrances import OPEN, Entrance
from tests.conformance.json_captures import JsonAcknowledgement
from tests.conformance.reading import PATIENCE_S
from tests.conformance.ways import Asked, DrivenSubscription, Driver, Page, Rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.criteria import Content, Criteria
    from tailrace.errors import TailraceError
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine


class OverHttp(Driver):
    """The HTTP listener on a port."""

    settings: ClassVar[HttpSettings | None] = None
    """Bounds of the listener; None: the defaults."""

    def __init__(
        self, engine: Engine, face: HttpFace, http: httpx.AsyncClient, entrance: Entrance
    ) -> None:
        super().__init__(engine)
        self.face = face
        self.http = http
        self.entrance = entrance
        self.stack = AsyncExitStack()
        self._held: list[AsyncIterator[bytes]] = []

    @classmethod
    @asynccontextmanager
    async def serve(cls, engine: Engine, entrance: Entrance = OPEN) -> AsyncIterator[Driver]:
        async with (
            listening(engine, settings=cls.settings, **entrance.served) as face,
            httpx.AsyncClient(
                base_url=entrance.url("http", face.address.port),
                headers=entrance.headers,
                verify=entrance.context or False,
                timeout=PATIENCE_S,
            ) as http,
        ):
            driver = cls(engine, face, http, entrance)
            async with driver.stack:
                yield driver

    async def stop(self) -> None:
        """Stop the server in good order."""
        self.engine.stop_subscriptions()
        await self.face.drain(PATIENCE_S)

    def chunks(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        """Return what an answer brings, and keep its connection while the driver is there.

        The event loop ends a generator that nobody holds any more, and this one would close its
        connection: a subscription that a test only begins would end at some moment.
        """
        found = answer.aiter_bytes()
        self._held.append(found)
        return found

    async def connect(
        self, path: str, subprotocol: str, headers: Mapping[str, str]
    ) -> ClientConnection:
        """Open a WebSocket, until the driver ends."""
        return await self.stack.enter_async_context(
            connect(
                self.entrance.url("ws", self.face.address.port) + path,
                subprotocols=[websockets.Subprotocol(subprotocol)],
                additional_headers=headers,
                ssl=self.entrance.context,
                max_size=None,
                max_queue=None,
            )
        )

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        asked = {
            json_captures.camel(name): str(value) if isinstance(value, tailrace.Cursor) else value
            for name, value in bounds.items()
        }
        asked["criteria"] = json_captures.criteria(tuple(criteria))
        asked["body"] = json_captures.bodies(content)
        answer = await self.http.post("/v1/catalogs/shop/changes/query", json=asked)
        if answer.status_code != 200:
            raise json_captures.error(answer.json())
        page = msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])
        captures = json_captures.captures(page.pop("captures"))
        figures = {name: msgspec.json.decode(value) for name, value in page.items()}
        assert figures["count"] == len(captures)
        cursor = figures["nextCursor"]
        assert figures["hasNext"] == (cursor is not None)
        return Page(
            captures=list(captures),
            anchor=figures["anchor"],
            closed_until=figures["closedUntil"],
            next_cursor=None if cursor is None else tailrace.Cursor.parse(cursor),
            truncated=figures["truncated"],
        )

    async def state(self, entity_type: str = "product", **asked: Any) -> Rows:
        parameters: list[tuple[str, Any]] = [
            (json_captures.camel(name), str(each).lower() if isinstance(each, bool) else str(each))
            for name, value in asked.items()
            for each in (value if isinstance(value, list | tuple) else [value])
        ]
        answer = await self.http.get(f"/v1/catalogs/shop/state/{entity_type}", params=parameters)
        if answer.status_code != 200:
            raise json_captures.error(answer.json())
        page = msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])
        captures = json_captures.captures(page.pop("rows"))
        figures = {name: msgspec.json.decode(value) for name, value in page.items()}
        assert figures["count"] == len(captures)
        assert figures["hasNext"] == (figures["nextPage"] is not None)
        cursor = tailrace.Cursor.parse(figures["resumeCursor"])
        return Rows(list(captures), figures["version"], cursor, figures["nextPage"])


class RestWebSocket(OverHttp):
    """Live changes over WebSocket: a socket for each subscription, all kinds of messages."""

    async def open(self, asked: Asked) -> DrivenSubscription:
        path = f"/v1/catalogs/{asked.catalog}/changes/live"
        socket = await self.connect(path, SUBPROTOCOL, self.entrance.headers)
        subscription = _SocketSubscription(socket)
        payload = _members(asked)
        if asked.demand is not None:
            payload["request"] = asked.demand
        await subscription.begin(payload)
        return subscription


def _members(asked: Asked) -> dict[str, Any]:
    """Return a request to subscribe as JSON members."""
    return {
        **json_captures.start(asked.start),
        "criteria": json_captures.criteria(asked.criteria),
        "body": json_captures.bodies(asked.content),
        **json_captures.members(asked.more),
    }


class SocketMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message of graphql-transport-ws, and of the protocol of REST, which is made like it."""

    type: str
    id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")


class OverSocket:
    """A subscription that has a WebSocket of its own."""

    acknowledgement: JsonAcknowledgement

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.marks: list[StateComplete] = []

    async def cancel(self) -> None:
        await self._send("complete")

    def error(self, payload: Any) -> TailraceError:
        """Return the error that a message of the type ``error`` carries."""
        return json_captures.error(payload)

    async def _send(self, type: str, payload: object = None, id: str | None = "1") -> None:
        message = {"type": type, "id": id, "payload": payload}
        text = msgspec.json.encode({k: v for k, v in message.items() if v is not None})
        await self._socket.send(text.decode())

    async def _receive(self) -> SocketMessage:
        async with asyncio.timeout(PATIENCE_S):
            text = await self._socket.recv()
        message = msgspec.json.decode(text, type=SocketMessage)
        if message.type == "error":
            raise self.error(msgspec.json.decode(message.payload))
        return message


class _SocketSubscription(OverSocket):
    async def begin(self, payload: dict[str, Any]) -> None:
        await self._send("connection_init", id=None)
        assert (await self._receive()).type == "connection_ack"
        await self._send("subscribe", payload)
        message = await self._receive()
        assert message.type == "subscribed"
        self.acknowledgement = JsonAcknowledgement(msgspec.json.decode(message.payload))

    async def request(self, n: int) -> None:
        await self._send("request", {"n": n})

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        message = await self._receive()
        if message.type == "heartbeat":
            return json_captures.heartbeat(msgspec.json.decode(message.payload))
        if message.type == "stateComplete":
            self.marks.append(json_captures.state_complete(msgspec.json.decode(message.payload)))
            return ()
        assert message.type == "next"
        parts = msgspec.json.decode(message.payload, type=dict[str, msgspec.Raw])
        captures = json_captures.captures(parts["captures"])
        last = captures[-1]
        assert msgspec.json.decode(parts["cursor"]) == str(last.cursor)
        assert msgspec.json.decode(parts["position"]) == {
            "version": last.version,
            "index": last.index,
            "ordinal": last.ordinal,
        }
        return captures


class ServerSentEvents(OverHttp):
    """Live changes as events; what a URL cannot hold is asked for in a body."""

    cannot: ClassVar[Mapping[str, str]] = {
        "demand": "an event stream has no way back: the pace of its connection is the demand"
    }

    async def open(self, asked: Asked) -> DrivenSubscription:
        assert asked.demand is None, self.cannot["demand"]
        members, criteria = _members(asked), asked.criteria
        path = f"/v1/catalogs/{asked.catalog}/changes/live"
        large = len(criteria) > 1 or any(len(each.primary_key) > 100 for each in criteria)
        headers = {"accept": "text/event-stream"}
        if large:
            request = self.http.stream("POST", path, json=members, headers=headers)
        else:
            one = members.pop("criteria")
            parameters = {**members, **(one[0] if one else {})}
            if "after" in parameters and "fromTime" not in parameters:
                headers["last-event-id"] = parameters.pop("after")
            request = self.http.stream("GET", path, params=parameters, headers=headers)
        answer = await self.stack.enter_async_context(request)
        if answer.status_code != 200:
            raise json_captures.error(msgspec.json.decode(await answer.aread()))
        timed = "fromTime" in members
        subscription = _EventSubscription(answer, self.chunks(answer), timed=timed)
        await subscription.begin()
        return subscription


class OverEvents:
    """A subscription as an event stream; each event has the cursor as its id, but see ``timed``."""

    acknowledgement: JsonAcknowledgement

    def __init__(
        self, answer: httpx.Response, chunks: AsyncIterator[bytes], *, timed: bool
    ) -> None:
        self._answer = answer
        self._chunks = chunks
        self._timed = timed
        """Whether it starts by time: events before that have no id."""
        self.marks: list[StateComplete] = []
        self._text = b""

    async def request(self, n: int) -> None:
        raise AssertionError(ServerSentEvents.cannot["demand"])

    async def cancel(self) -> None:
        await self._answer.aclose()

    def _expect_id(self, fields: dict[str, bytes], cursor: tailrace.Cursor) -> None:
        if "id" in fields or not self._timed:
            assert fields["id"].decode() == str(cursor)

    async def _event(self) -> dict[str, bytes]:
        """Return the fields of the next event."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\n\n" not in self._text:
                self._text += await anext(self._chunks)
        event, _, self._text = self._text.partition(b"\n\n")
        fields: dict[str, bytes] = {}
        for line in event.split(b"\n"):
            name, _, value = line.partition(b": ")
            assert name.decode() not in fields
            fields[name.decode()] = value
        return fields


class _EventSubscription(OverEvents):
    async def begin(self) -> None:
        fields = await self._event()
        if fields["event"] == b"error":
            raise json_captures.error(msgspec.json.decode(fields["data"]))
        assert fields["event"] == b"subscribed"
        self.acknowledgement = JsonAcknowledgement(msgspec.json.decode(fields["data"]))
        self._expect_id(fields, self.acknowledgement.resume_cursor)

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        fields = await self._event()
        match fields.get("event"):
            case None:
                capture = json_captures.capture(fields["data"])
                assert fields["id"].decode() == str(capture.cursor)
                return (capture,)
            case b"heartbeat":
                beat = json_captures.heartbeat(msgspec.json.decode(fields["data"]))
                self._expect_id(fields, beat.cursor)
                return beat
            case b"stateComplete":
                mark = json_captures.state_complete(msgspec.json.decode(fields["data"]))
                self._expect_id(fields, mark.cursor)
                self.marks.append(mark)
                return ()
            case b"error":
                raise json_captures.error(msgspec.json.decode(fields["data"]))
            case other:
                raise AssertionError(other)


@asynccontextmanager
async def listening(engine: Engine, **options: Any) -> AsyncIterator[HttpFace]:
    """Serve an engine over HTTP on a free port."""
    statistics = partial(engine.statistics, ANONYMOUS)
    registry = metrics.registry(statistics, lambda: GrpcStatistics(0, 0), version="0")
    face = HttpFace(engine, registry, Address("127.0.0.1", 0), **options)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(face.serve(), name="http")
        try:
            yield face
        finally:
            engine.stop_subscriptions()
            await face.drain(_STOP_S)
            face.stop()


_STOP_S: Final = 1.0
