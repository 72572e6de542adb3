"""Named subscriptions: their description, the client's calls for them, and their acknowledgements.

Acknowledgements are sent at most once a second, or at once if the caller waits for one::

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
    """Function that sends the epoch of a reader and a cursor, and returns when the cursor is durable."""


PLACE_WORDS: Final = ("earliest", "latest")
"""Places that have a name. All other places are positions (`position_in`), or times with a time zone."""


class SubscriptionHealth(IntEnum):
    """The state of a named subscription's hold on the log."""

    HELD = 1
    """The subscription is within its cap: the log that it needs is retained."""
    NOT_HELD = 2
    """The subscription has no hold, or needs more than its cap: the next trim may remove what it needs."""
    BROKEN = 3
    """A trim has broken the hold: the log still has what the subscription needs, but no longer retains it."""
    LOST = 4
    """The log no longer has what the subscription needs: its reader gets ``PositionCompacted``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSubscription:
    """The description of a named subscription at the time of the answer."""

    catalog: str
    name: str
    criteria: tuple[Criteria, ...]
    """Criteria in canonical form; empty: every record at entity level."""
    cursor: Cursor
    """Cursor up to which everything is acknowledged."""
    needed: Position
    """Position of the first record that is not acknowledged; after the newest record if all are."""
    epoch: int
    """Epoch of the newest reader; 0: no reader has come yet."""
    reader: str
    """Description of the newest reader, for people."""
    hold_s: float
    """Maximum age of changes that are retained for the subscription, in seconds; 0: nothing is retained."""
    hold_bytes: int
    """Maximum size of the log that is retained for the subscription, in bytes; 0: nothing is retained."""
    age_s: float
    """Time since the commit of the first record that is not acknowledged, in seconds."""
    behind_bytes: int
    """Size of the log from the first record that is not acknowledged, in bytes."""
    health: SubscriptionHealth
    paused: bool
    """True if the subscription accepts no readers."""
    owner: str
    """The caller that created the subscription; empty if it was created by a command in the log's folder, or on
    a server without identities."""
    created: TimestampMicros
    moved: TimestampMicros
    """Time at which the cursor moved last."""


class SubscriptionCalls:
    """The client's calls for named subscriptions; the client class provides ``_call``."""

    @abstractmethod
    async def _call(self, method: str, request: bytes) -> bytes:
        """Make a call with one request and one answer."""

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
        """Create a named subscription. The server stores its cursor in the log until it is deleted.

        Args:
            catalog: Name of the catalog.
            name: Name of the subscription: up to 64 letters, digits, underscores, dots and hyphens.
            criteria: Criteria of the captures to deliver; they cannot be changed. None = every record at entity
                level.
            since: First position to deliver, inclusive; a number is a version. ``"earliest"`` is the oldest
                position, ``"latest"`` the one after the newest, and an aware datetime the first commit at or
                after it.
            hold_s: Maximum age of changes that are retained for the subscription, in seconds; 0: nothing is
                retained. None = a day, or the server's maximum.
            hold_bytes: Maximum size of the log that is retained for the subscription, in bytes; 0: nothing is
                retained. None = 10 GiB, or the server's maximum.

        Raises:
            SubscriptionExists: The catalog has a subscription of that name.
            InvalidRequest: An argument is invalid, or a hold exceeds the server's maximum.
            NotPermitted: The caller has no grant for named subscriptions, or for the criteria.
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
        """Return the named subscriptions of a catalog that the caller may use, sorted by name.

        Raises:
            NotPermitted: The caller has no grant for named subscriptions.
            CatalogUnknown: The catalog does not exist.
            TransportError: The server cannot be reached.
        """
        with sendable("list_subscriptions"):
            request = messages.ListSubscriptionsRequest(catalog=catalog)
        return await self._listed(request)

    async def get_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Return one named subscription.

        Raises:
            SubscriptionUnknown: There is no subscription of that name that the caller may use.
        """
        with sendable("get_subscription"):
            request = messages.ListSubscriptionsRequest(catalog=catalog, name=name)
        return (await self._listed(request))[0]

    async def reset_subscription(
        self, catalog: str, name: str, to: Place | datetime | str
    ) -> NamedSubscription:
        """Move the cursor of a named subscription; its current reader ends with ``SubscriptionTakenOver``.

        Args:
            catalog: Name of the catalog.
            name: Name of the subscription.
            to: The new place, in the form of ``since`` of ``create_subscription``.

        Raises:
            PositionCompacted: The place is no longer retained.
            SubscriptionUnknown: There is no subscription of that name that the caller may use.
            InvalidRequest: ``to`` is not a place.
        """
        with sendable("reset_subscription"):
            request = messages.ResetSubscriptionRequest(catalog=catalog, name=name, to=_place(to))
        return await self._asked("ResetSubscription", request)

    async def pause_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Pause a named subscription: its reader ends, and no other is accepted. Cursor and hold remain.

        Raises:
            SubscriptionUnknown: There is no subscription of that name that the caller may use.
        """
        return await self._paused("pause_subscription", catalog, name, paused=True)

    async def resume_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Resume a paused named subscription: it accepts readers again.

        Raises:
            SubscriptionUnknown: There is no subscription of that name that the caller may use.
        """
        return await self._paused("resume_subscription", catalog, name, paused=False)

    async def delete_subscription(self, catalog: str, name: str) -> None:
        """Delete a named subscription: its reader ends, and the log is no longer retained for it.

        Raises:
            SubscriptionUnknown: There is no subscription of that name that the caller may use.
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
    """Return a place as text: ``earliest``, ``latest``, a version, version and index, or a time."""
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
"""Interval at which acknowledgements are sent if no caller waits for them, in seconds."""


class Acknowledger:
    """Sender of the acknowledgements of one named subscription.

    Only the furthest cursor is sent: it acknowledges all before it.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Store the parameters; nothing is sent yet.

        Args:
            name: Name of the subscription.
            send: Function that makes a cursor durable on the server.
            spawn: Function that starts a task which the client owns.
        """
        self.name = name
        self.epoch = 0
        """Epoch of the newest connection; 0 before the first."""
        self._send = send
        self._spawn = spawn
        self._noted: Cursor | None = None
        """Furthest cursor to acknowledge; None: there is none yet."""
        self._durable: Cursor | None = None
        """Furthest cursor that the server has confirmed; None: unknown."""
        self._task: asyncio.Task[None] | None = None
        """Task that sends the noted cursor; None before the first one is noted."""
        self._lock = asyncio.Lock()
        self._fail: Callable[[TailraceError], None] = lambda error: None

    def begin(self, fail: Callable[[TailraceError], None]) -> None:
        """Register a callback for errors that a retry does not help."""
        self._fail = fail

    def note(self, cursor: Cursor) -> None:
        """Schedule a cursor to be sent within a second.

        Raises:
            InvalidRequest: The cursor is before one that was acknowledged already.
        """
        self._move(cursor)
        if self._task is None or self._task.done():
            self._task = self._spawn(self._run())

    async def flush(self, cursor: Cursor | None = None) -> None:
        """Send a cursor, or the noted one, and return when it is durable.

        Raises:
            InvalidRequest: The cursor is before one that was acknowledged already.
            TailraceError: The server refused the cursor, or cannot be reached.
        """
        if cursor is not None:
            self._move(cursor)
        # One call at a time: with two, an older cursor could reach the server after a newer one. The cursor is
        # read under the lock, so that a call that has waited sends the newest, or nothing if that is durable by
        # now.
        async with self._lock:
            noted = self._noted
            if noted is not None and noted != self._durable:
                await self._send_by_newest(noted)
                self._durable = noted

    def stop(self) -> None:
        """Stop the task that sends; ``flush`` still works."""
        if self._task is not None:
            self._task.cancel()

    def _move(self, cursor: Cursor) -> None:
        if self._noted is not None and cursor < self._noted:
            raise InvalidRequest(
                f"acknowledge {cursor}: a later cursor, {self._noted}, is already acknowledged"
            )
        self._noted = cursor

    async def _send_by_newest(self, cursor: Cursor) -> None:
        """Send a cursor with the epoch of the newest connection, which may change during the call."""
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
        """Send the noted cursor until it is durable; report errors to ``_fail`` and never raise."""
        # Sleep before sending: acknowledgements of the next second are combined. A cursor that is noted during
        # the call makes the loop run again, so `note` need not start another task.
        while self._noted != self._durable:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.flush()
            except TailraceError as error:
                # A retriable error is not reported: the next turn sends the cursor, or a later one, again.
                if not error.retriable:
                    self._fail(error)
                    return
