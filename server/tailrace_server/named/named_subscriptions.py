"""The named subscriptions of an engine: to create, list, move and delete them, and to connect their readers.

A named subscription has at most one reader. Its state is in files of the log's folder, so all servers of a log
agree. This module knows the readers that are connected to this server. It ends a reader when a newer one takes
the name over: at once if the newer one connects to this server, otherwise within a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tailrace.criteria import After, Content
from tailrace.cursor import Cursor
from tailrace.errors import (
    InvalidRequest,
    NotPermitted,
    PositionCompacted,
    SubscriptionExists,
    SubscriptionPaused,
    SubscriptionTakenOver,
    SubscriptionUnknown,
    TailraceError,
)
from tailrace_server.grants.conditions import use_in
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS, Peer, may
from tailrace_server.live.figures import NO_HOLD
from tailrace_server.named.acknowledgements import AcknowledgementLines
from tailrace_server.named.loss_watch import LossWatch
from tailrace_server.named.requests import (
    NamedView,
    may_use,
    names_meant,
    owner_of,
    start_of,
    usable,
)
from tailrace_server.wal.sequences import subscription_changes as changes
from tailrace_server.wal.sequences.subscription_changes import (
    HoldCap,
    criteria_in,
    cursor_at,
    new_subscription,
)
from tailrace_server.wal.sequences.subscriptions import (
    SubscriptionSequences,
    given_name,
)
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tailrace.criteria import Beginning, Criteria
    from tailrace_server.catalogs.catalogs import Catalogs
    from tailrace_server.catalogs.observer import Observer
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.named.loss_watch import WatchedSubscription
    from tailrace_server.named.requests import NamedReader, NewSubscription
    from tailrace_server.resources.admission import Admissions
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument

    Subscribe = Callable[..., Awaitable[Subscription]]

_T = TypeVar("_T")
_LOOK_EVERY_S: Final = 1.0
"""Seconds between two checks for readers whose name was taken over through another server."""
_log = structlog.get_logger("tailrace.named")


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of a named subscription that is connected to this server."""

    subscription: Subscription
    epoch: int


