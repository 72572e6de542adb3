"""One socket from accept to close: the state machine of graphql-transport-ws.

::

    accepted ──connection_init──▶ acknowledged ──subscribe──▶ an operation for each id
       │ 10 s                        │                            │
       ▼                             ├─ ping ─▶ pong              ├─ next … (the face's messages)
      4408                           ├─ complete: cancels it      ├─ complete: it ended well
                                     └─ the face's own types      └─ error: it ended badly

Messages are handled one after the other. Each operation runs in its own task. If a client does not read its
answers, the server stops reading from that client: the reading task waits to send, and TCP makes the client
wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from tailrace.errors import InvalidRequest, TailraceError, forget_frames
from tailrace_server.api.connection_age import REASON, EndsWithAge
from tailrace_server.api.errors import logged
from tailrace_server.api.send_guard import ReaderGone
from tailrace_server.api.websocket import messages
from tailrace_server.api.websocket.admission import admit_at_init, refused, renew
from tailrace_server.api.websocket.messages import (
    ClientMessage,
    Close,
    CloseCode,
    head,
    malformed,
    parse,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.settings import HttpSettings

_log = structlog.get_logger("tailrace.websocket")

_SMALL_BYTES: Final = 4096
"""Size limit of a small message, in characters.

A larger message waits for its turn before it is parsed. A larger subscribe is charged to the inbound budget
until it is answered.
"""


class Socket(Protocol):
    """The transport of a connection, as `SocketConnection` uses it."""

    async def receive(self) -> str | None:
        """Return the next text message; None once the peer is gone.

        Raises:
            Close: The frame is not allowed here.
        """

    async def turn(self) -> None:
        """Wait until this socket may begin an operation or parse a large message; live streams come first."""

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send the parts, joined, as one text message; wait while the peer does not read.

        Raises:
            ReaderGone: The peer is gone, or the send deadline ended the socket.
        """

    async def send_all(
        self, head: bytes, payloads: Sequence[bytes | memoryview], tail: bytes
    ) -> None:
        """Send one message for each payload, in order; a message is head, payload and tail, joined.

        Waits and raises like ``send``.
        """

    async def room(self) -> None:
        """Wait until the transport has room for a message: the peer has read enough of the earlier bytes.

        Raises:
            ReaderGone: The peer is gone, or the send deadline ended the socket.
        """

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame and end the connection. Idempotent."""

    def initialised(self) -> None:
        """Note that the peer has been admitted: messages of full size are allowed from now on."""

    def begun(self, nbytes: int) -> None:
        """Add the size of a subscribe to the inbound budget; a negative number releases it."""

    def interrupt(self) -> None:
        """End the socket if a write is under way, to free the memory of the unread message."""


class Face(Protocol):
    """The handler of one sub-protocol's operations and payloads."""

    @property
    def extra(self) -> Mapping[str, Callable[[SocketOperation, object], None]]:
        """The handlers of the face's additional message types, by type.

        A handler is called only if the id of the message names an open operation. If the handler raises a
        `TailraceError`, the operation ends with that error.
        """

    entrance: Entrance
    """The authentication state of the socket."""
    takes_tokens: bool
    """True if a message of the type ``token`` may renew the identity.

    A token in the payload of a ping renews it for every face.
    """

    def begin(self, operation: SocketOperation, payload: object) -> None:
        """Parse the payload of a subscribe into ``operation.state``; called before the next message is handled.

        Raises:
            TailraceError: The request is not valid; the operation ends with this error.
            Close: The payload violates the sub-protocol; the socket is closed.
        """

    async def run(self, operation: SocketOperation) -> None:
        """Serve one operation until it ends; a normal return sends ``complete``.

        Raises:
            TailraceError: The operation ends with this error.
        """

    def error_payload(self, error: TailraceError) -> object:
        """Return the payload of an ``error`` message for an error."""


