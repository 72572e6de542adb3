r"""Many operations on one event stream: graphql-sse in its single connection mode.

::

    PUT                                          201, a token; 10 s to come with it
    GET     token, Accept: text/event-stream     the stream; 409 while there is one
    POST    token, {"query": …, "extensions": {"operationId": "1"}}     202; its results are on the stream
    DELETE  token, ?operationId=1                200; the operation ends without a word

    event: next\ndata: {"id":"1","payload":{"data":{…}}}\n\n
    event: complete\ndata: {"id":"1"}\n\n

A reservation ends with its stream. Operations that are requested before the stream is opened begin with it.
Until then they are charged to the inbound budget, as all waiting messages are. Of reservations that are not
used
the oldest makes room: whoever has just made one comes at once.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException

from tailrace.errors import InvalidRequest
from tailrace_server.access.identity import is_same
from tailrace_server.api.byte_budget import INBOUND
from tailrace_server.api.connection_age import EndsWithAge
from tailrace_server.api.errors import logged
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.graphql.transports.operations import Operations
from tailrace_server.api.http.event_stream_answers import HEADERS
from tailrace_server.api.rest.streaming import StreamedAnswer
from tailrace_server.api.send_guard import ReaderGone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.graphql.catalog import Asked, GraphqlCatalog
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.grants.principal import Peer, Principal

_log = structlog.get_logger("tailrace.graphql")

_SMALL_BYTES: Final = 4096
"""A request up to this is not charged while the stream is open."""
_COMMENT: Final = b":\n\n"


class StreamOperation(EndsWithAge):
    """One operation of a stream."""

    def __init__(self, id: str, stream: ReservedStream, asked: Asked, nbytes: int) -> None:
        """Bind to a stream under the client's id; ``nbytes`` is what its request holds."""
        self.id = id
        self.state: Any = asked
        self.nbytes = nbytes
        """Charged until it is answered."""
        self.task: asyncio.Task[None] | None = None
        super().__init__()
        self._stream = stream
        self._id = msgspec.json.encode(id)
        self._head = b'event: next\ndata: {"id":%b,"payload":' % self._id

    async def next(self, *parts: bytes | memoryview) -> None:
        """Send ``next`` with the payload that the parts make, joined; each is sent as it is."""
        await self._stream.send(self._head, *parts, b"}\n\n")

    async def nexts(self, payloads: Sequence[bytes | memoryview]) -> None:
        """Send a ``next`` for each payload, all of them in one write."""
        if len(payloads) == 1:
            await self.next(payloads[0])  # uncopied: it may be large
            return
        events = (b"}\n\n" + self._head).join(payloads)
        await self._stream.send(b"%b%b}\n\n" % (self._head, events))

    async def room(self) -> None:
        """Wait until an event could be written."""
        await self._stream.room()

    async def complete(self) -> None:
        """Send that nothing follows."""
        await self._stream.send(b'event: complete\ndata: {"id":%b}\n\n' % self._id)

    def answered(self) -> None:
        """Note that nothing of its request is kept any more. Idempotent."""
        if self.nbytes:
            self.nbytes = 0
            self._stream.charge()

    def interrupt(self) -> None:
        """End the whole stream if it is busy with an event that is not read."""
        self._stream.interrupt()

    def cancel(self) -> None:
        """Cancel its task, and forget it: a task that ended so keeps its frames, and they this object."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()


class ReservedStream:
    """A reservation, and the event stream that fulfils it; as an answer it is called once."""

    def __init__(
        self,
        catalog: GraphqlCatalog,
        sockets: Sockets,
        peer: Peer,
        entrance: Entrance,
        on_end: Callable[[], None],
    ) -> None:
        """Reserve for a peer; ``on_end`` is called when the reservation ends, used or not."""
        self.catalog = catalog
        self.entrance = entrance
        self.opened = False
        self.refused = 0
        """Operations above the limit of one stream."""
        self._sockets = sockets
        self._runs = Operations(catalog, sockets.answers, peer, entrance, as_events=True)
        self._on_end = on_end
        self._operations: dict[str, StreamOperation] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._answer: StreamedAnswer | None = None
        self._stopping = self._gone = False
        # One event is handed over at a time, and whoever does so waits until it is written. If it is cancelled
        # meanwhile the event is written all the same: half of one would spoil the rest.
        self._parts: tuple[bytes | memoryview, ...] = ()
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._turn = asyncio.Lock()

    # ---- what requests do

    def open(self) -> None:
        """Take the place of its one stream.

        Raises:
            HTTPException: 409, 429: it has one, or there are too many connections.
        """
        if self.opened:
            raise HTTPException(409, "this reservation has its event stream; end that one first")
        if not self._sockets.enter():
            raise HTTPException(429, str(self._sockets.refusal()))
        self.opened = True

    def begin(self, id: str, asked: Asked, nbytes: int) -> None:
        """Begin an operation, or keep it until there is a stream.

        Raises:
            HTTPException: 404, 409, 413: the stream ends; the id is in use; peers have sent too much.
            InvalidRequest: It has as many operations as it may have.
        """
        if self._stopping:
            raise HTTPException(
                404, "the event stream of this reservation ends; make another with PUT"
            )
        if id in self._operations:
            raise HTTPException(409, f"operation {id[:60]!r} is under way on this stream")
        limit = self.catalog.settings.ws_subscriptions
        if len(self._operations) >= limit:
            self.refused += 1
            raise InvalidRequest(
                f"this stream has {limit} operations under way, the limit (ws_subscriptions); end one, or "
                "reserve another stream"
            )
        operation = self._operations[id] = StreamOperation(id, self, asked, nbytes)
        self.charge()
        if self._gone:
            raise HTTPException(413, "peers send more at once than the server has room for")
        if self._tasks is not None:
            self._start(operation, self._tasks)

    def complete(self, id: str) -> None:
        """End an operation without a word; one that is not there has ended by itself."""
        operation = self._operations.pop(id, None)
        if operation is not None:
            operation.cancel()
            operation.answered()

    def charge(self) -> None:
        """Charge what has been asked and is not looked at yet."""
        nbytes = sum(each.nbytes for each in self._operations.values())
        if (self.opened and nbytes <= _SMALL_BYTES) or self._gone:
            nbytes = 0
        self._sockets.inbound.hold(self, nbytes)

    def refuse(self) -> None:
        """End: peers send more at once than there is room for, and this one has held most for the longest."""
        self._sockets.count(INBOUND)
        self.end()

    def end_for_age(self) -> None:
        """End once all subscriptions have sent their resume cursors: the connection has reached its age."""
        for operation in tuple(self._operations.values()):
            operation.end_for_age()
        self.stop()

    def stop(self) -> None:
        """End once all operations have, which is the engine's doing."""
        self._stopping = True
        self._news.set()

    def end(self) -> None:
        """End without waiting for the operations. Idempotent."""
        if self._gone:
            return
        self._gone = True
        self._news.set()
        self._written.set()
        for operation in self._operations.values():
            operation.cancel()
        # One that is cancelled before its first step never removes itself, and would keep this object.
        self._operations.clear()
        self._sockets.inbound.hold(self, 0)
        self._on_end()

    # ---- what operations do

    async def send(self, *parts: bytes | memoryview) -> None:
        """Write one event when there is room, one writer after the other; return once it is written.

        Raises:
            ReaderGone: The stream has ended.
        """
        async with self._turn:
            await self._room()
            self._parts = parts
            self._written.clear()
            self._news.set()
            await self._room()

    async def room(self) -> None:
        """Wait for room as a writer does.

        Raises:
            ReaderGone: The stream has ended.
        """
        async with self._turn:
            await self._room()

    async def _room(self) -> None:
        await self._written.wait()
        if self._gone:
            raise ReaderGone

    def interrupt(self) -> None:
        """End the stream if a write is under way: there is no memory for a reader that does not read."""
        if self._answer is not None:
            self._answer.interrupt()

    # ---- the stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what operations hand over until the reader leaves or the server stops."""
        self._answer = StreamedAnswer(
            self._chunks(), self._sockets, HEADERS, on_age=self.end_for_age
        )
        try:
            with self._sockets.attended(self):
                async with asyncio.TaskGroup() as tasks:
                    self._tasks = tasks
                    for operation in tuple(self._operations.values()):
                        self._start(operation, tasks)
                    pulse = tasks.create_task(self._keep_alive(), name="keep alive")
                    try:
                        await self._answer(scope, receive, send)
                    finally:
                        self._tasks = None
                        pulse.cancel()
                        self.end()
        finally:
            self._answer = None
            self._sockets.leave()

    async def _chunks(self) -> AsyncGenerator[bytes | memoryview, None]:
        yield _COMMENT  # a browser shows that it is open once something has come
        while not self._gone:
            for part in self._parts:
                yield part
            self._parts, part = (), b""  # what was written is kept no longer
            self._news.clear()
            self._written.set()
            if self._stopping and not self._operations:
                return
            await self._news.wait()

    async def _keep_alive(self) -> None:
        """Send a comment now and then, for proxies that cut what is quiet."""
        with suppress(ReaderGone):
            while True:
                await asyncio.sleep(self.catalog.settings.ws_ping_interval_s)
                await self.send(_COMMENT)

    def _start(self, operation: StreamOperation, tasks: asyncio.TaskGroup) -> None:
        name = f"operation {operation.id[:40]}"
        operation.task = tasks.create_task(self._operate(operation), name=name)

    async def _operate(self, operation: StreamOperation) -> None:
        """Run one operation and send how it ended; raises nothing."""
        try:
            try:
                await self._runs.run(operation)
            except ReaderGone:
                return
            except Exception as error:
                await operation.next(self._errors(error))
            await operation.complete()
        except ReaderGone:
            return
        finally:
            # After a DELETE the client may use the id again at once: only our own entry is removed.
            if self._operations.get(operation.id) is operation:
                del self._operations[operation.id]
            operation.answered()
            operation.task = None
            if self._stopping:
                self._news.set()

    def _errors(self, error: Exception) -> bytes:
        """Log and count an error, and return its payload.

        In a function of its own: a frame that an error has passed through may not keep it.
        """
        found = logged(error, _log)
        self._sockets.count_error("http", found.code)
        return msgspec.json.encode({"errors": error_list(found)})


