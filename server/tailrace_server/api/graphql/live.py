"""Subscriptions and queries over ``graphql-transport-ws``.

The sub-protocol's rules are kept by `api.websocket`; here a subscribe becomes an operation. A compiled one is
sent the frames that all subscribers of an equal selection share; nothing but the id around them is its own.
Queries of one socket are answered one after the other: an answer is not made before the last one has been read
so far that it could be written.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.capture import Heartbeat
from tailrace.errors import InternalError, SubscriberTooSlow, TailraceError
from tailrace_server.api.byte_budget import UnreadAnswer
from tailrace_server.api.graphql import signals
from tailrace_server.api.graphql.catalog import Asked
from tailrace_server.api.graphql.codec import SEPARATOR
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.websocket.messages import malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace_server.api.byte_budget import ByteBudget
    from tailrace_server.api.graphql.catalog import GraphqlCatalog, Live
    from tailrace_server.api.websocket import SocketOperation
    from tailrace_server.capture.delivery.peer import Peer
    from tailrace_server.capture.reading.frames import Frames

SUBPROTOCOL: Final = "graphql-transport-ws"


class GraphqlSocketFace:
    """The face of one socket of a catalog."""

    def __init__(self, catalog: GraphqlCatalog, answers: ByteBudget, peer: Peer) -> None:
        """Bind a peer to a catalog; unread answers share a budget."""
        self._catalog = catalog
        self._answers = answers
        self._peer = peer
        self._turn = asyncio.Lock()
        """Of queries, so that one that does not read holds one answer, however many it asks for."""
        self.extra: Mapping[str, Callable[[SocketOperation, object], None]] = {}

    async def on_init(self, payload: object) -> object:
        """Take everyone."""
        return None

    def error_payload(self, error: TailraceError) -> object:
        """Return a list of GraphQL errors."""
        return error_list(error)

    def begin(self, operation: SocketOperation, payload: object) -> None:
        """Keep what is asked for; the document is looked at in ``run``, which may wait."""
        operation.state = asked_of(payload)

    async def run(self, operation: SocketOperation) -> None:
        """Serve one operation until it ends."""
        catalog = self._catalog
        prepared = await catalog.prepare(operation.state)
        operation.state = None
        if not prepared.is_subscription:
            async with self._turn:
                await operation.room()
                await self._answer(operation, await catalog.execute(prepared))
            return
        live = await catalog.begin(prepared, self._peer)
        del prepared  # its document, with the schema, and its variables have been used
        operation.answered()
        catalog.documents.compiled += 1
        await self._pump(operation, live)

    async def _answer(self, operation: SocketOperation, answer: bytes) -> None:
        """Send an answer; one that is not read has a part in the budget of answers."""
        holder = UnreadAnswer(operation.interrupt)
        self._answers.hold(holder, len(answer))
        try:
            await operation.next(answer)
        finally:
            self._answers.hold(holder, 0)

    async def _pump(self, operation: SocketOperation, live: Live) -> None:
        """Send a compiled subscription until it ends."""
        subscription = live.subscription
        subscription.on_end = partial(_on_end, operation)
        operation.serves(subscription)
        try:
            if live.signalled:
                found = signals.acknowledgement(
                    subscription.acknowledgement, self._catalog.engine, self._catalog.settings
                )
                await operation.next(_signal(live.key, found))
            while True:
                message = await subscription.receive()
                if not isinstance(message, Heartbeat):
                    await operation.nexts(payloads_of(message))
                elif live.signalled:
                    await operation.next(_signal(live.key, signals.heartbeat(message)))
                del message  # the next one may have to wait for the room of this one
        finally:
            subscription.cancel()


def payloads_of(message: Frames) -> Sequence[bytes | memoryview]:
    """Return the payloads of a message; that of a large capture, which comes alone, is not copied."""
    if message.count == 1 and message.data.find(SEPARATOR) == len(message.data) - len(SEPARATOR):
        return (memoryview(message.data)[: -len(SEPARATOR)],)
    payloads = message.data.split(SEPARATOR)
    if len(payloads) != message.count + 1:
        raise InternalError("an image has a byte that no JSON text has")
    payloads.pop()
    return payloads


def asked_of(payload: Any) -> Asked:
    """Return what a subscribe asks for; members that are not known are passed over, as the protocol wants.

    Raises:
        Close: It is no message of the protocol.
    """
    query = payload.get("query")
    variables = payload.get("variables")
    name = payload.get("operationName")
    if not isinstance(query, str):
        raise malformed("subscribe: payload.query is a text")
    if not isinstance(variables, dict | None):
        raise malformed("subscribe: payload.variables is an object")
    if not isinstance(name, str | None):
        raise malformed("subscribe: payload.operationName is a text")
    if not isinstance(payload.get("extensions"), dict | None):
        raise malformed("subscribe: payload.extensions is an object")
    return Asked(query, variables or {}, name)


def _signal(key: str, extensions: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"data": {key: None}, "extensions": extensions})


def _on_end(operation: SocketOperation, error: TailraceError) -> None:
    """Stop a write for which there is no memory; any other end waits for it to be read, or for its deadline."""
    if isinstance(error, SubscriberTooSlow):
        operation.interrupt()
