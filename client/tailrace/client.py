"""The client: one connection, its subscriptions, and the tasks that read them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from tailrace import wire
from tailrace.arguments import (
    Place,
    Time,
    Wanted,
    beginning_of,
    callback,
    content_numbers,
    milliseconds,
    not_both,
    sendable,
    several,
    start_of,
    subscribe_request,
)
from tailrace.criteria import CatchUp, Content, Initial, OverrunPolicy
from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError
from tailrace.link import Link, LinkOptions
from tailrace.named import Acknowledger, SubscriptionCalls
from tailrace.position import Position, TimestampMicros
from tailrace.reactive import Publisher, closed_with_client
from tailrace.retry import Retry, Timeouts
from tailrace.schema import Catalog
from tailrace.sql.calls import SqlCalls
from tailrace.subscription import Subscription
from tailrace.table.table import TableCalls
from tailrace.tls import Tls, load, tls_of
from tailrace.transport.grpc import MAX_MESSAGE_BYTES, GrpcTransport
from tailrace.transport.target import Target
from tailrace.transport.token import Token
from tailrace.typed.schemas import SCHEMA_CHANGES, TypedSubscription, patient
from tailrace.update_subscription import UpdateSubscription
from tailrace.v1.catalog_pb2 import (
    GetSchemaRequest,
    GetSchemaResponse,
    ListCatalogsRequest,
    ListCatalogsResponse,
)
from tailrace.v1.change_capture_pb2 import (
    ENCODING_CDCV2,
    SubscribeSystemRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    import grpc

    from tailrace.checkpoint import CheckpointStore
    from tailrace.cursor import Cursor
    from tailrace.link import Disconnected, Reconnected
    from tailrace.reactive import StreamSubscription
    from tailrace.schema import Schema
    from tailrace.table.table import Table
    from tailrace.tls import Trust
    from tailrace.transport import Stream, Transport
    from tailrace.transport.token import TokenSource
    from tailrace.typed.schemas import Ask
    from tailrace.v1.change_capture_pb2 import SubscribeRequest

DEMAND: Final = 4096
"""Captures that an iterated subscription keeps requested: two to thirteen full messages."""


class Client(SqlCalls, TableCalls, SubscriptionCalls):
    """A connection to one server; made by ``connect``, used under ``async with``.

    It belongs to the event loop that entered it: another one, or another thread, has a client of its own.
    Leaving the context ends every subscription and read that it made with ``SubscriptionClosed``.
    """

    def __init__(
        self,
        open_transport: Callable[[], Transport],
        *,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Keep how to connect; nothing is opened before the context is entered."""
        self._open_transport = open_transport
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or Retry()
        self._transport: Transport | None = None
        self._tasks: asyncio.TaskGroup | None = None
        """Owns the tasks that read; None outside the context."""
        self._streams: set[Subscription | StreamSubscription | Table] = set()

    async def __aenter__(self) -> Self:
        """Make the channel; the first call connects.

        Raises:
            InvalidRequest: The process was forked while a client was open.
        """
        if self._transport is not None:
            raise SubscriptionClosed("a client is entered once; connect again")
        self._note_loop()
        self._transport = self._open_transport()
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all streams, wait until none of their tasks is left, and close the channel.

        Raises:
            InvalidRequest: Another event loop entered it. The connection is dropped, and nothing is waited for.
        """
        transport, tasks = self._require_open(), self._tasks
        assert tasks is not None
        self._open_transport, self._transport, self._tasks = _closed, None, None
        try:
            self._check_loop()
        except InvalidRequest:
            self._shut_elsewhere()
            raise
        # End the streams first: their tasks would otherwise try to reconnect on the closed channel, and the
        # group would wait for them for ever. The channel closes last, when no task uses it.
        for stream in tuple(self._streams):
            stream.shut(closed_with_client())
        try:
            # Not the error of the body: the group would wrap it.
            await tasks.__aexit__(None, None, None)
        finally:
            self._streams.clear()
            await transport.close()

    def _shut_elsewhere(self) -> None:
        """Let the streams end where they run, if anything still runs there."""
        assert self._loop is not None
        for stream in () if self._loop.is_closed() else tuple(self._streams):
            self._loop.call_soon_threadsafe(stream.shut, closed_with_client())
        self._streams.clear()

    def subscribe(
        self,
        catalog: str,
        criteria: Wanted = (),
        *,
        since: Place | None = None,
        after: Cursor | str | None = None,
        from_time: Time | None = None,
        initial: Initial | None = None,
        content: Content = Content.HEADER,
        decoded: bool = False,
        typed: bool = False,
        demand: int = DEMAND,
        heartbeat_interval_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        catch_up: CatchUp = CatchUp.ALL,
        overrun: OverrunPolicy | None = None,
        wait_for: int | None = None,
        wait_s: float = 10.0,
        name: str | None = None,
        checkpoint: CheckpointStore | None = None,
        on_disconnect: Callable[[Disconnected], None] | None = None,
        on_reconnect: Callable[[Reconnected], None] | None = None,
    ) -> Subscription:
        """Return a subscription to a catalog's changes; it begins when its context is entered.

        It survives the server: after a break it resumes by itself, with no gap and no repeat.

        Args:
            catalog: Its name.
            criteria: One criteria or several, OR; none = every record at entity level.
            since: First position wanted, inclusive; a number is a version. 0 = the oldest retained.
            after: Cursor of the last capture received, exclusive.
            from_time: First commit time wanted, inclusive; aware datetime, or µs since the epoch. Beside
                ``after`` whichever comes later.
            initial: ``Initial.STATE`` begins with the rows of the tables, and continues with their changes
                (docs/state.md). Beside ``after`` it continues from there.
            content: Bodies that the captures carry.
            decoded: Whether values in them are decoded by their column's type and encoding (docs/schemas.md).
                They come as the source wrote them otherwise.
            typed: Whether ``Capture.row`` gives Python's values, by the schema of each capture's version. The
                bodies themselves stay as they come.
            demand: Captures requested and not yet taken, at most; topped up at half. 0: nothing comes
                but what ``Subscription.request`` asks for.
            heartbeat_interval_s: None = the server's setting.
            max_message_bytes: A larger capture comes without bodies and with ``omitted_bytes``.
            catch_up: What it gets where it begins behind what is published, as after each break: every capture,
                or the latest of each key.
            overrun: What becomes of it when the server's ring has overtaken it: it is served from the log, gets
                the latest of each key, or ends with ``SubscriptionOverrun``. None = as ``catch_up`` says.
            wait_for: Begin once this version is published: the writer of V begins behind it, or reads it.
            wait_s: For so long at most; then ``DeadlineExceeded``.
            name: The named subscription to read: by its own criteria, behind what was acknowledged
                (``Subscription.acknowledge``). Whoever reads it elsewhere ends with
                ``SubscriptionTakenOver``. Only the starts ``after`` and a checkpoint may be given beside it.
            checkpoint: Where its cursor is kept: a saved one comes before ``since``, ``after`` and
                ``from_time``; ``Subscription.commit`` saves. Without any of them the place where it begins
                is saved as it begins.
            on_disconnect: Called at each break, before the wait.
            on_reconnect: Called when the connection is open again.

        Raises:
            InvalidRequest: ``since`` beside another start, or one that has no meaning.
        """
        typing = None
        not_both(decoded, typed)
        with sendable("subscribe"):
            asked = several(criteria)
            if typed:
                typing = TypedSubscription(catalog, self._patient_asker(catalog), asked)
                asked = (*asked, SCHEMA_CHANGES) if asked else ()
            request = subscribe_request(
                *(catalog, (*asked,), content, heartbeat_interval_s, max_message_bytes),
                decoded=decoded,
                catch_up=catch_up,
                overrun=overrun,
                wait_for=wait_for,
                wait_s=wait_s,
            )
            wire.set_start(request, beginning_of(since, after, from_time, initial))
            acknowledger = None
            if name is not None:
                request.name = name
                acknowledger = self._acknowledger(catalog, name)
        open_link = self._link_opener(request, on_disconnect, on_reconnect)
        return Subscription(
            *(open_link, self._start),
            demand=demand,
            checkpoint=checkpoint,
            typing=typing,
            acknowledger=acknowledger,
        )

    def subscribe_system(
        self,
        *,
        since: Place | None = None,
        after: Cursor | str | None = None,
        from_time: Time | None = None,
        content: Content = Content.BODY,
        demand: int = DEMAND,
        heartbeat_interval_s: float | None = None,
        checkpoint: CheckpointStore | None = None,
        on_disconnect: Callable[[Disconnected], None] | None = None,
        on_reconnect: Callable[[Reconnected], None] | None = None,
    ) -> Subscription:
        """Return a subscription to what happens to catalogs; otherwise as ``subscribe``."""
        with sendable("subscribe_system"):
            request = SubscribeSystemRequest(
                body=content_numbers(content),
                heartbeat_interval_ms=milliseconds(heartbeat_interval_s),
            )
            wire.set_start(request, start_of(since, after, from_time))
        open_link = self._link_opener(request, on_disconnect, on_reconnect)
        return Subscription(open_link, self._start, demand=demand, checkpoint=checkpoint)

    def subscribe_cdcv2(
        self,
        catalog: str,
        criteria: Wanted = (),
        *,
        since: int | None = None,
        heartbeat_interval_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> UpdateSubscription:
        """Return a subscription to finished versions of rows; it begins when its context is entered.

        The transport may repeat and reorder messages: each update comes once, in order of versions, when its
        version is complete. It needs records with both images.

        Args:
            catalog: Its name.
            criteria: By entity type and primary key only; none = all rows.
            since: First version wanted, inclusive; the frontier of an earlier subscription resumes behind it.
                0 = the oldest retained; None = the first that is published from now on.
            heartbeat_interval_s: None = the server's setting. Versions that have nothing for the subscriber
                are finished at this pace.
            max_message_bytes: A row's images may not be larger together.

        Raises:
            InvalidRequest: Something that has no meaning; criteria are refused by the server.
        """
        with sendable("subscribe_cdcv2"):
            request = subscribe_request(
                catalog, criteria, Content.HEADER, heartbeat_interval_s, max_message_bytes
            )
            request.encoding = ENCODING_CDCV2
            wire.set_start(request, start_of(since, None, None))

        def open_stream(data: bytes) -> Stream:
            return self._require().read("Subscribe", data)

        return UpdateSubscription(open_stream, request, retry=self._retry, timeouts=self._timeouts)

    def publisher(
        self,
        catalog: str,
        criteria: Wanted = (),
        *,
        since: Place | None = None,
        after: Cursor | str | None = None,
        from_time: Time | None = None,
        initial: Initial | None = None,
        content: Content = Content.HEADER,
        decoded: bool = False,
        heartbeat_interval_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        catch_up: CatchUp = CatchUp.ALL,
        overrun: OverrunPolicy | None = None,
        wait_for: int | None = None,
        wait_s: float = 10.0,
    ) -> Publisher:
        """Return the same subscription in Reactive Streams form; sends nothing. Arguments as ``subscribe``.

        Raises:
            InvalidRequest: More than one start, or one that has no meaning.
        """
        with sendable("publisher"):
            request = subscribe_request(
                *(catalog, criteria, content, heartbeat_interval_s, max_message_bytes),
                decoded=decoded,
                catch_up=catch_up,
                overrun=overrun,
                wait_for=wait_for,
                wait_s=wait_s,
            )
            wire.set_start(request, beginning_of(since, after, from_time, initial))
        return Publisher(self._link_opener(request), self._start_publishing)

    async def list_catalogs(self) -> tuple[Catalog, ...]:
        """Return the catalogs that the server serves now, by name.

        Raises:
            TransportError: The server cannot be reached.
        """
        response = await self._list_catalogs()
        return tuple(
            Catalog(
                name=each.name,
                uuid=UUID(each.uuid),
                oldest=Position(each.oldest.version, each.oldest.index),
                published=each.published_version,
                committed=each.committed_version,
                newest_timestamp=TimestampMicros(each.newest_timestamp),
            )
            for each in response.catalogs
        )

    async def list_unreadable(self) -> dict[str, str]:
        """Return the catalogs that the server cannot read now, by name, and why; it tries them again.

        Raises:
            TransportError: The server cannot be reached.
        """
        return dict(sorted((await self._list_catalogs()).unreadable.items()))

    async def _list_catalogs(self) -> ListCatalogsResponse:
        data = await self._call("ListCatalogs", ListCatalogsRequest().SerializeToString())
        return ListCatalogsResponse.FromString(data)

    async def get_schema(self, catalog: str, version: int | None = None) -> Schema:
        """Return the entity types and columns of a catalog; ``version`` None = the newest published.

        Raises:
            CatalogUnknown: No such catalog.
            TransportError: The server cannot be reached.
        """
        with sendable("get_schema"):
            request = GetSchemaRequest(catalog=catalog, version=version)
        data = await self._call("GetSchema", request.SerializeToString())
        return wire.schema(GetSchemaResponse.FromString(data))

    def _patient_asker(self, catalog: str) -> Ask:
        return patient(partial(self._schema_span, catalog), self._retry, self._timeouts)

    async def _call(self, method: str, request: bytes) -> bytes:
        return await self._require().call(method, request, self._timeouts.request_s)

    def _acknowledger(self, catalog: str, name: str) -> Acknowledger:
        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            assert self._tasks is not None
            return self._tasks.create_task(work, name="tailrace acknowledgements")

        return Acknowledger(name, partial(self._acknowledge, catalog, name), spawn)

    def _link_opener(
        self,
        request: SubscribeRequest | SubscribeSystemRequest,
        on_disconnect: Callable[[Disconnected], None] | None = None,
        on_reconnect: Callable[[Reconnected], None] | None = None,
    ) -> Callable[[], Link]:
        """Return what makes a link of its own for each stream of a request."""
        options = LinkOptions(
            retry=self._retry,
            timeouts=self._timeouts,
            on_disconnect=callback("on_disconnect", on_disconnect),
            on_reconnect=callback("on_reconnect", on_reconnect),
        )
        return lambda: Link(self._require(), request, options)

    @property
    def _patience_s(self) -> float:
        return self._timeouts.request_s

    def _require(self) -> Transport:
        self._check_loop()
        return self._require_open()

    def _require_open(self) -> Transport:
        if self._transport is None or self._open_transport is _closed:
            raise SubscriptionClosed("the client is used outside its `async with`")
        return self._transport

    def _start(self, stream: Subscription | StreamSubscription | Table) -> asyncio.Task[None]:
        self._require()
        assert self._tasks is not None
        task = self._tasks.create_task(stream.run(), name="tailrace subscription")
        self._streams.add(stream)
        task.add_done_callback(lambda _: self._streams.discard(stream))
        return task

    def _start_publishing(self, stream: StreamSubscription) -> None:
        try:
            self._start(stream)
        except TailraceError as error:
            stream.refuse(error)


def connect(
    target: str,
    *,
    tls: Trust | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    token: TokenSource | None = None,
    timeouts: Timeouts | None = None,
    retry: Retry | None = None,
) -> Client:
    """Return a client of the server at ``host:port``; use it under ``async with``. It reads the files of TLS.

    Args:
        target: Where the server listens: ``host:port``, ``host`` for port 7411, the same after ``grpc://`` or
            ``http://``, or any gRPC name. After ``https://`` or ``grpcs://`` it speaks TLS.
        tls: True speaks TLS and trusts the system's roots, the path of a file the CAs in it; `Tls` has a
            certificate of the client's own as well. None or False speaks plain text, but to ``https://``.
        credentials: gRPC's own, in place of ``tls``.
        token: The credential: a text, or an async function that is called at each connect, so that a
        subscription continues with the next token when one expires. None shows nothing.
        timeouts: How long to wait for answers.
        retry: How patient subscriptions are with a server that is gone.

    Raises:
        InvalidRequest: The target is no address, or one of plain text beside ``tls``, a file cannot be used, or
            the token is none.
    """
    asked = None if tls is None or tls is False else tls_of(tls)
    if asked is not None and credentials is not None:
        raise InvalidRequest("connect: tls and credentials both say how TLS is spoken; give one")
    try:
        found = Target.parse(target, tls=asked is not None or credentials is not None)
        if found.tls and credentials is None:
            asked = asked or Tls()
        loaded = None if asked is None else load(asked)
    except InvalidRequest as error:
        raise InvalidRequest(f"connect: {error}") from None
    open_transport = partial(
        GrpcTransport,
        found,
        tls=loaded,
        reload_tls=None if asked is None else partial(load, asked),
        credentials=credentials,
        token=Token(token),
    )
    return Client(open_transport, timeouts=timeouts, retry=retry)


def _closed() -> Transport:
    raise SubscriptionClosed("the client was closed")
