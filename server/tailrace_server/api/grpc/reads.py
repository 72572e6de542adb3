"""Calls that complete: reads of history, state and SQL, and the calls of named subscriptions.

The answer of a read is a header, the engine's messages unchanged, and an end with the place where the next read
continues. A call of named subscriptions has one request and one answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc

from tailrace.errors import again
from tailrace.v1.change_capture_pb2 import ReadChangesResponse, ReadStateResponse
from tailrace.v1.named_subscription_pb2 import (
    AcknowledgeRequest,
    AcknowledgeResponse,
    CreateSubscriptionRequest,
    DeleteSubscriptionRequest,
    DeleteSubscriptionResponse,
    ListSubscriptionsRequest,
    ListSubscriptionsResponse,
    PauseSubscriptionRequest,
    ResetSubscriptionRequest,
)
from tailrace.v1.sql_pb2 import QuerySqlResponse
from tailrace_server.api import requests, responses, sql_requests
from tailrace_server.api.grpc import messages
from tailrace_server.api.grpc.guard import caller, peer_of
from tailrace_server.api.grpc.stream import GuardedSender, SendDeadlineExceeded
from tailrace_server.api.requests import reading
from tailrace_server.api.send_guard import on_end
from tailrace_server.codecs import PROTOBUF, PROTOBUF_DECODED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from google.protobuf.message import Message

    from tailrace.v1.change_capture_pb2 import ReadChangesRequest, ReadStateRequest
    from tailrace.v1.sql_pb2 import QuerySqlRequest
    from tailrace_server.api.send_guard import SendGuard
    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.codecs import Codec
    from tailrace_server.engine.engine import Engine
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.history import HistoryRead
    from tailrace_server.reads.log_read import LogRead
    from tailrace_server.reads.sql_read import SqlRead
    from tailrace_server.reads.state import StateRead

    Context = grpc.aio.ServicerContext[bytes, bytes]
    Call = Callable[[Any, Any], Awaitable[Message]]
    Answer = Callable[[Callable[[], Awaitable[bytes]], Any], Awaitable[bytes]]
    Parse = Callable[[Any, bytes, Any], Any]


_Read = TypeVar("_Read", bound="LogRead")


class ClosedReads:
    """The handlers of reads: history, state and SQL."""

    def __init__(
        self,
        engine: Engine,
        guard: SendGuard,
        proxies: TrustedProxies,
        disconnect: Callable[[str], object],
    ) -> None:
        """Read from an engine; ``guard`` ends stalled readers, and ``disconnect`` cuts a peer's connection."""
        self._proxies = proxies
        self._disconnect = disconnect
        self._engine = engine
        self._guard = guard

    async def changes(self, request: ReadChangesRequest, context: Context) -> None:
        """Send a closed range of history."""
        bytes_max = requests.max_message_bytes(request, self._engine.settings.max_message_bytes)
        engine = self._engine
        async with reading(engine.turns.many_keys, requests.history_criteria, request) as criteria:
            history = await engine.history(
                caller(),
                requests.catalog(request.catalog),
                criteria,
                bounds=requests.history_bounds(request),
                reverse=request.reverse,
                content=requests.content(request.body),
                codec=_codec(decoded=requests.decoded(request.values)),
                limit=requests.limit(request),
                max_message_bytes=bytes_max,
                peer=peer_of(context, self._proxies),
            )
        request.ClearField("criteria")
        header = responses.history_header(history, catalog=request.catalog)

        def end(read: HistoryRead, last: tuple[int, int, int] | None, count: int) -> bytes:
            cursor = requests.next_cursor(read, last, reverse=request.reverse)
            return messages.history_end(next_cursor=cursor, captures=count)

        with history:
            await self._send(
                history,
                ReadChangesResponse(header=header),
                partial(_fitting, bytes_max),
                end,
                context,
            )

    async def state(self, request: ReadStateRequest, context: Context) -> None:
        """Send the rows of an entity type as of one version."""
        bytes_max = requests.max_message_bytes(request, self._engine.settings.max_message_bytes)
        read = await self._engine.state(
            caller(),
            requests.catalog(request.catalog),
            requests.state(request),
            codec=_codec(decoded=requests.decoded(request.values)),
            max_message_bytes=bytes_max,
            peer=peer_of(context, self._proxies),
        )
        request.ClearField("primary_key")
        header = responses.state_header(read, catalog=request.catalog)

        def end(read: StateRead, _: object, count: int) -> bytes:
            return messages.state_end(next_page=read.next_page(), rows=count)

        with read:
            await self._send(
                read, ReadStateResponse(header=header), partial(_fitting, bytes_max), end, context
            )

    async def sql(self, request: QuerySqlRequest, context: Context) -> None:
        """Send the answer to a statement."""
        asked = sql_requests.asked(request)
        read = await self._engine.reads.sql(
            caller(),
            peer_of(context, self._proxies),
            requests.catalog(request.catalog),
            asked,
            max_message_bytes=requests.max_message_bytes(
                request, self._engine.settings.max_message_bytes
            ),
        )
        with read:
            header = responses.sql_header(read, catalog=request.catalog)

            def end(_: SqlRead, __: object, count: int) -> bytes:
                return messages.sql_end(rows=count)

            await self._send(
                read,
                QuerySqlResponse(header=header),
                partial(messages.sql_rows, asked.form),
                end,
                context,
            )

    async def _send(
        self,
        read: _Read,
        header: Message,
        message: Callable[[Frames], bytes],
        end: Callable[[_Read, tuple[int, int, int] | None, int], bytes],
        context: Context,
    ) -> None:
        try:
            with GuardedSender(self._guard, context) as sender:
                read.on_end = on_end(sender.interrupt)
                await sender.begin()
                await sender.send(header.SerializeToString())
                count, last = 0, None
                async for frames in read:
                    count += frames.count
                    last = frames.last
                    data = message(frames)
                    await sender.send(data)
                    del frames, data  # the next message may have to wait for the room of this one
                await sender.send(end(read, last, count))
        except SendDeadlineExceeded:
            # If the engine ended the read to free memory, cut the connection: only that frees the unread
            # message.
            if read.error is not None:
                self._disconnect(context.peer())
                raise again(read.error) from None
            raise


