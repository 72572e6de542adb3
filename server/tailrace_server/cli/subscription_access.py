"""Access to named subscriptions for commands, through the log's folder or a server, by one interface."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from tailrace.cursor import Cursor
from tailrace.named import NamedSubscription
from tailrace.position import TimestampMicros

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace.client import Client
    from tailrace.criteria import Criteria
    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
    from tailrace_server.wal.state.view import LogView


class SubscriptionsPlace(Protocol):
    """The named subscriptions of one catalog; methods raise the errors of those of ``tailrace.Client``."""

    async def create(
        self,
        name: str,
        criteria: tuple[Criteria, ...],
        place: str,
        hold_s: float | None,
        hold_bytes: int | None,
    ) -> NamedSubscription:
        """Create a named subscription, and return it."""

    async def all(self) -> Sequence[NamedSubscription]:
        """Return all named subscriptions of the catalog."""

    async def get(self, name: str) -> NamedSubscription:
        """Return the named subscription with a name."""

    async def reset(self, name: str, place: str) -> NamedSubscription:
        """Move a named subscription to another place, and return it."""

    async def pause(self, name: str, *, paused: bool) -> NamedSubscription:
        """Pause or resume a named subscription, and return it."""

    async def delete(self, name: str) -> None:
        """Delete a named subscription."""


class AtServer:
    """The named subscriptions of a catalog, through a server."""

    def __init__(self, client: Client, catalog: str) -> None:
        """Store an open client and the catalog's name."""
        self._client = client
        self._catalog = catalog

    async def create(
        self,
        name: str,
        criteria: tuple[Criteria, ...],
        place: str,
        hold_s: float | None,
        hold_bytes: int | None,
    ) -> NamedSubscription:
        """Create a named subscription, and return it."""
        return await self._client.create_subscription(
            self._catalog, name, criteria, since=place, hold_s=hold_s, hold_bytes=hold_bytes
        )

    async def all(self) -> Sequence[NamedSubscription]:
        """Return all named subscriptions of the catalog."""
        return await self._client.list_subscriptions(self._catalog)

    async def get(self, name: str) -> NamedSubscription:
        """Return the named subscription with a name."""
        return await self._client.get_subscription(self._catalog, name)

    async def reset(self, name: str, place: str) -> NamedSubscription:
        """Move a named subscription to another place, and return it."""
        return await self._client.reset_subscription(self._catalog, name, place)

    async def pause(self, name: str, *, paused: bool) -> NamedSubscription:
        """Pause or resume a named subscription, and return it."""
        if paused:
            return await self._client.pause_subscription(self._catalog, name)
        return await self._client.resume_subscription(self._catalog, name)

    async def delete(self, name: str) -> None:
        """Delete a named subscription."""
        await self._client.delete_subscription(self._catalog, name)


class InFolder:
    """The named subscriptions of a catalog, through its folder.

    There are no grants and no maximum holds here: a user who may write to the folder may do everything.
    """

    def __init__(self, root: Path, catalog: str) -> None:
        """Open the catalog's log.

        Raises:
            LogError: The log cannot be read.
            CatalogUnknown: There is no catalog of that name.
        """
        from tailrace.errors import CatalogUnknown
        from tailrace_server.log_root import check_log_root
        from tailrace_server.wal.catalog import list_catalogs, open_catalog
        from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences

        check_log_root(root)
        if catalog not in (known := list_catalogs(root)):
            raise CatalogUnknown(catalog, known)
        self._view: LogView = open_catalog(root, catalog).view
        self._sequences: SubscriptionSequences = SubscriptionSequences(
            root / catalog, self._view.uuid
        )

    async def create(
        self,
        name: str,
        criteria: tuple[Criteria, ...],
        place: str,
        hold_s: float | None,
        hold_bytes: int | None,
    ) -> NamedSubscription:
        """Create a named subscription, and return it."""
        from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription

        document = new_subscription(
            self._view,
            name,
            criteria,
            place,
            hold_us=None if hold_s is None else round(hold_s * 1e6),
            hold_bytes=hold_bytes,
            cap=HoldCap(),
            owner="",
            now=_now(),
        )
        await asyncio.to_thread(self._sequences.create, document)
        return self._told(document)

    async def all(self) -> Sequence[NamedSubscription]:
        """Return all named subscriptions of the catalog."""
        return [self._told(each) for each in await asyncio.to_thread(self._sequences.all)]

    async def get(self, name: str) -> NamedSubscription:
        """Return the named subscription with a name."""
        return self._told(await asyncio.to_thread(self._sequences.get, name))

    async def reset(self, name: str, place: str) -> NamedSubscription:
        """Move a named subscription to another place, and return it."""
        from tailrace_server.wal.sequences.subscription_changes import cursor_at, reset

        cursor = cursor_at(self._view, place)
        return await self._changed(
            name, lambda found: reset(found, cursor, "a reset at the log's folder", _now())
        )

    async def pause(self, name: str, *, paused: bool) -> NamedSubscription:
        """Pause or resume a named subscription, and return it."""
        from tailrace_server.wal.sequences import subscription_changes

        who = "a pause at the log's folder"
        return await self._changed(
            name, lambda found: subscription_changes.paused(found, who, _now(), pauses=paused)
        )

    async def delete(self, name: str) -> None:
        """Delete a named subscription."""
        await asyncio.to_thread(self._sequences.delete, name, _now())

    async def _changed(
        self, name: str, decide: Callable[[SubscriptionDocument], SubscriptionDocument | None]
    ) -> NamedSubscription:
        return self._told(await asyncio.to_thread(self._sequences.change, name, decide))

    def _told(self, document: SubscriptionDocument) -> NamedSubscription:
        from tailrace_server.wal.sequences.holds import health_of, hold_of
        from tailrace_server.wal.sequences.subscription_changes import criteria_in

        hold = hold_of(document, self._view, _now())
        return NamedSubscription(
            catalog=self._view.name,
            name=document.name,
            criteria=criteria_in(document.criteria),
            cursor=Cursor.parse(document.cursor),
            needed=hold.needed,
            epoch=document.epoch,
            reader=document.reader,
            hold_s=document.hold_us / 1e6,
            hold_bytes=document.hold_bytes,
            age_s=hold.age_us / 1e6,
            behind_bytes=hold.bytes,
            health=health_of(hold),
            paused=document.paused,
            owner=document.owner,
            created=TimestampMicros(document.created),
            moved=TimestampMicros(document.moved),
        )


def _now() -> int:
    return time.time_ns() // 1000
