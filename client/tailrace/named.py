"""Named subscriptions: their description, the calls of a client for them, and their acknowledgements.

An acknowledgement is sent at most once a second, or at once if the caller waits for it::

    acknowledge ─▶ noted ─▶ sent a second after the last one ─▶ durable in the log
                     │
                     └────▶ sent at once: durable=True, or the subscription is left
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from tailrace import wire
from tailrace.arguments import Place, Wanted, milliseconds, sendable, several
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, SubscriptionTakenOver, TailraceError
from tailrace.position import Position, TimestampMicros
from tailrace.v1 import named_subscription_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from google.protobuf.message import Message

    from tailrace.criteria import Criteria

    Send = Callable[[int, Cursor], Awaitable[None]]
    """Makes a cursor of a reader's epoch durable."""


PLACE_WORDS: Final = ("earliest", "latest")
"""The places that have a name. Others are positions (`position_in`), or times with a zone."""


class SubscriptionHealth(IntEnum):
    """The state of a named subscription's hold on the log."""

    HELD = 1
    """The log that it needs is retained: it is within its cap."""
    NOT_HELD = 2
    """It may hold nothing, or more than its cap is needed: the next trim may take it."""
    BROKEN = 3
    """A trim has broken its hold: what it needs is there still, but no longer kept."""
    LOST = 4
    """The log no longer has what it needs: its reader gets ``PositionCompacted``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSubscription:
    """One named subscription, now."""

    catalog: str
    name: str
    criteria: tuple[Criteria, ...]
    """Canonical; empty: every record at entity level."""
    cursor: Cursor
    """Everything up to it is acknowledged."""
    needed: Position
    """First record that is not acknowledged; above the newest, nothing is needed now."""
    epoch: int
    """The epoch of the newest reader; 0: none has come yet."""
    reader: str
    """The newest reader, for people to read."""
    hold_s: float
    """How old a change may be that is kept for it, seconds; 0: nothing is held."""
    hold_bytes: int
    """How large the log may be that is kept for it; 0: nothing is held."""
    age_s: float
    """How long ago the first record that it needs was committed, seconds."""
    behind_bytes: int
    """Bytes of the log from there on."""
    health: SubscriptionHealth
    paused: bool
    """True if it takes no readers."""
    owner: str
    """The caller that created it; empty: a command at the log's folder, or a server without identities."""
    created: TimestampMicros
    moved: TimestampMicros
    """When its cursor moved last."""


