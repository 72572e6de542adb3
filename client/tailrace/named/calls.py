"""The calls of a client for named subscriptions."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace import wire
from tailrace.arguments import Place, Wanted, milliseconds, sendable, several
from tailrace.cursor import Cursor
from tailrace.named.values import NamedSubscription, SubscriptionHealth
from tailrace.position import Position, TimestampMicros
from tailrace.v1 import named_subscription_pb2 as messages

if TYPE_CHECKING:
    from google.protobuf.message import Message


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
