"""The service: it serves the engine's subscriptions and reads as streams of bytes.

The service is thin. It receives requests as bytes, so that unknown fields can be refused with their names. It
sends responses as bytes; those of the engine are not changed (the identity serializer). Every error is sent by
``abort``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from tailrace.capture import Heartbeat, StateComplete
from tailrace.errors import (
    InvalidRequest,
    SubscriberTooSlow,
    TailraceError,
    forget_frames,
)
from tailrace.v1.catalog_pb2 import GetSchemaRequest, ListCatalogsRequest, ListCatalogsResponse
from tailrace.v1.change_capture_pb2 import (
    DemandRequest,
    ReadChangesRequest,
    ReadStateRequest,
    SubscribeRequest,
    SubscribeResponse,
    SubscribeSystemRequest,
)
from tailrace.v1.sql_pb2 import QuerySqlRequest
from tailrace_server.api import requests, responses
from tailrace_server.api.connection_age import end_for_age
from tailrace_server.api.grpc.guard import abort, caller, entrance, peer_of
from tailrace_server.api.grpc.messages import parse
from tailrace_server.api.grpc.reads import ClosedReads, NamedCalls
from tailrace_server.api.grpc.stream import GuardedSender, SendDeadlineExceeded, UpdateStream
from tailrace_server.api.requests import reading
from tailrace_server.api.send_guard import ReaderGone, on_end
from tailrace_server.codecs import CDCV2, PROTOBUF, PROTOBUF_DECODED
from tailrace_server.errors import as_tailrace_error
from tailrace_server.grants.grant import Action
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

    from tailrace_server.api.connection_age import ConnectionAge
    from tailrace_server.api.grpc.connections import UnreadWatch
    from tailrace_server.api.requests import Wish
    from tailrace_server.api.send_guard import SendGuard
    from tailrace_server.api.settings import GrpcSettings
    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.codecs import Codec
    from tailrace_server.engine.engine import Engine
    from tailrace_server.live.subscription import Subscription

    Context = grpc.aio.ServicerContext[bytes, bytes]

_Message = TypeVar("_Message", bound="Message")


class ChangeCaptureService:
    """The handlers of ``tailrace.v1.ChangeCapture``."""

    def __init__(
        self,
        engine: Engine,
        settings: GrpcSettings,
        guard: SendGuard,
        unread: UnreadWatch,
        age: ConnectionAge,
        proxies: TrustedProxies,
        disconnect: Callable[[str], object],
    ) -> None:
        """Serve an engine.

        ``unread`` counts every request, and knows the age of connections. ``disconnect`` cuts the connection of
        a peer.
        """
        self._disconnect = disconnect
        self._proxies = proxies
        self._age = age
        self._unread = unread
        self._engine = engine
        self._settings = settings
        self._guard = guard
        self._reads = ClosedReads(engine, guard, proxies, disconnect)
        self._named = NamedCalls(engine, self._parse, self._answered, proxies)
        self._subscriptions: set[Subscription] = set()
        self._stopping = False
        self.accepting = asyncio.Event()
        """Set once the engine has opened its catalogs; earlier calls wait for it."""
        self._open: Counter[str] = Counter()
        """Number of open streams of each connection, by its peer."""
        self.refused = 0
        """Number of streams refused by the limit of one connection, since the service began."""
        self.errors: Counter[str] = Counter()
        """Number of calls that have ended with each error, by machine code."""

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the handlers by method. They have no serializers, so requests and responses are bytes."""
        stream, both = (
            grpc.unary_stream_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        )
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "Subscribe": stream(self.subscribe),
            "SubscribeWithDemand": both(self.subscribe_with_demand),
            "SubscribeSystem": stream(self.subscribe_system),
            "ReadChanges": stream(self.read_changes),
            "ReadState": stream(self.read_state),
            "QuerySql": stream(self.query_sql),
            "ListCatalogs": unary(self.list_catalogs),
            "GetSchema": unary(self.get_schema),
            **self._named.handlers(),
        }

    def count_error(self, code: str) -> None:
        """Count a call that ends with an error, by the error's machine code."""
        self.errors[code] += 1

    def stop_subscriptions(self) -> None:
        """End every stream with its resume cursor, including those that are being opened."""
        self._stopping = True
        for subscription in tuple(self._subscriptions):
            subscription.stop()

    async def subscribe(self, data: bytes, context: Context) -> None:
        """Stream changes; HTTP/2 flow control is the demand."""
        async with self._answering(context):
            request = self._parse(SubscribeRequest, data, context)
            # grpc.aio retains the bytes of the request as long as the call is open, so they are charged.
            with self._engine.criteria.charge(len(data)):
                opening = self._opened(request, context, demand=None)
                del request  # the subscription has its own copy of the keys
                subscription = await opening
                _raise_if_any(await self._pump(subscription, context))

    async def subscribe_system(self, data: bytes, context: Context) -> None:
        """Stream the system log."""
        async with self._answering(context):
            wish = requests.subscribe_system(self._parse(SubscribeSystemRequest, data, context))
            subscription = await self._subscribe(SYSTEM_CATALOG, wish, context, demand=None)
            _raise_if_any(await self._pump(subscription, context))

    async def subscribe_with_demand(self, _: object, context: Context) -> None:
        """Stream changes up to the demand that the client has requested."""
        async with self._answering(context):
            subscription = await self._subscribe_by(await self._first(context), context)
            _raise_if_any(await self._pump_with_demand(subscription, context))

    async def read_changes(self, data: bytes, context: Context) -> None:
        """Stream a closed range of history, then complete."""
        async with self._answering(context):
            request = self._parse(ReadChangesRequest, data, context)
            with self._engine.criteria.charge(len(data)):  # as above, for the request
                await self._reads.changes(request, context)

    async def read_state(self, data: bytes, context: Context) -> None:
        """Stream the rows of an entity type as of one version, then complete."""
        async with self._answering(context):
            request = self._parse(ReadStateRequest, data, context)
            with self._engine.criteria.charge(len(data)):
                await self._reads.state(request, context)

    async def query_sql(self, data: bytes, context: Context) -> None:
        """Stream the answer to an SQL statement, then complete."""
        async with self._answering(context):
            await self._reads.sql(self._parse(QuerySqlRequest, data, context), context)

    async def list_catalogs(self, data: bytes, context: Context) -> bytes:
        """Return the catalogs that are served now."""

        async def answer() -> bytes:
            self._parse(ListCatalogsRequest, data, context)
            return ListCatalogsResponse(
                catalogs=map(responses.catalog, self._engine.catalogs(caller())),
                unreadable=self._engine.unreadable(caller()),
            ).SerializeToString()

        return await self._answered(answer, context)

    async def get_schema(self, data: bytes, context: Context) -> bytes:
        """Return the schema of a catalog."""

        async def answer() -> bytes:
            request = self._parse(GetSchemaRequest, data, context)
            name = requests.catalog(request.catalog)
            if request.HasField("version") and request.version < 1:
                raise InvalidRequest(f"version {request.version}: versions count from 1")
            view = await self._engine.view(caller(), name, action=Action.SCHEMA)
            version = view.published
            if request.HasField("version"):
                version = min(request.version, version)
            return responses.schema(view, version).SerializeToString()

        return await self._answered(answer, context)

    def _parse(self, kind: type[_Message], data: bytes, context: Context) -> _Message:
        self._unread.took(context.peer(), len(data))
        return parse(kind, data, criteria_max=self._engine.settings.criteria)

    async def _opened(
        self, request: SubscribeRequest, context: Context, *, demand: int | None
    ) -> Subscription:
        async with reading(self._engine.turns.many_keys, requests.subscribe, request) as wish:
            return await self._subscribe(*wish, context, demand=demand)

    async def _subscribe(
        self, catalog: str, wish: Wish, context: Context, *, demand: int | None
    ) -> Subscription:
        peer = peer_of(context, self._proxies)
        codec = _codec_of(wish)
        return await requests.open_subscription(
            self._engine, caller(), catalog, wish, codec=codec, peer=peer, demand=demand
        )

    async def _first(self, context: Context) -> DemandRequest:
        deadline_s = self._settings.subscribe_deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                data = await context.read()
        except TimeoutError:
            raise InvalidRequest(f"no subscribe was received within {deadline_s:g} s") from None
        if not isinstance(data, bytes):
            raise InvalidRequest("the request stream ended without a subscribe")
        return self._parse(DemandRequest, data, context)

    async def _subscribe_by(self, first: DemandRequest, context: Context) -> Subscription:
        demand = requests.demand(first.request) if first.HasField("request") else 0
        if first.HasField("subscribe") == first.HasField("subscribe_system"):
            raise InvalidRequest(
                "the first message must have exactly one of subscribe, subscribe_system"
            )
        if first.HasField("token"):
            raise InvalidRequest(
                "token: send the first token in the metadata of the call, `authorization`"
            )
        if first.HasField("subscribe"):
            return await self._opened(first.subscribe, context, demand=demand)
        wish = requests.subscribe_system(first.subscribe_system)
        return await self._subscribe(SYSTEM_CATALOG, wish, context, demand=demand)

    async def _read_demand(self, subscription: Subscription, context: Context) -> None:
        """Add the client's demand to the subscription until the client sends no more.

        A wrong message ends the subscription with its error.
        """
        while (data := await _next_request(context)) is not None:
            try:
                message = self._parse(DemandRequest, data, context)
                if message.HasField("subscribe") or message.HasField("subscribe_system"):
                    raise InvalidRequest("subscribe: only the first message of a call may have it")
                if message.HasField("request"):
                    subscription.request(requests.demand(message.request))
                if message.HasField("token"):
                    await entrance().admit(message.token)
            except TailraceError as error:
                subscription.end(error)
                return

    async def _pump_with_demand(
        self, subscription: Subscription, context: Context
    ) -> TailraceError | None:
        # The pump returns its error instead of raising it: the task group would wrap it, and the reader of
        # requests has to be cancelled first in any case.
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_demand(subscription, context))
                try:
                    return await self._pump(subscription, context)
                finally:
                    # The task group would otherwise wait for the client's next message.
                    reader.cancel()
        except asyncio.CancelledError as cancelled:
            forget_frames(cancelled)  # a task group's own frame keeps the error that it raises
            raise

    async def _pump(self, subscription: Subscription, context: Context) -> TailraceError | None:
        """Send the messages of a subscription until it ends, and return its error; None if the client is gone.

        The error is returned, not raised, because a task group would wrap it.
        """
        # 1. From here on `stop_subscriptions` finds the subscription. If a stop came while the engine was still
        #    opening it, stop it now.
        self._subscriptions.add(subscription)
        if self._stopping:
            subscription.stop()
        ageing = self._age.call_later(
            partial(end_for_age, subscription), lived_s=self._unread.age_s(context.peer())
        )
        try:
            with GuardedSender(self._guard, context) as sender:
                subscription.on_end = on_end(sender.interrupt)
                # 2. Headers, then the acknowledgement, each under the send deadline.
                await sender.begin()
                acknowledgement = responses.acknowledgement(
                    subscription.acknowledgement,
                    send_deadline_s=self._guard.deadline_s,
                    request_bytes=self._settings.request_bytes,
                )
                first = SubscribeResponse(acknowledgement=acknowledgement)
                await sender.send(first.SerializeToString())
                del acknowledgement, first
                behind = (
                    UpdateStream(subscription).behind
                    if subscription.options.codec is CDCV2
                    else None
                )
                # 3. Send every message that is ready, and only then wait for the subscription. `rest` reports
                #    to the guard that this wait is not the reader's fault.
                while True:
                    for frames in subscription.ready():
                        await sender.write(frames.data + behind(frames) if behind else frames.data)
                        del frames  # the next message may have to wait for the room of this one
                    sender.rest()
                    message = await subscription.receive()
                    if isinstance(message, StateComplete):
                        mark = SubscribeResponse(state_complete=responses.state_complete(message))
                        await sender.write(mark.SerializeToString())
                        continue
                    data = (
                        SubscribeResponse(
                            heartbeat=responses.heartbeat(message)
                        ).SerializeToString()
                        if isinstance(message, Heartbeat)
                        else message.data
                    )
                    await sender.write(data + behind(message) if behind else data)
                    del message, data
        except SendDeadlineExceeded:
            # 4. The reader has stalled. If the engine ended the subscription because memory is short, cut the
            #    connection: a status would wait after the unread messages, and these would remain in memory.
            if isinstance(subscription.error, SubscriberTooSlow):
                self._disconnect(context.peer())
            if subscription.error is not None:
                return subscription.error
            cursor = str(subscription.resume_cursor())
            return SubscriberTooSlow(
                f"a message stayed unread for {self._guard.deadline_s:g} s; resume after {cursor}",
                cursor,
            )
        except ReaderGone:
            return None
        except Exception as error:
            return as_tailrace_error(error)
        finally:
            # 5. In any case, the publisher must not keep a subscription without a reader.
            if ageing is not None:
                ageing.cancel()
            self._subscriptions.discard(subscription)
            subscription.cancel()

    @asynccontextmanager
    async def _answering(self, context: Context) -> AsyncIterator[None]:
        """Count a stream of its connection, and end the call with an error that the body raises."""
        peer = context.peer()
        self._open[peer] += 1
        try:
            # The stream is counted before the check, so that its own place is included.
            self._check_room(peer)
            await self.accepting.wait()
            yield
        except ReaderGone:
            return
        except SendDeadlineExceeded:
            await self._end(SubscriberTooSlow("a message stayed unread for too long"), context)
        except Exception as error:
            await self._end(as_tailrace_error(error), context)
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def _check_room(self, peer: str) -> None:
        limit = self._settings.streams_per_connection
        if self._open[peer] > limit:
            self.refused += 1
            raise InvalidRequest(
                f"this connection already has {limit} open streams, the limit (streams_per_connection); "
                "end one, or open another connection"
            )

    async def _answered(self, answer: Callable[[], Awaitable[bytes]], context: Context) -> bytes:
        try:
            await self.accepting.wait()
            return await answer()
        except Exception as error:
            await self._end(as_tailrace_error(error), context)
            return b""

    async def _end(self, error: TailraceError, context: Context) -> None:
        self.count_error(error.code)
        await abort(error, context)


def _raise_if_any(error: TailraceError | None) -> None:
    """Raise an error that was returned, and leave no frame that refers to it."""
    try:
        if error is not None:
            raise error
    finally:
        del error


def _codec_of(wish: Wish) -> Codec:
    if wish.cdcv2:
        return CDCV2
    return PROTOBUF_DECODED if wish.decoded else PROTOBUF


async def _next_request(context: Context) -> bytes | None:
    """Return the next request; None if the client sends no more or is gone."""
    try:
        data: object = await context.read()
    except grpc.aio.BaseError:
        return None
    return data if isinstance(data, bytes) else None
