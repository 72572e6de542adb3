"""GraphQL subscriptions and queries over the sub-protocol ``graphql-transport-ws``.

`api.websocket` enforces the rules of the sub-protocol; this module runs the operations.

All subscriptions with an equal selection share the same encoded payloads; only the id around a payload differs.
Queries of one connection are answered one after the other: the server builds an answer only when the client has
read enough of the previous one that the socket has room.

Acknowledgement and heartbeats are sent in the ``extensions`` of a result whose data is null (docs/adr/0061).

::

    {"data": {"onProductChange": null}, "extensions": {"heartbeat": {"publishedVersion": …, "resumeCursor": …}}}

A subscription with the argument ``signals: true`` receives them, in order with its changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.capture import Heartbeat, StateComplete
from tailrace.errors import InternalError, InvalidRequest, TailraceError
from tailrace_server.api import responses
from tailrace_server.api.byte_budget import UnreadAnswer
from tailrace_server.api.graphql.catalog import asked_of
from tailrace_server.api.graphql.codec import SEPARATOR
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.send_guard import on_end
from tailrace_server.api.websocket.messages import malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.byte_budget import ByteBudget
    from tailrace_server.api.graphql.catalog import GraphqlCatalog, Live
    from tailrace_server.api.websocket import SocketOperation
    from tailrace_server.grants.principal import Peer
    from tailrace_server.live.options import SubscribeAcknowledgement
    from tailrace_server.log_cache.frames import Frames


_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


SUBPROTOCOL: Final = "graphql-transport-ws"


class GraphqlSocketFace:
    """The face of one WebSocket: runs the GraphQL operations of a client on one catalog."""

    takes_tokens = False

    def __init__(
        self, catalog: GraphqlCatalog, answers: ByteBudget, peer: Peer, entrance: Entrance
    ) -> None:
        """Bind a peer to a catalog; ``answers`` is the shared budget of unread answers."""
        self.entrance = entrance
        self._catalog = catalog
        self._answers = answers
        self._peer = peer
        self._turn = asyncio.Lock()
        """Held by the query that runs, so that a client that does not read has only one answer in memory."""
        self.extra: Mapping[str, Callable[[SocketOperation, object], None]] = {}

    def error_payload(self, error: TailraceError) -> object:
        """Return the GraphQL errors of an error."""
        return error_list(error)

    def begin(self, operation: SocketOperation, payload: object) -> None:
        """Parse the request; its document is validated in ``run``, which may wait."""
        try:
            operation.state = asked_of(payload)
        except InvalidRequest as error:
            raise malformed(f"subscribe: payload: {error}") from None

    async def run(self, operation: SocketOperation) -> None:
        """Serve one operation until it ends.

        Raises:
            TailraceError: The operation ends with this error.
            ReaderGone: The client has disconnected.
        """
        catalog = self._catalog
        prepared = await catalog.prepare(operation.state, self.entrance.principal)
        operation.state = None
        if not prepared.is_subscription:
            # Build the answer only when the socket has room for it.
            async with self._turn:
                await operation.room()
                await self._answer(operation, await catalog.execute(prepared, self._peer))
            return
        live = await catalog.begin(prepared, self._peer)
        # Free the variables, and the document with its schema: a subscription may live for days.
        del prepared
        operation.answered()
        catalog.documents.compiled += 1
        await self._pump(operation, live)

    async def _answer(self, operation: SocketOperation, answer: bytes) -> None:
        """Send an answer; until the client has read it, it is charged to the budget of unread answers."""
        holder = UnreadAnswer(operation.interrupt)
        self._answers.hold(holder, len(answer))
        try:
            await operation.next(answer)
        finally:
            self._answers.hold(holder, 0)

    async def _pump(self, operation: SocketOperation, live: Live) -> None:
        """Send the changes and signals of a subscription until it ends."""
        subscription = live.subscription
        subscription.on_end = on_end(operation.interrupt)
        operation.serves(subscription)
        try:
            if live.signalled:
                acknowledgement = subscription.acknowledgement
                await operation.next(
                    acknowledgement_signal(live.key, acknowledgement, self._catalog)
                )
            while True:
                message = await subscription.receive()
                if isinstance(message, StateComplete):
                    if live.signalled:
                        await operation.next(state_complete_signal(live.key, message))
                elif not isinstance(message, Heartbeat):
                    await operation.nexts(payloads_of(message))
                elif live.signalled:
                    await operation.next(heartbeat_signal(live.key, message))
                # Free the message before waiting: the next one may need its memory.
                del message
        finally:
            subscription.cancel()


def payloads_of(message: Frames) -> Sequence[bytes | memoryview]:
    """Return the payloads of a message; a single payload, which may be large, is not copied."""
    if message.count == 1 and message.data.find(SEPARATOR) == len(message.data) - len(SEPARATOR):
        return (memoryview(message.data)[: -len(SEPARATOR)],)
    # JSON text cannot contain the separator. If an image does, the payloads would be cut in the wrong places.
    payloads = message.data.split(SEPARATOR)
    if len(payloads) != message.count + 1:
        raise InternalError("an image has a byte that is not allowed in JSON")
    payloads.pop()
    return payloads


def in_one_line(text: bytes) -> bytes:
    """Return JSON text with line ends replaced by spaces; in JSON they occur only between tokens."""
    return text.translate(_LINE_ENDS) if b"\n" in text or b"\r" in text else text


def acknowledgement_signal(
    key: str, value: SubscribeAcknowledgement, catalog: GraphqlCatalog
) -> bytes:
    """Return the payload that acknowledges a subscribe; ``key`` is the response key of its field."""
    found = responses.acknowledgement(
        value,
        send_deadline_s=catalog.engine.settings.send_deadline_s,
        request_bytes=catalog.settings.ws_message_bytes,
    )
    return _signal(key, "acknowledgement", found)


def state_complete_signal(key: str, value: StateComplete) -> bytes:
    """Return the payload that follows the last row of an initial state."""
    return _signal(key, "stateComplete", responses.state_complete(value))


def heartbeat_signal(key: str, value: Heartbeat) -> bytes:
    """Return the payload of a heartbeat."""
    return _signal(key, "heartbeat", responses.heartbeat(value))


def _signal(key: str, name: str, value: Message) -> bytes:
    extensions = {name: responses.as_json(value)}
    return msgspec.json.encode({"data": {key: None}, "extensions": extensions})