class NamedSubscriptions:
    """The named subscriptions of all catalogs. For the event loop; methods for faces take the caller first."""

    def __init__(
        self,
        root: Path,
        settings: EngineSettings,
        admissions: Admissions,
        catalogs: Catalogs,
        subscribe: Subscribe,
    ) -> None:
        """Begin without readers.

        Args:
            root: The log root.
            settings: The engine's settings.
            admissions: The audit, which records each action.
            catalogs: The observed catalogs.
            subscribe: The method ``Engine.subscribe``.
        """
        self._root = root
        self._settings = settings
        self._admissions = admissions
        self._catalogs = catalogs
        self._watch = LossWatch(root, catalogs.observers)
        self._subscribe = subscribe
        self._readers: dict[tuple[str, str], _Reader] = {}
        """Catalog and name in the log → reader; ended readers are removed by the next check."""
        self._lines = AcknowledgementLines()
        self._creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Catalog → lock that is held while a subscription is created in it."""

    @property
    def readers(self) -> int:
        """The number of readers that are connected to this server."""
        return len(self._readers)

    def watched(self, caller: Principal) -> list[WatchedSubscription]:
        """Return the named subscriptions at their last check, of catalogs whose statistics are granted."""
        return [
            each for each in self._watch.found if may(caller, Action.STATISTICS, each.named.catalog)
        ]

    async def create(
        self, caller: Principal, catalog: str, request: NewSubscription, peer: Peer = IN_PROCESS
    ) -> NamedView:
        """Create a named subscription, which the caller then owns.

        Raises:
            SubscriptionExists: The name is in use.
            InvalidRequest: The name or place is invalid, the hold is too large, or there are too many names.
            PositionCompacted: The place at which it would begin is no longer retained.
            NotPermitted: Named subscriptions, the criteria, or columns of their conditions are not granted.
            EntityTypeUnknown: A condition is on an entity type that no published version has.
        """
        with self._admissions.action(
            caller, peer, catalog, "create_subscription", request.name, ""
        ):
            observer, sequences = await self._enter(caller, catalog)
            await _refuse_ungranted(caller, observer, request.criteria)
            # The caller may use a subscription without owner; one of its own with this name would hide it.
            if await usable(caller, catalog, sequences, request.name):
                raise SubscriptionExists(catalog, request.name)
            document = new_subscription(
                await observer.log.view_with(0),
                request.name,
                request.criteria,
                request.place,
                hold_us=request.hold_us,
                hold_bytes=request.hold_bytes,
                cap=HoldCap(int(self._settings.hold_max_s * 1e6), self._settings.hold_bytes_max),
                owner=owner_of(caller),
                now=_now(),
            )
            # Create one at a time: two concurrent calls could both count a last free name as theirs.
            async with self._creating[catalog]:
                await asyncio.to_thread(
                    sequences.create,
                    document,
                    names_max=self._settings.named_subscriptions,
                    # Without authentication all callers are one principal, so a limit for each is useless.
                    owner_max=None
                    if caller is ANONYMOUS
                    else self._settings.named_subscriptions_of_owner,
                )
        return self._view(caller, document, observer)

    async def list(self, caller: Principal, catalog: str) -> Sequence[NamedView]:
        """Return the named subscriptions that a caller may use, sorted by name.

        Raises:
            NotPermitted: Named subscriptions are not granted.
        """
        observer, sequences = await self._enter(caller, catalog)
        found = await asyncio.to_thread(sequences.all)
        return [
            self._view(caller, each, observer) for each in found if may_use(caller, catalog, each)
        ]

    async def get(self, caller: Principal, catalog: str, name: str) -> NamedView:
        """Return a named subscription.

        Raises:
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
        """
        observer, sequences = await self._enter(caller, catalog)
        return self._view(caller, await self._found(caller, catalog, sequences, name), observer)

    async def reset(
        self, caller: Principal, catalog: str, name: str, place: str, peer: Peer = IN_PROCESS
    ) -> NamedView:
        """Move a named subscription to another place; its reader, if any, is ended.

        Raises:
            InvalidRequest: The text is not a place.
            PositionCompacted: The place is no longer retained.
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
        """
        with self._admissions.action(caller, peer, catalog, "reset_subscription", name, place):
            observer, sequences = await self._enter(caller, catalog)
            found = await self._found(caller, catalog, sequences, name)
            cursor = cursor_at(observer.log.view, place)
            who = f"a reset by {caller.name}"
            document = await self._changed(
                (catalog, found.name),
                sequences,
                lambda found: changes.reset(found, cursor, who, _now()),
            )
        return self._view(caller, document, observer)

    async def pause(
        self, caller: Principal, catalog: str, name: str, peer: Peer = IN_PROCESS, *, paused: bool
    ) -> NamedView:
        """Pause or resume a named subscription. A pause ends its reader and refuses new ones.

        Raises:
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
        """
        action = "pause_subscription" if paused else "resume_subscription"
        with self._admissions.action(caller, peer, catalog, action, name, ""):
            observer, sequences = await self._enter(caller, catalog)
            found = await self._found(caller, catalog, sequences, name)
            who = f"a pause by {caller.name}"
            document = await self._changed(
                (catalog, found.name),
                sequences,
                lambda found: changes.paused(found, who, _now(), pauses=paused),
            )
        return self._view(caller, document, observer)

    async def delete(
        self, caller: Principal, catalog: str, name: str, peer: Peer = IN_PROCESS
    ) -> None:
        """Delete a named subscription: its reader is ended, and a trim may remove the records that it held.

        Raises:
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
        """
        with self._admissions.action(caller, peer, catalog, "delete_subscription", name, ""):
            _, sequences = await self._enter(caller, catalog)
            found = await self._found(caller, catalog, sequences, name)
            await asyncio.to_thread(sequences.delete, found.name, _now())
            if (reader := self._readers.pop((catalog, found.name), None)) is not None:
                reader.subscription.end(SubscriptionUnknown(catalog, name, ()))

    async def acknowledge(
        self, caller: Principal, catalog: str, name: str, epoch: int, cursor: Cursor
    ) -> Cursor:
        """Acknowledge everything up to a cursor, and return the cursor that is durable then.

        The acknowledgement is durable when this returns, even if the server is killed at once. Acknowledgements
        that arrive during a write are written together.

        Raises:
            SubscriptionTakenOver: A newer reader has taken the name over.
            InvalidRequest: The cursor is before one that was already acknowledged, or no reader had the epoch.
            CatalogReplaced, CursorAhead, HistoryReplaced: The cursor belongs to another history.
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
        """
        observer, sequences = await self._enter(caller, catalog)
        refuse_other_history(await observer.log.view_with(cursor.version), cursor)
        # The fast path: most readers are connected to this server, and no file has to be read for them.
        key = self._key_of_reader(caller, catalog, name, epoch)
        if key is None:
            key = (catalog, (await self._found(caller, catalog, sequences, name)).name)

        async def write(furthest: Cursor) -> Cursor:
            document = await _changed(
                key, sequences, lambda found: changes.acknowledged(found, epoch, furthest, _now())
            )
            return Cursor.parse(document.cursor)

        try:
            return await self._lines.write((*key, epoch), cursor, write)
        except (SubscriptionPaused, SubscriptionTakenOver, SubscriptionUnknown) as error:
            self._end(key, epoch, error)
            raise

    def _key_of_reader(
        self, caller: Principal, catalog: str, name: str, epoch: int
    ) -> tuple[str, str] | None:
        """Return the key of the caller's reader on this server, without reading files; None if none is."""
        for key in ((catalog, each) for each in names_meant(caller, name)):
            reader = self._readers.get(key)
            if reader is not None and reader.epoch == epoch and _reads(caller, reader):
                return key
        return None

    async def follow(self) -> None:
        """End readers whose names were taken over through other servers; runs as long as the engine."""
        looked_at: set[str] = set()

        async def look_at(catalog: str) -> None:
            try:
                for key, reader in tuple(self._readers.items()):
                    if key[0] == catalog:
                        await self._look(key, reader)
            except Exception as error:  # usually a fault of the storage; retry
                _log.warning("named subscriptions not read", catalog=catalog, error=str(error))
            finally:
                looked_at.discard(catalog)

        # One task for each catalog: a storage that hangs must not delay the checks of other catalogs.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                for catalog in {catalog for catalog, _ in self._readers} - looked_at:
                    looked_at.add(catalog)
                    tasks.create_task(look_at(catalog))

    async def _look(self, key: tuple[str, str], reader: _Reader) -> None:
        """End a reader if a newer one has taken its name over, or a restored log does not know it.

        A reader that has ended is removed.
        """
        if reader.subscription.error is not None:
            self._forget(key, reader)
            return
        catalog, name = key
        # The catalog may have been replaced, so look at the log that the reader is of.
        uuid = reader.subscription.acknowledgement.catalog_uuid
        sequences = SubscriptionSequences(self._root / catalog, uuid)
        try:
            found = await asyncio.to_thread(sequences.newest, name)
            if found is None or found.deleted:
                raise SubscriptionUnknown(catalog, given_name(name), ())
            changes.refuse_fenced(found, reader.epoch)
            if found.broken:
                reader.subscription.hold = NO_HOLD
        except (
            InvalidRequest,
            SubscriptionUnknown,
            SubscriptionPaused,
            SubscriptionTakenOver,
        ) as error:
            self._end(key, reader.epoch, error)

    async def read(
        self,
        request: NamedReader,
        caller: Principal,
        catalog: str,
        criteria: Sequence[Criteria] = (),
        *,
        start: Beginning | None = None,
        peer: Peer = IN_PROCESS,
        **options: Any,
    ) -> Subscription:
        """Take a named subscription over from its reader, if any, and subscribe after its cursor.

        The options, and errors that are not listed here, are those of ``Engine.subscribe``.

        Raises:
            InvalidRequest: The request has criteria, or a start other than a cursor.
            SubscriptionUnknown: There is no such subscription, or the caller may not use it.
            PositionCompacted: The next record is no longer retained.
        """
        # 1. Check the request before the take-over: an invalid request must not end the current reader.
        if criteria:
            raise InvalidRequest(
                "criteria: a named subscription has its own criteria; leave them out"
            )
        if start is not None and not isinstance(start, After):
            raise InvalidRequest(
                "name: a named subscription begins after its cursor; of the other starts, only after is "
                "allowed"
            )
        with self._admissions.action(caller, peer, catalog, "read_subscription", request.name, ""):
            observer, sequences = await self._enter(caller, catalog)
            found = await self._found(caller, catalog, sequences, request.name)
            await _refuse_ungranted(caller, observer, criteria_in(found.criteria))
            # 2. Take over: from here on the earlier reader is fenced on every server.
            who = f"{caller.name} at {peer.address or peer.transport}"
            key = (catalog, found.name)
            document = await _changed(
                key,
                sequences,
                lambda latest: changes.taken_over(latest, who, _now(), request.epoch),
            )
        epoch = document.epoch
        given = given_name(found.name)
        self._end(key, epoch - 1, SubscriptionTakenOver(given, epoch - 1, epoch, who))
        named = self._view(caller, document, observer)
        # 3. Subscribe after the cursor in the document. The
        #    take-over has fenced all who could have moved it since.
        begins = named.cursor if start is None else start_of(named, start.cursor)
        try:
            subscription = await self._subscribe(
                caller, catalog, named.criteria, start=After(begins), peer=peer, **options
            )
        except PositionCompacted as error:
            raise _lost(named, error) from None
        subscription.acknowledgement = replace(
            subscription.acknowledgement, name=request.name, epoch=epoch
        )
        if not document.broken:
            subscription.hold = (document.hold_us, document.hold_bytes)
        # 4. Another reader may have taken over meanwhile on this server: then end this one. A reader that has
        #    ended does not count, because its epoch may be from a log that an older copy has replaced.
        newer = self._readers.get(key)
        if newer is not None and newer.subscription.error is None and newer.epoch > epoch:
            holder = newer.subscription.options.peer.principal
            subscription.end(SubscriptionTakenOver(request.name, epoch, newer.epoch, holder))
        else:
            self._readers[key] = _Reader(subscription, epoch)
        return subscription

    async def _enter(
        self, caller: Principal, catalog: str
    ) -> tuple[Observer, SubscriptionSequences]:
        observer = await self._catalogs.observer(caller, catalog)
        if not may(caller, Action.NAMED, catalog):
            raise NotPermitted("named subscriptions are not granted for this catalog")
        return observer, SubscriptionSequences(self._root / catalog, observer.log.view.uuid)

    async def _found(
        self, caller: Principal, catalog: str, sequences: SubscriptionSequences, name: str
    ) -> SubscriptionDocument:
        found = await usable(caller, catalog, sequences, name)
        if found is None:
            # The error must not reveal whether the name exists.
            known = [each.name for each in await self.list(caller, catalog)]
            raise SubscriptionUnknown(catalog, name, known)
        return found

    async def _changed(
        self,
        key: tuple[str, str],
        sequences: SubscriptionSequences,
        decide: Callable[[SubscriptionDocument], SubscriptionDocument | None],
    ) -> SubscriptionDocument:
        """Change a named subscription; if the change fences its reader on this server, end the reader."""
        document = await _changed(key, sequences, decide)
        if (reader := self._readers.get(key)) is not None:
            try:
                changes.refuse_fenced(document, reader.epoch)
            except TailraceError as error:
                self._end(key, reader.epoch, error)
        return document

    def _view(
        self, caller: Principal, document: SubscriptionDocument, observer: Observer
    ) -> NamedView:
        return NamedView.of(document, observer.log.view, _now(), owner_of(caller))

    def _end(self, key: tuple[str, str], epoch: int, error: TailraceError) -> None:
        """End the reader of a name on this server, if its epoch is not above ``epoch``."""
        reader = self._readers.get(key)
        if reader is not None and reader.epoch <= epoch:
            reader.subscription.end(error)
            self._forget(key, reader)

    def _forget(self, key: tuple[str, str], reader: _Reader) -> None:
        if self._readers.get(key) is reader:
            del self._readers[key]