class Reservations:
    """The reservations of a server, by token; a bounded number of them waits for its stream, for a while."""

    def __init__(self, settings: HttpSettings) -> None:
        """Begin with none."""
        self._settings = settings
        self._streams: dict[str, ReservedStream] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        """Those without a stream, oldest first, each with its timer."""

    def __len__(self) -> int:
        """Return how many there are, with those that have their stream."""
        return len(self._streams)

    def reserve(
        self, catalog: GraphqlCatalog, sockets: Sockets, peer: Peer, entrance: Entrance
    ) -> str:
        """Return the token of a new one; where too many wait, the oldest ends."""
        while len(self._waiting) >= self._settings.graphql_reservations:
            self._streams[next(iter(self._waiting))].end()
        token = secrets.token_urlsafe(24)
        stream = ReservedStream(catalog, sockets, peer, entrance, lambda: self._forget(token))
        self._streams[token] = stream
        self._waiting[token] = asyncio.get_running_loop().call_later(
            self._settings.graphql_reservation_s, stream.end
        )
        return token

    def of(self, token: str, catalog: GraphqlCatalog, caller: Principal) -> ReservedStream:
        """Return a reservation of a caller.

        Raises:
            HTTPException: 404: there is none of this token at this catalog, or it is somebody else's.
        """
        found = self._streams.get(token)
        if (
            found is None
            or found.catalog.name != catalog.name
            or not is_same(found.entrance.principal, caller)
        ):
            seconds = self._settings.graphql_reservation_s
            raise HTTPException(
                404,
                "no reservation has this token: its stream has ended, or did not come within "
                f"{seconds:g} s; make another with PUT",
            )
        return found

    def opened(self, token: str) -> None:
        """Note that a reservation has its stream."""
        self._waiting.pop(token).cancel()

    def _forget(self, token: str) -> None:
        self._streams.pop(token, None)
        timer = self._waiting.pop(token, None)
        if timer is not None:
            timer.cancel()