class SubscriptionCalls:
    """A client's calls; the client says how a call is made."""

    @abstractmethod
    async def _call(self, method: str, request: bytes) -> bytes:
        """Make a call of one request and one answer."""

    async def create_subscription(
        self,
        catalog: str,
        name: str,
        criteria: Wanted = (),
        *,
        since: Place | datetime | str = "latest",
        hold_s: float | None = None,
        hold_bytes: int | None = None,
    ) -> NamedSubscription:
        """Create a named subscription, which keeps its place with the log until it is deleted.

        Args:
            catalog: Name of the catalog.
            name: Up to 64 letters, digits, underscores, dots and hyphens.
            criteria: What it wants, for its life; none = every record at entity level.
            since: First position wanted, inclusive; a number is a version. Or ``"earliest"``, the oldest one,
                ``"latest"``, behind the newest one, or an aware datetime: the first commit at or after it.
            hold_s: How old a change may be that retention keeps for it; 0: it keeps nothing. None = a day, or
                the server's largest hold.
            hold_bytes: How large the log may be that retention keeps for it; 0: it keeps nothing. None =
                10 GiB, or the server's largest.

        Raises:
            SubscriptionExists: The name is taken.
            InvalidRequest: What has no meaning, or a hold above the server's largest.
            NotPermitted: Named subscriptions are not granted, or the criteria are not.
            TransportError: The server cannot be reached.
        """
        with sendable("create_subscription"):
            request = messages.CreateSubscriptionRequest(
                catalog=catalog,
                name=name,
                criteria=wire.criteria_messages(several(criteria)),
                hold_ms=milliseconds(hold_s, "hold_s"),
                hold_bytes=hold_bytes,
                **{"from": _place(since)},
            )
        return await self._asked("CreateSubscription", request)

    async def list_subscriptions(self, catalog: str) -> tuple[NamedSubscription, ...]:
        """Return the named subscriptions of a catalog that the caller may use, by name.

        Raises:
            NotPermitted: Named subscriptions are not granted.
            CatalogUnknown, TransportError: As ``list_catalogs``.
        """
        with sendable("list_subscriptions"):
            request = messages.ListSubscriptionsRequest(catalog=catalog)
        return await self._listed(request)

    async def get_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Return one named subscription.

        Raises:
            SubscriptionUnknown: There is none of that name that the caller may use.
        """
        with sendable("get_subscription"):
            request = messages.ListSubscriptionsRequest(catalog=catalog, name=name)
        return (await self._listed(request))[0]

    async def reset_subscription(
        self, catalog: str, name: str, to: Place | datetime | str
    ) -> NamedSubscription:
        """Move a named subscription to another place, given as ``since`` of ``create_subscription``.

        A reader that it has ends with ``SubscriptionTakenOver``.

        Raises:
            PositionCompacted: The place is no longer retained.
            SubscriptionUnknown, InvalidRequest: As above.
        """
        with sendable("reset_subscription"):
            request = messages.ResetSubscriptionRequest(catalog=catalog, name=name, to=_place(to))
        return await self._asked("ResetSubscription", request)

    async def pause_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Let a named subscription take no readers; one that it has ends. Its place and its hold stay.

        Raises:
            SubscriptionUnknown: There is none of that name that the caller may use.
        """
        return await self._paused("pause_subscription", catalog, name, paused=True)

    async def resume_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Let a named subscription take readers again.

        Raises:
            SubscriptionUnknown: There is none of that name that the caller may use.
        """
        return await self._paused("resume_subscription", catalog, name, paused=False)

    async def delete_subscription(self, catalog: str, name: str) -> None:
        """Delete a named subscription; a reader that it has ends, and what it held may go.

        Raises:
            SubscriptionUnknown: There is none of that name that the caller may use.
        """
        with sendable("delete_subscription"):
            request = messages.DeleteSubscriptionRequest(catalog=catalog, name=name)
        await self._call("DeleteSubscription", request.SerializeToString())

    async def _acknowledge(self, catalog: str, name: str, epoch: int, cursor: Cursor) -> None:
        request = messages.AcknowledgeRequest(
            catalog=catalog, name=name, epoch=epoch, cursor=str(cursor)
        )
        await self._call("Acknowledge", request.SerializeToString())

    async def _paused(
        self, what: str, catalog: str, name: str, *, paused: bool
    ) -> NamedSubscription:
        with sendable(what):
            request = messages.PauseSubscriptionRequest(catalog=catalog, name=name, paused=paused)
        return await self._asked("PauseSubscription", request)

    async def _listed(
        self, request: messages.ListSubscriptionsRequest
    ) -> tuple[NamedSubscription, ...]:
        data = await self._call("ListSubscriptions", request.SerializeToString())
        found = messages.ListSubscriptionsResponse.FromString(data).subscriptions
        return tuple(map(_named, found))

    async def _asked(self, method: str, request: Message) -> NamedSubscription:
        data = await self._call(method, request.SerializeToString())
        return _named(messages.NamedSubscription.FromString(data))


def _place(place: Place | datetime | str) -> str:
    """Return a place in words: ``earliest``, ``latest``, a version, version and index, or a time."""
    return place.isoformat() if isinstance(place, datetime) else str(place)


def _named(message: messages.NamedSubscription) -> NamedSubscription:
    return NamedSubscription(
        catalog=message.catalog,
        name=message.name,
        criteria=wire.criteria_of(message.criteria),
        cursor=Cursor.parse(message.cursor),
        needed=Position(message.needed.version, message.needed.index),
        epoch=message.epoch,
        reader=message.reader,
        hold_s=message.hold_ms / 1000,
        hold_bytes=message.hold_bytes,
        age_s=message.age_ms / 1000,
        behind_bytes=message.behind_bytes,
        health=SubscriptionHealth(message.health),
        paused=message.paused,
        owner=message.owner,
        created=TimestampMicros(message.created),
        moved=TimestampMicros(message.moved),
    )


_EVERY_S: Final = 1.0
"""The interval at which acknowledgements without a waiter are sent, as a group."""


class Acknowledger:
    """Those of one subscription."""

    def __init__(
        self,
        name: str,
        send: Send,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Send nothing yet; ``spawn`` starts a task that the client owns."""
        self.name = name
        self.epoch = 0
        """The epoch of the newest connection."""
        self._send = send
        self._spawn = spawn
        self._noted: Cursor | None = None
        """The furthest; None: there is none yet."""
        self._durable: Cursor | None = None
        """The furthest that the server has; None: that is not known."""
        self._task: asyncio.Task[None] | None = None
        """Sends what is noted; None while nothing is."""
        self._lock = asyncio.Lock()
        self._fail: Callable[[TailraceError], None] = lambda error: None

    def begin(self, fail: Callable[[TailraceError], None]) -> None:
        """Tell an error that no retry helps to ``fail``."""
        self._fail = fail

    def note(self, cursor: Cursor) -> None:
        """Have a cursor sent within a second.

        Raises:
            InvalidRequest: It lies before one that was noted already.
        """
        self._move(cursor)
        if self._task is None or self._task.done():
            self._task = self._spawn(self._run())

    async def flush(self, cursor: Cursor | None = None) -> None:
        """Send a cursor, or what is noted, and return when it is durable.

        Raises:
            InvalidRequest: It lies before one that was noted already.
            TailraceError: It was refused, or the server cannot be reached.
        """
        if cursor is not None:
            self._move(cursor)
        async with self._lock:
            noted = self._noted
            if noted is not None and noted != self._durable:
                await self._send_by_newest(noted)
                self._durable = noted

    def stop(self) -> None:
        """Send nothing more by itself."""
        if self._task is not None:
            self._task.cancel()

    def _move(self, cursor: Cursor) -> None:
        if self._noted is not None and cursor < self._noted:
            raise InvalidRequest(
                f"acknowledge {cursor}: {self._noted} was acknowledged already, which lies behind it"
            )
        self._noted = cursor

    async def _send_by_newest(self, cursor: Cursor) -> None:
        """Send with the epoch of the newest connection, which may be made while this is on its way."""
        epoch = self.epoch
        try:
            await self._send(epoch, cursor)
        except SubscriptionTakenOver:
            # A reconnect of this very subscription may have taken the name with a new epoch, whose
            # acknowledgement is still on its way. Wait for it once, and send again with that epoch.
            if self.epoch == epoch:
                await asyncio.sleep(_EVERY_S)
            if self.epoch == epoch:
                raise
            await self._send(self.epoch, cursor)

    async def _run(self) -> None:
        """Send what is noted until it is durable; never raises."""
        while self._noted != self._durable:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.flush()
            except TailraceError as error:
                if not error.retriable:
                    self._fail(error)
                    return
