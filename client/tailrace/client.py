"""The client: one connection to a server, its subscriptions, and the tasks that read them."""

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
from tailrace.transport.grpc import MAX_MESSAGE_BYTES, GrpcTransport
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
"""Default demand of an iterated subscription, in captures: two to thirteen full messages."""


class Client(SqlCalls, TableCalls, SubscriptionCalls):
    """A connection to one server; made by ``connect``, used under ``async with``.

    A client belongs to the event loop that entered it. Another event loop or thread needs its own client.
    Leaving the context ends all subscriptions and reads of the client with ``SubscriptionClosed``.
    """

    def __init__(
        self,
        open_transport: Callable[[], Transport],
        *,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Store the parameters of the connection; entering the context opens the channel."""
        self._open_transport = open_transport
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or Retry()
        self._transport: Transport | None = None
        self._tasks: asyncio.TaskGroup | None = None
        """Owner of the tasks that read; None outside the context."""
        self._streams: set[Subscription | StreamSubscription | Table] = set()
        """Streams whose task still runs; each leaves when its task is done."""

    async def __aenter__(self) -> Self:
        """Create the channel; the first call connects it.

        Raises:
            InvalidRequest: The process was forked while a client was open.
            SubscriptionClosed: The client has been entered before.
        """
        if self._transport is not None:
            raise SubscriptionClosed("a client can be entered only once; connect again")
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
        """End all streams, wait for the end of their tasks, and close the channel.

        Raises:
            InvalidRequest: Another event loop entered the client. The connection is dropped without waiting.
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
            # Do not pass the error of the body: the group would wrap it into an exception group.
            await tasks.__aexit__(None, None, None)
        finally:
            self._streams.clear()
            await transport.close()

    def _shut_elsewhere(self) -> None:
        """End the streams on the event loop that owns them, unless that loop is closed."""
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
        """Return a subscription to the changes of a catalog; it begins when its context is entered.

        After a lost connection, a restart of the server included, the subscription resumes by itself, with no
        gap and no repeat. Without a start it begins after the version that is published at that moment.

        Args:
            catalog: Name of the catalog.
            criteria: One criteria, or several that are combined by OR. None = every record at entity level.
            since: First position to deliver, inclusive; a number is a version. 0 = the oldest retained.
            after: Cursor of the last capture received, exclusive.
            from_time: First commit time to deliver, inclusive: an aware datetime, or µs since the epoch.
                Together with ``after``, the later of the two applies.
            initial: ``Initial.STATE`` delivers the rows of the tables first, then their changes
                (docs/state.md). With ``after`` it continues after that cursor, in the state or in the changes.
            content: Bodies that the captures carry.
            decoded: True to decode the values in bodies by the type and encoding of their column
                (docs/schemas.md). False leaves them as the source wrote them.
            typed: True if ``Capture.row`` shall return Python values, by the schema of each capture's version.
                The bodies themselves do not change.
            demand: Maximum number of captures that are requested and not yet taken; topped up when half of them
                are taken. 0: the server sends only what ``Subscription.request`` requests.
            heartbeat_interval_s: Maximum time between messages, in seconds. None = the server's setting.
            max_message_bytes: Maximum size of a capture. A larger one comes without bodies and with
                ``omitted_bytes``.
            catch_up: Captures to deliver of the versions that were published before the subscription began, or
                during a break: all of them, or only the latest of each key.
            overrun: What the server does when its ring drops captures that the subscription has not received:
                deliver them from the log, deliver the latest of each key, or end the subscription with
                ``SubscriptionOverrun``. None = the policy that corresponds to ``catch_up``.
            wait_for: Version to wait for: the subscription begins once it is published. A writer passes the
                version that it has just committed.
            wait_s: Maximum wait for that version, in seconds; after it ``DeadlineExceeded`` is raised.
            name: Name of a named subscription to read. It has its own criteria, and resumes after the captures
                that were acknowledged (``Subscription.acknowledge``). Another reader of the same name ends
                with ``SubscriptionTakenOver``. The only starts that may be combined with it are ``after`` and
                ``checkpoint``.
            checkpoint: Store of the cursor. A saved cursor replaces ``since``, ``after`` and ``from_time``.
                ``Subscription.commit`` saves the cursor. If there is neither a saved cursor nor a start, the
                start that the server chooses is saved at once.
            on_disconnect: Callback for each break, called before the wait for the next attempt.
            on_reconnect: Callback for each time that the connection is open again.

        Raises:
            InvalidRequest: ``since`` is combined with another start, or an argument is invalid.
        """
        typing = None
        not_both(decoded, typed)
        with sendable("subscribe"):
            asked = several(criteria)
            # The typing needs all schema changes; without criteria they come anyway.
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
        """Return a subscription to the events of catalogs, such as their creation and their end.

        The arguments have the same meaning as for ``subscribe``.
        """
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
        """Return a subscription to row updates in CDCv2 form; it begins when its context is entered.

        Messages may be repeated and reordered on the way. Each update is still returned once, in order of
        versions, when its version is complete. All records need both images, ``before`` and ``after``.

        Args:
            catalog: Name of the catalog.
            criteria: Criteria with entity types and primary keys only; none = all rows.
            since: First version to deliver, inclusive; pass the frontier of an earlier subscription to resume
                it. 0 = the oldest retained; None = the first version published from now on.
            heartbeat_interval_s: Maximum time between messages, in seconds; versions without a match are
                reported as finished at this interval. None = the server's setting.
            max_message_bytes: Maximum size of the two images of a row together.

        Raises:
            InvalidRequest: An argument is invalid. The server refuses unsuitable criteria when it is entered.
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
        """Return a Reactive Streams publisher of a catalog's changes; nothing is sent before its ``subscribe``.

        The arguments have the same meaning as for ``subscribe``.

        Raises:
            InvalidRequest: ``since`` is combined with another start, or an argument is invalid.
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
        """Return the catalogs that the server serves now, sorted by name.

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
        """Return the catalogs that the server cannot read now, each with the reason; the server keeps retrying.

        Raises:
            TransportError: The server cannot be reached.
        """
        return dict(sorted((await self._list_catalogs()).unreadable.items()))

    async def _list_catalogs(self) -> ListCatalogsResponse:
        data = await self._call("ListCatalogs", ListCatalogsRequest().SerializeToString())
        return ListCatalogsResponse.FromString(data)

    async def get_schema(self, catalog: str, version: int | None = None) -> Schema:
        """Return the entity types and columns of a catalog as of a version; None = the newest published.

        Raises:
            CatalogUnknown: The catalog does not exist.
            TransportError: The server cannot be reached.
        """
        with sendable("get_schema"):
            request = GetSchemaRequest(catalog=catalog, version=version)
        data = await self._call("GetSchema", request.SerializeToString())
        return wire.schema(GetSchemaResponse.FromString(data))

    def _patient_asker(self, catalog: str) -> Ask:
        return patient(partial(self.schema_span, catalog), self._retry, self._timeouts)

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
        """Return a function that creates a new link for each stream of a request."""
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
    """Return a client of a server; use it under ``async with``. The call reads TLS files, but sends nothing.

    Args:
        target: Address of the server: ``host:port``, or ``host`` for port 7411, with or without ``grpc://`` or
            ``http://`` before it, or any gRPC name. ``https://`` and ``grpcs://`` select TLS.
        tls: True uses TLS and trusts the system's roots. A path uses TLS and trusts the CAs in that file. `Tls`
            has all options, a client certificate included. None or False uses plain text, unless the target
            selects TLS.
        credentials: Channel credentials of gRPC, in place of ``tls``.
        token: Credential of the caller: a text, or an async function that is called at each connect, so that a
            subscription continues with the next token when one expires. None sends no credential.
        timeouts: Maximum times to wait for answers.
        retry: Retry policy of subscriptions whose server is gone.

    Raises:
        InvalidRequest: The target is not an address, its scheme contradicts ``tls``, a file cannot be used, or
            the token is invalid.
    """
    open_transport = GrpcTransport.opener(target, tls, credentials, token)
    return Client(open_transport, timeouts=timeouts, retry=retry)


def _closed() -> Transport:
    raise SubscriptionClosed("the client was closed")