class SocketOperation(EndsWithAge):
    """One operation of a socket: begun by a subscribe, identified by the client's id."""

    __slots__ = (
        "_asked_bytes",
        "_head",
        "_socket",
        "id",
        "reading",
        "state",
        "task",
    )

    def __init__(self, id: str, socket: Socket, asked_bytes: int = 0) -> None:
        """Bind to a socket under the client's id; ``asked_bytes`` is the size of the subscribe message."""
        self._asked_bytes = asked_bytes if asked_bytes > _SMALL_BYTES else 0
        if self._asked_bytes:
            socket.begun(self._asked_bytes)
        self.id = id
        self.state: Any = None
        """The state of the operation, which only the face reads and writes."""
        self.task: asyncio.Task[None] | None = None
        self.reading: asyncio.Event | None = None
        """Event that is set when the subscribe has been processed; the socket handles no other message before.

        None for most operations. A face creates the event if the request has many keys.
        """
        self._socket = socket
        self._head = head("next", id)
        super().__init__()

    def answered(self) -> None:
        """Stop charging for the subscribe message: it is no longer in memory. Idempotent."""
        if self.reading is not None:
            self.reading.set()
        if self._asked_bytes:
            self._socket.begun(-self._asked_bytes)
            self._asked_bytes = 0

    async def next(self, *parts: bytes | memoryview) -> None:
        """Send a ``next`` message; its payload is the concatenation of the parts, which are not copied."""
        await self._socket.send(self._head, *parts, b"}")

    async def nexts(self, payloads: Sequence[bytes | memoryview]) -> None:
        """Send a ``next`` message for each payload, in as few writes as the socket allows."""
        await self._socket.send_all(self._head, payloads, b"}")

    async def room(self) -> None:
        """Wait until the socket has room, so that a large message is built only when it can be sent."""
        await self._socket.room()

    async def send(self, type: str, payload: object = None) -> None:
        """Send a message with this operation's id."""
        await self._socket.send(whole(type, self.id, payload))

    def interrupt(self) -> None:
        """End the whole socket if a write waits for the client to read."""
        self._socket.interrupt()

    def cancel(self) -> None:
        """Cancel the task and drop the reference to it; its frames refer to this object."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()


class SocketConnection:
    """The server side of one socket; call ``run`` once."""

    def __init__(
        self,
        socket: Socket,
        face: Face,
        settings: HttpSettings,
        on_error: Callable[[str], None] = lambda code: None,
    ) -> None:
        """Bind a face to a socket; ``on_error`` receives the code of each error that ends an operation."""
        self._socket = socket
        self._face = face
        self._settings = settings
        self._on_error = on_error
        self._operations: dict[str, SocketOperation] = {}
        self._patience: asyncio.Timeout | None = None
        self._initialised = self._acknowledged = self._stopping = False
        self._reason = ""
        self._close: Close | None = None
        """The close that `end_refused` has decided; None until then."""
        self._refused_at: float | None = None
        """Loop time at which the caller was first refused while no operation was open.

        None if the caller is accepted or an operation is open.
        """
        self.closed_with: int | None = None
        """The code with which the server closed the socket; None if the peer closed it."""
        self.refused = 0
        """Number of subscribes refused because the socket had ``ws_subscriptions`` open."""

    async def run(self) -> None:
        """Serve the socket until one side closes it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    # 1. Handle messages until one side closes. Operations run in the same task group.
                    close = await self._read_until_closed(tasks)
                    # 2. If the server stops, operations may send their last message. The engine has ended
                    #    their subscriptions, so the operations end by themselves.
                    if close is not None and close.code is CloseCode.GOING_AWAY:
                        await self._wait_for_operations()
                finally:
                    # 3. Any other close cancels the operations at once. The group waits for them, so that
                    #    nothing is written after the close frame.
                    for operation in self._operations.values():
                        operation.cancel()
            # 4. The close frame comes last. If the peer closed first, none is sent.
            if close is not None:
                self.closed_with = close.code
                await self._socket.close(close.code, close.reason)
        except ReaderGone:
            return

    def end_for_age(self) -> None:
        """End all subscriptions with their resume cursors, then close: the connection has reached its age.

        Queries may finish first.
        """
        for operation in tuple(self._operations.values()):
            operation.end_for_age()
        self.stop(REASON)

    def stop(self, reason: str = "the server is stopping") -> None:
        """Stop reading messages; close when all operations have ended. The engine ends the operations."""
        if not self._stopping:
            self._stopping = True
            self._reason = reason
            self._read_no_more()

    def end_refused(self, error: TailraceError) -> None:
        """Close the socket if its caller has been refused, and no operation open, for ``ws_init_timeout_s``.

        Called repeatedly while the caller is not accepted, for example after its token has expired. The engine
        ends the subscriptions first, each with its resume cursor. Then the client has ``ws_init_timeout_s`` to
        send a newer token.
        """
        now = asyncio.get_running_loop().time()
        # Open operations are not cut here: the engine ends them with a resume cursor. Before `connection_ack`
        # the init timeout applies.
        if self._operations or not self._acknowledged:
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = now
        elif now - self._refused_at >= self._settings.ws_init_timeout_s and self._close is None:
            self._close = refused(error)
            self._read_no_more()

    def _read_no_more(self) -> None:
        # An expired timeout ends the wait for the next message. `_read_until_closed` then finds the reason in
        # `_close` or `_stopping`.
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def _read_until_closed(self, tasks: asyncio.TaskGroup) -> Close | None:
        """Handle messages until one side closes; return the server's close, None if the peer closed."""
        try:
            async with asyncio.timeout(self._settings.ws_init_timeout_s) as self._patience:
                # `stop` may have been called before this timeout existed.
                if self._stopping:
                    self._patience.reschedule(asyncio.get_running_loop().time())
                while (text := await self._socket.receive()) is not None:
                    # Wait before parsing: a parsed message takes several times the memory of its text.
                    if (size := len(text)) > _SMALL_BYTES:
                        await self._socket.turn()
                    message = parse(text)
                    del text
                    await self._take(message, size, tasks)
                    del message
        except TimeoutError:
            if self._close is not None:
                return self._close
            if self._stopping:
                return Close(CloseCode.GOING_AWAY, self._reason)
            seconds = self._settings.ws_init_timeout_s
            return Close(CloseCode.INIT_TIMEOUT, f"no connection_init within {seconds:g} s")
        except Close as close:
            return close
        except ReaderGone:
            return None
        except Exception as error:
            logged(error, _log)
            return Close(CloseCode.INTERNAL, "internal error")
        finally:
            # `stop` may still be called while operations end, and a timeout must not be rescheduled after its
            # block has ended.
            self._patience = None
        return None

    async def _take(self, message: ClientMessage, size: int, tasks: asyncio.TaskGroup) -> None:
        match message.type:
            case "connection_init":
                await self._init(message.payload)
            case "ping":
                await self._ping(message)
            case "pong":
                _echoed(message)
            case "token" if self._face.takes_tokens:
                await self._renew(message.payload)
            case "subscribe":
                await self._subscribe(message, size, tasks)
            case "complete":
                self._cancel(_identified(message))
            case type if type in self._face.extra:
                await self._extra(_identified(message))
            case type:
                raise malformed(f"unknown type {type[:40]!r}")

    async def _init(self, payload: object) -> None:
        if self._initialised:
            raise Close(CloseCode.SECOND_INIT, "too many initialisation requests")
        if not isinstance(payload, dict | None):
            raise malformed("connection_init: payload must be an object")
        self._initialised = True
        assert self._patience is not None
        # The init timeout has done its work. If `stop` has already made it expire, it must stay so.
        if not self._stopping:
            self._patience.reschedule(None)
        await admit_at_init(self._face.entrance, payload)
        self._socket.initialised()
        await self._socket.send(whole("connection_ack"))
        self._acknowledged = True

    async def _ping(self, message: ClientMessage) -> None:
        """Answer a ping with its payload, without the token; a token renews the socket's identity."""
        payload = _echoed(message)
        if isinstance(payload, dict) and "token" in payload:
            await self._renew(payload)
            payload = {name: value for name, value in payload.items() if name != "token"}
        await self._socket.send(whole("pong", None, payload))

    async def _renew(self, payload: object) -> None:
        if not self._acknowledged:
            raise Close(CloseCode.UNAUTHORIZED, "unauthorized: connection_init comes first")
        await renew(self._face.entrance, payload)
        self._refused_at = None

    async def _subscribe(self, message: ClientMessage, size: int, tasks: asyncio.TaskGroup) -> None:
        _identified(message)
        if not self._acknowledged:
            raise Close(CloseCode.UNAUTHORIZED, "unauthorized: connection_init comes first")
        if not isinstance(message.payload, dict):
            raise malformed("subscribe: payload must be an object")
        # A larger message has waited for its turn before it was parsed.
        if size <= _SMALL_BYTES:
            await self._socket.turn()
        if message.id in self._operations:
            raise Close(CloseCode.DUPLICATE_ID, f"subscriber for {message.id[:60]} already exists")
        limit = self._settings.ws_subscriptions
        if len(self._operations) >= limit:
            self.refused += 1
            error = InvalidRequest(
                f"this socket already has {limit} open subscriptions, the limit (ws_subscriptions); "
                "complete one, or open another socket"
            )
            await self._refuse(SocketOperation(message.id, self._socket), error)
            return
        operation = SocketOperation(message.id, self._socket, size)
        # `begin` runs before the next message is read: a `request` that directly follows this subscribe must
        # find the operation's state. The task is created afterwards, so a refused payload never has a task.
        try:
            self._face.begin(operation, message.payload)
        except Close:
            raise
        except Exception as error:
            operation.answered()
            await self._refuse(operation, logged(error, _log))
            return
        self._operations[message.id] = operation
        operation.task = tasks.create_task(
            self._operate(operation), name=f"operation {message.id[:40]}"
        )
        if operation.reading is not None:
            await operation.reading.wait()

    async def _operate(self, operation: SocketOperation) -> None:
        """Run one operation, then send ``complete`` or ``error``; raises nothing."""
        ended: TailraceError | None = None
        try:
            try:
                await self._face.run(operation)
            except ReaderGone:
                return
            except Exception as error:
                # The error's frames hold the request, perhaps 100,000 keys, and sending may have to wait for
                # the reader.
                ended = logged(error, _log)
                forget_frames(ended)
            if ended is None:
                await operation.send("complete")
            else:
                await self._refuse(operation, ended)
        except ReaderGone:
            return
        finally:
            operation.answered()
            # After `complete` the client may reuse the id at once, so remove only this operation's entry.
            if self._operations.get(operation.id) is operation:
                del self._operations[operation.id]
            operation.task = None

    def _cancel(self, message: ClientMessage) -> None:
        """Cancel an operation and send nothing; ignore an unknown id, whose operation may have ended."""
        operation = self._operations.pop(message.id, None)
        if operation is not None:
            operation.cancel()

    async def _extra(self, message: ClientMessage) -> None:
        operation = self._operations.get(message.id)
        if operation is None:
            return
        try:
            self._face.extra[message.type](operation, message.payload)
        except TailraceError as error:
            self._cancel(message)
            await self._refuse(operation, error)

    async def _refuse(self, operation: SocketOperation, error: TailraceError) -> None:
        """Send and count the error that ends an operation."""
        self._on_error(error.code)
        await operation.send("error", self._face.error_payload(error))

    async def _wait_for_operations(self) -> None:
        tasks = [each.task for each in self._operations.values() if each.task is not None]
        if tasks:
            await asyncio.wait(tasks)


def _identified(message: ClientMessage) -> ClientMessage:
    if not message.id:
        raise malformed(
            f"{message.type}: id must be a text of 1 to {messages.ID_CHARACTERS_MAX} characters"
        )
    return message


def _echoed(message: ClientMessage) -> object:
    if not isinstance(message.payload, dict | None):
        raise malformed(f"{message.type}: payload must be an object")
    return message.payload


_CLOSE_REASON_BYTES: Final = 123


def close_reason(text: str) -> str:
    """Return a reason cut to the 123 bytes that a close frame can hold."""
    data = text.encode()
    return data[:_CLOSE_REASON_BYTES].decode(errors="ignore")
