"""The calls of named subscriptions: each is one request and one answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import grpc

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
from tailrace_server.api import named_requests, requests
from tailrace_server.api.grpc import responses
from tailrace_server.api.grpc.guard import caller
from tailrace_server.api.peers import over_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from google.protobuf.message import Message

    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.engine.engine import Engine

    Call = Callable[[Any, Any], Awaitable[Message]]
    Answer = Callable[[Callable[[], Awaitable[bytes]], Any], Awaitable[bytes]]
    Parse = Callable[[Any, bytes, Any], Any]


class NamedCalls:
    """The handlers of named subscriptions."""

    def __init__(
        self, engine: Engine, parse: Parse, answered: Answer, proxies: TrustedProxies
    ) -> None:
        """Serve an engine; ``parse`` reads a request, ``answered`` ends a call with its error."""
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
        return over_grpc(context.peer(), context.invocation_metadata(), self._proxies)

    async def _create(self, request: CreateSubscriptionRequest, context: Any) -> Message:
        asked = named_requests.create(request)
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
        asked = named_requests.acknowledgement(request)
        durable = await self._engine.named.acknowledge(caller(), request.catalog, *asked)
        return AcknowledgeResponse(cursor=str(durable))