def _fitting(bytes_max: int, frames: Frames) -> bytes:
    """Return a message; a single capture above the bound is returned without its bodies."""
    if frames.count > 1 or len(frames.data) <= bytes_max:
        return frames.data
    return messages.without_bodies(frames.data)


def _codec(*, decoded: bool) -> Codec:
    return PROTOBUF_DECODED if decoded else PROTOBUF


class NamedCalls:
    """The handlers of named subscriptions."""

    def __init__(
        self, engine: Engine, parse: Parse, answered: Answer, proxies: TrustedProxies
    ) -> None:
        """Serve an engine; ``parse`` reads a request, ``answered`` runs a call and ends it on an error."""
        self._engine = engine
        self._parse = parse
        self._answered = answered
        self._proxies = proxies

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the handlers by method."""
        calls: dict[str, tuple[type[Message], Call]] = {
            "CreateSubscription": (CreateSubscriptionRequest, self._create),
            "ListSubscriptions": (ListSubscriptionsRequest, self._list),
            "ResetSubscription": (ResetSubscriptionRequest, self._reset),
            "PauseSubscription": (PauseSubscriptionRequest, self._pause),
            "DeleteSubscription": (DeleteSubscriptionRequest, self._delete),
            "Acknowledge": (AcknowledgeRequest, self._acknowledge),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(partial(self._call, kind, call))
            for name, (kind, call) in calls.items()
        }

    async def _call(
        self,
        kind: type[Message],
        call: Call,
        data: bytes,
        context: Any,
    ) -> bytes:
        async def answer() -> bytes:
            request = self._parse(kind, data, context)
            requests.catalog(request.catalog)
            return (await call(request, context)).SerializeToString()

        return await self._answered(answer, context)

    def _peer(self, context: Any) -> Any:
        return peer_of(context, self._proxies)

    async def _create(self, request: CreateSubscriptionRequest, context: Any) -> Message:
        asked = requests.create(request)
        named = self._engine.named
        found = await named.create(caller(), request.catalog, asked, self._peer(context))
        return responses.named_subscription(found)

    async def _list(self, request: ListSubscriptionsRequest, context: Any) -> Message:
        named = self._engine.named
        found = (
            [await named.get(caller(), request.catalog, request.name)]
            if request.HasField("name")
            else await named.list(caller(), request.catalog)
        )
        return ListSubscriptionsResponse(subscriptions=map(responses.named_subscription, found))

    async def _reset(self, request: ResetSubscriptionRequest, context: Any) -> Message:
        named, catalog = self._engine.named, request.catalog
        peer = self._peer(context)
        found = await named.reset(caller(), catalog, request.name, request.to, peer)
        return responses.named_subscription(found)

    async def _pause(self, request: PauseSubscriptionRequest, context: Any) -> Message:
        named, catalog = self._engine.named, request.catalog
        peer = self._peer(context)
        found = await named.pause(caller(), catalog, request.name, peer, paused=request.paused)
        return responses.named_subscription(found)

    async def _delete(self, request: DeleteSubscriptionRequest, context: Any) -> Message:
        named = self._engine.named
        await named.delete(caller(), request.catalog, request.name, self._peer(context))
        return DeleteSubscriptionResponse()

    async def _acknowledge(self, request: AcknowledgeRequest, context: Any) -> Message:
        asked = requests.acknowledgement(request)
        durable = await self._engine.named.acknowledge(caller(), request.catalog, *asked)
        return AcknowledgeResponse(cursor=str(durable))
