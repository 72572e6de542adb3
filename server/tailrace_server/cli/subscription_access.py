"""Access to named subscriptions through the log's folder, by the methods of ``tailrace.Client``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tailrace.cursor import Cursor
from tailrace.named import NamedSubscription
from tailrace.position import TimestampMicros

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.criteria import Criteria
    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
    from tailrace_server.wal.state.view import LogView


class InFolder:
    """The named subscriptions in a log root; the methods and their errors are those of ``tailrace.Client``.

    There are no grants and no maximum holds here: a user who may write to the folder may do everything.
    """

    def __init__(self, root: Path) -> None:
        """Store the log root."""
        self._root = root

    def _opened(self, catalog: str) -> tuple[LogView, SubscriptionSequences]:
        """Open a catalog's log.

        Raises:
            LogError: The log cannot be read.
            CatalogUnknown: There is no catalog of that name.
        """
        from tailrace.errors import CatalogUnknown
        from tailrace_server.log_root import check_log_root
        from tailrace_server.wal.catalog import list_catalogs, open_catalog
        from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences

        check_log_root(self._root)
        if catalog not in (known := list_catalogs(self._root)):
            raise CatalogUnknown(catalog, known)
        view = open_catalog(self._root, catalog).view
        return view, SubscriptionSequences(self._root / catalog, view.uuid)

    async def create_subscription(
        self,
        catalog: str,
        name: str,
        criteria: tuple[Criteria, ...],
        *,
        since: str,
        hold_s: float | None,
        hold_bytes: int | None,
    ) -> NamedSubscription:
        """Create a named subscription, and return it."""
        from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription

        view, sequences = self._opened(catalog)
        document = new_subscription(
            view,
            name,
            criteria,
            since,
            hold_us=None if hold_s is None else round(hold_s * 1e6),
            hold_bytes=hold_bytes,
            cap=HoldCap(),
            owner="",
            now=_now(),
        )
        await asyncio.to_thread(sequences.create, document)
        return _subscription(document, view)

    async def list_subscriptions(self, catalog: str) -> tuple[NamedSubscription, ...]:
        """Return all named subscriptions of a catalog."""
        view, sequences = self._opened(catalog)
        found = await asyncio.to_thread(sequences.all)
        return tuple(_subscription(each, view) for each in found)

    async def get_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Return the named subscription with a name."""
        view, sequences = self._opened(catalog)
        return _subscription(await asyncio.to_thread(sequences.get, name), view)

    async def reset_subscription(self, catalog: str, name: str, to: str) -> NamedSubscription:
        """Move a named subscription to another place, and return it."""
        from tailrace_server.wal.sequences.subscription_changes import cursor_at, reset

        opened = self._opened(catalog)
        cursor = cursor_at(opened[0], to)
        return await _changed(
            opened, name, lambda found: reset(found, cursor, "a reset at the log's folder", _now())
        )

    async def pause_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Pause a named subscription, and return it."""
        return await self._paused(catalog, name, pauses=True)

    async def resume_subscription(self, catalog: str, name: str) -> NamedSubscription:
        """Resume a named subscription, and return it."""
        return await self._paused(catalog, name, pauses=False)

    async def _paused(self, catalog: str, name: str, *, pauses: bool) -> NamedSubscription:
        from tailrace_server.wal.sequences.subscription_changes import paused

        who = "a pause at the log's folder"
        opened = self._opened(catalog)
        return await _changed(opened, name, lambda found: paused(found, who, _now(), pauses=pauses))

    async def delete_subscription(self, catalog: str, name: str) -> None:
        """Delete a named subscription."""
        await asyncio.to_thread(self._opened(catalog)[1].delete, name, _now())


async def _changed(
    opened: tuple[LogView, SubscriptionSequences],
    name: str,
    decide: Callable[[SubscriptionDocument], SubscriptionDocument | None],
) -> NamedSubscription:
    view, sequences = opened
    return _subscription(await asyncio.to_thread(sequences.change, name, decide), view)


def _subscription(document: SubscriptionDocument, view: LogView) -> NamedSubscription:
    from tailrace_server.wal.sequences.holds import health_of, hold_of
    from tailrace_server.wal.sequences.subscription_changes import criteria_in

    hold = hold_of(document, view, _now())
    return NamedSubscription(
        catalog=view.name,
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