def _reads(caller: Principal, reader: _Reader) -> bool:
    return reader.subscription.options.peer.principal == caller.name


async def _changed(
    key: tuple[str, str],
    sequences: SubscriptionSequences,
    decide: Callable[[SubscriptionDocument], SubscriptionDocument | None],
) -> SubscriptionDocument:
    """Change a named subscription in a thread; the error for a deleted one must not list names of others."""
    catalog, name = key
    try:
        return await asyncio.to_thread(sequences.change, name, decide)
    except SubscriptionUnknown:
        raise SubscriptionUnknown(catalog, given_name(name), ()) from None


async def _refuse_ungranted(
    caller: Principal, observer: Observer, criteria: Sequence[Criteria]
) -> None:
    """Raise if criteria are not granted to a caller, or cannot be evaluated."""
    await use_in(observer.log, caller, Action.SUBSCRIBE, criteria, Content.HEADER, None)


def _lost(named: NamedView, error: PositionCompacted) -> PositionCompacted:
    """Return the error with advice for the reader: the state of the tables can still be read."""
    advice = (
        f"subscription {named.name!r} has lost the changes after its cursor. Read the state of its "
        "tables, which a trim retains, then subscribe by the name after the cursor of that state"
    )
    return PositionCompacted(error.wanted, error.oldest, error.newest, advice)


def _now() -> int:
    return time.time_ns() // 1000
