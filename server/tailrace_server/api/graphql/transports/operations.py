"""Operations of one connection that carries several, whatever its protocol.

A compiled subscription is sent the frames that all subscribers of an equal selection share; nothing but the id
around them is its own. Queries of one connection are answered one after the other: an answer is not made before
the last one has been read so far that it could be written.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.capture import Heartbeat, StateComplete
from tailrace.errors import InternalError, SubscriberTooSlow, TailraceError
from tailrace_server.api.byte_budget import UnreadAnswer
from tailrace_server.api.graphql import signals
from tailrace_server.api.graphql.codec import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.byte_budget import ByteBudget
    from tailrace_server.api.graphql.catalog import GraphqlCatalog, Live
    from tailrace_server.api.websocket import SocketOperation
    from tailrace_server.grants.principal import Peer
    from tailrace_server.log_cache.frames import Frames


_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class Operations:
    """The operations of one connection to a catalog."""

    def __init__(
        self,
        catalog: GraphqlCatalog,
        answers: ByteBudget,
        peer: Peer,
        entrance: Entrance,
    ) -> None:
        """Bind a peer to a catalog; unread answers share a budget.

        Args:
            catalog: The catalog.
            answers: The budget.
            peer: The client, as operators see it.
            entrance: Whom it has proven to be.
        """
        self._catalog = catalog
        self._answers = answers
        self._peer = peer
        self._entrance = entrance
        self._turn = asyncio.Lock()
        """Of queries, so that one that does not read holds one answer, however many it asks for."""

    async def run(self, operation: SocketOperation) -> None:
        """Serve one operation until it ends.

        Raises:
            TailraceError: It ends with this error.
            ReaderGone: The client has gone.
        """
        catalog = self._catalog
        prepared = await catalog.prepare(operation.state, self._entrance.principal)
        operation.state = None
        if not prepared.is_subscription:
            async with self._turn:
                await operation.room()
                await self._answer(operation, await catalog.execute(prepared, self._peer))
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
                await operation.next(signal(live.key, found))
            while True:
                message = await subscription.receive()
                if isinstance(message, StateComplete):
                    if live.signalled:
                        found = signals.state_complete(message)
                        await operation.next(signal(live.key, found))
                elif not isinstance(message, Heartbeat):
                    await operation.nexts(payloads_of(message))
                elif live.signalled:
                    await operation.next(signal(live.key, signals.heartbeat(message)))
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


def in_one_line(text: bytes) -> bytes:
    """Return a text of JSON without line ends: they are between tokens only, where a space means the same."""
    return text.translate(_LINE_ENDS) if b"\n" in text or b"\r" in text else text


def signal(key: str, extensions: dict[str, Any]) -> bytes:
    """Return the payload of a result that says something of the subscription itself."""
    return msgspec.json.encode({"data": {key: None}, "extensions": extensions})


def _on_end(operation: SocketOperation, error: TailraceError) -> None:
    """Stop a write for which there is no memory; any other end waits for it to be read, or for its deadline."""
    if isinstance(error, SubscriberTooSlow):
        operation.interrupt()
