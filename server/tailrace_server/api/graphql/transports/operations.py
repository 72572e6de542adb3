"""Operations of one connection that carries several, whatever its protocol.

A compiled subscription is sent the frames that all subscribers of an equal selection share; nothing but the id
around them is its own. Queries of one connection are answered one after the other: an answer is not made before
the last one has been read so far that it could be written.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tailrace.capture import Heartbeat, StateComplete
from tailrace.errors import InternalError, SubscriberTooSlow, TailraceError
from tailrace_server.api.byte_budget import UnreadAnswer
from tailrace_server.api.graphql import signals
from tailrace_server.api.graphql.codec import DATA, EVENT_END, SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.byte_budget import ByteBudget
    from tailrace_server.api.graphql.catalog import GraphqlCatalog, Live
    from tailrace_server.grants.principal import Peer
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.log_cache.frames import Frames


_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class ResultReader(Protocol):
    """One operation as its connection sees it: what is sent to it waits until there is room."""

    state: Any
    """The request; None once the document has been read."""

    async def next(self, *parts: bytes | memoryview) -> None:
        """Send the result that the parts make, joined."""

    async def nexts(self, payloads: Sequence[bytes | memoryview]) -> None:
        """Send a result for each payload."""

    async def room(self) -> None:
        """Wait until a result could be written."""

    def serves(self, subscription: Subscription) -> None:
        """Note what has to end with its connection's age."""

    def answered(self) -> None:
        """Note that nothing of what was asked is kept any more. Idempotent."""

    def interrupt(self) -> None:
        """End the whole connection if it is busy with a result that is not read."""


class Operations:
    """The operations of one connection to a catalog."""

    def __init__(
        self,
        catalog: GraphqlCatalog,
        answers: ByteBudget,
        peer: Peer,
        entrance: Entrance,
        *,
        as_events: bool = False,
    ) -> None:
        """Bind a peer to a catalog; unread answers share a budget.

        Args:
            catalog: The catalog.
            answers: The budget.
            peer: The client, as operators see it.
            entrance: Whom it has proven to be.
            as_events: Whether a payload has to be one line.
        """
        self._catalog = catalog
        self._answers = answers
        self._peer = peer
        self._entrance = entrance
        self._as_events = as_events
        self._turn = asyncio.Lock()
        """Of queries, so that one that does not read holds one answer, however many it asks for."""

    async def run(self, operation: ResultReader) -> None:
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
        live = await catalog.begin(prepared, self._peer, as_events=self._as_events)
        del prepared  # its document, with the schema, and its variables have been used
        operation.answered()
        catalog.documents.compiled += 1
        await self._pump(operation, live)

    async def _answer(self, operation: ResultReader, answer: bytes) -> None:
        """Send an answer; one that is not read has a part in the budget of answers."""
        holder = UnreadAnswer(operation.interrupt)
        self._answers.hold(holder, len(answer))
        try:
            await operation.next(in_one_line(answer) if self._as_events else answer)
        finally:
            self._answers.hold(holder, 0)

    async def _pump(self, operation: ResultReader, live: Live) -> None:
        """Send a compiled subscription until it ends."""
        subscription = live.subscription
        subscription.on_end = partial(_on_end, operation)
        operation.serves(subscription)
        payloads = payloads_of_events if self._as_events else payloads_of
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
                    await operation.nexts(payloads(message))
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


def payloads_of_events(message: Frames) -> Sequence[bytes | memoryview]:
    """Return the payloads of a message of events, each in one line; as ``payloads_of``."""
    data = message.data
    if message.count == 1:
        return (memoryview(data)[data.index(DATA) + len(DATA) : -len(EVENT_END)],)
    events = data.split(EVENT_END)
    events.pop()
    assert len(events) == message.count
    return [event[event.index(DATA) + len(DATA) :] for event in events]


def in_one_line(text: bytes) -> bytes:
    """Return a text of JSON without line ends: they are between tokens only, where a space means the same."""
    return text.translate(_LINE_ENDS) if b"\n" in text or b"\r" in text else text


def signal(key: str, extensions: dict[str, Any]) -> bytes:
    """Return the payload of a result that says something of the subscription itself."""
    return msgspec.json.encode({"data": {key: None}, "extensions": extensions})


def _on_end(operation: ResultReader, error: TailraceError) -> None:
    """Stop a write for which there is no memory; any other end waits for it to be read, or for its deadline."""
    if isinstance(error, SubscriberTooSlow):
        operation.interrupt()
