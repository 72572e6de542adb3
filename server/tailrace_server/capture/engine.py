"""The engine: every catalog under a log root, observed, and the one door for everything that faces ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from tailrace.criteria import Content
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    InvalidRequest,
    NotPermitted,
    ServerStopping,
    TailraceError,
    TransportError,
)
from tailrace_server.capture.admission import FREE, Admissions
from tailrace_server.capture.delivery.memory_budget import LargeMessages
from tailrace_server.capture.delivery.memory_governor import MemoryGovernor
from tailrace_server.capture.delivery.operator_end import ended_by_operator
from tailrace_server.capture.delivery.options import delivery_options
from tailrace_server.capture.delivery.peer import IN_PROCESS, Peer
from tailrace_server.capture.delivery.ring import RingBudget
from tailrace_server.capture.disk_usage import DiskMeasurements
from tailrace_server.capture.faults import FaultWatch
from tailrace_server.capture.grant import Action
from tailrace_server.capture.granting import door
from tailrace_server.capture.granting.conditions import use_in
from tailrace_server.capture.granting.schemas import granted_view
from tailrace_server.capture.kept_bytes import CRITERIA_SHARE, PAGES_SHARE, KeptBytes
from tailrace_server.capture.loop_turns import LoopTurns
from tailrace_server.capture.named.named_subscriptions import NamedSubscriptions
from tailrace_server.capture.observed_catalog import ObservedCatalog, catalog_names
from tailrace_server.capture.reading.batch_cache import BatchCache
from tailrace_server.capture.reads.opening import Reads
from tailrace_server.capture.settings import EngineSettings, SubscriptionLimits
from tailrace_server.capture.statistics import Counters, EngineStatistics
from tailrace_server.capture.thread_pools import shut_down
from tailrace_server.wal.catalog import SYSTEM_CATALOG
from tailrace_server.wal.state.tail_pool import TailPool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from tailrace.criteria import Beginning, Criteria
    from tailrace_server.capture.catalog_info import CatalogInfo
    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.delivery.memory_governor import Stallable
    from tailrace_server.capture.delivery.publisher import Publisher
    from tailrace_server.capture.delivery.subscription import Subscription
    from tailrace_server.capture.delivery.version_waits import VersionWait
    from tailrace_server.capture.faults import ServerFault
    from tailrace_server.capture.history import HistoryBounds, HistoryRead
    from tailrace_server.capture.observer import Observer
    from tailrace_server.capture.principal import Principal
    from tailrace_server.capture.reads.state import StateRead
    from tailrace_server.capture.reads.state_asked import StateAsked
    from tailrace_server.wal.state.view import LogView

_DISCOVER_EVERY_S: Final = 0.5
_MEASURE_EVERY_S: Final = 0.1
_MEASUREMENTS: Final = 5
"""So many measurements of the process's memory before it is relieved, which may take long where it is large."""
_FOLDER_THREADS: Final = 16
"""Openings and listings at once, apart from the reader threads: a storage that hangs keeps one of them, and
leaves the others to the other catalogs."""
_LOADS_EACH: Final = 2
"""For each reader thread: one that it has, one that it finds or that waits for the loop."""
_log = structlog.get_logger("tailrace.engine")


class Engine:
    """Serves the catalogs under one log root; an async context manager that owns every task it starts.

    Every method that a face calls takes the caller first, whose grant is evaluated only here.
    """

    def __init__(
        self, root: Path, settings: EngineSettings | None = None, admissions: Admissions = FREE
    ) -> None:
        """Bind to a log root, and to what admits its callers; nothing is read before the context is entered."""
        self._admissions = admissions
        self._root = root
        self.settings = settings or EngineSettings()
        self.counters = Counters()  # of all subscriptions since it began
        self._catalogs: dict[str, ObservedCatalog] = {}
        memory_bytes = self.settings.memory_bytes
        self.criteria = KeptBytes("criteria", memory_bytes, CRITERIA_SHARE)
        """The charge for the criteria of open subscriptions and reads."""
        self.pages = KeptBytes("pages of history", memory_bytes, PAGES_SHARE)
        """The charge for pages that become part of an answer."""
        self.turns = LoopTurns()  # of the event loop, for whoever begins or catches up
        self.named = NamedSubscriptions(
            root, self.settings, admissions, self._observer, self._observers, self.subscribe
        )
        self._stack = AsyncExitStack()
        self._stopping = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Open the catalogs that exist and begin to follow the root.

        They are opened at once, each in its own time: one whose storage does not answer is not waited for
        longer than ``opening_patience_s``, and joins the others when it does.
        """
        memory_bytes = self.settings.memory_bytes
        threads = ThreadPoolExecutor(self.settings.reader_threads, "tailrace-reader")
        self._stack.push_async_callback(shut_down, threads)
        self._folder_threads = ThreadPoolExecutor(_FOLDER_THREADS, "tailrace-folder")
        self._stack.push_async_callback(shut_down, self._folder_threads)
        self._tails = TailPool()
        self._stack.callback(self._tails.close)
        self._disks = DiskMeasurements(self._root, self._folder_threads)
        self._cache = BatchCache(
            *(memory_bytes, self.settings.frames_bytes, self.settings.reads_bytes, threads),
            loads_max=_LOADS_EACH * self.settings.reader_threads,
            readers=lambda: self.counters.subscriptions + len(self.reads.open),
        )
        self._rings = RingBudget(self.settings.rings_bytes)
        self._large = LargeMessages(memory_bytes, self.settings.message_bytes)
        self.reads = Reads(self.settings, self._admissions, self._large, self._observer)
        self._stack.push_async_callback(self.reads.statements.close)
        self._governor = MemoryGovernor(memory_bytes, self._cache, self._large)
        self._faults = FaultWatch(
            *(self._root, self.settings.room_bytes, self._catalogs),
            *(self._admissions.faults, self._tails.polled),
        )
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        try:
            await self._open_existing()
        except BaseException:
            await self.__aexit__()
            raise
        self._start(self._follow_root(), "follow log root")
        self._start(self._govern_memory(), "memory governor")
        self._start(self.named.follow(), "named subscriptions")
        self._start(self._faults.run(), "faults")
        self._start(self._faults.look_at_files(self._folder_threads), "files on the disk")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End what is left and wait until no task or thread is."""
        self.stop_subscriptions()
        for task in tuple(self._running):
            task.cancel()
        await self._stack.__aexit__(None, None, None)

    def catalogs(self, caller: Principal) -> tuple[CatalogInfo, ...]:
        """Return the catalogs that can be subscribed to, by name; the system log is not one of them."""
        return tuple(
            observer.info()
            for name, observer in self._observers(partial(door.knows, caller))
            if name != SYSTEM_CATALOG
        )

    def unreadable(self, caller: Principal) -> dict[str, str]:
        """Return why catalogs cannot be read now, by name; they are tried again."""
        return {
            name: str(catalog.error)
            for name, catalog in sorted(self._catalogs.items())
            if catalog.error is not None and caller.grant(name) is not None
        }

    async def subscribe(
        self,
        caller: Principal,
        catalog: str,
        criteria: Sequence[Criteria] = (),
        *,
        start: Beginning | None = None,
        content: Content = Content.HEADER,
        codec: Codec,
        demand: int | None = None,
        limits: SubscriptionLimits | None = None,
        peer: Peer = IN_PROCESS,
    ) -> Subscription:
        """Subscribe to a catalog, or to the system log: catalogs created, dropped, replaced.

        Args:
            caller: Who asks.
            catalog: Its name, exact.
            criteria: What to deliver; empty = every record, entity level.
            start: Where to begin; None = the first version after the one published now.
            content: Which bodies captures carry.
            codec: The wire form of the frames.
            demand: Captures that may be delivered at first; None = no accounting, the caller's pace
                is the demand.
            limits: What differs from the engine's bounds.
            peer: Whom it is for, as ``subscriptions`` then says.

        Raises:
            CatalogUnknown: No such catalog; names the known ones.
            CatalogReplaced: The cursor belongs to another log.
            PositionCompacted: The start is no longer retained.
            DeadlineExceeded: The version that it waits for was not published in time.
            ServerFull: There is no room for the criteria.
            NotPermitted: The criteria name what is not granted, or nothing of them is.
        """
        await self.turns.turn(peer)
        with self._admissions.subscription(caller, peer, catalog, criteria, content) as admission:
            observer = await self._observer(caller, catalog)
            if self._stopping:
                raise ServerStopping("the server is stopping; connect again shortly")
            peer = replace(peer, principal=caller.name)
            given = (observer.log, caller, Action.SUBSCRIBE, criteria, content, limits)
            use = await use_in(*given, start)
            admission.take(use.narrowed.criteria)
            codec = door.codec_of(codec, use.narrowed)
            options = delivery_options(
                self.settings, limits, use, content, codec, demand, peer, admission
            )
            subscription = await observer.subscribe(start, options)
        if bool(self._stopping):  # during the wait: ``stop_subscriptions`` has not seen this one
            subscription.stop()
        door.end_if_refused(subscription)  # nor has who ended what a new policy does not grant
        return subscription

    async def history(
        self,
        caller: Principal,
        catalog: str,
        criteria: Sequence[Criteria] = (),
        *,
        bounds: HistoryBounds | None = None,
        reverse: bool = False,
        content: Content = Content.HEADER,
        codec: Codec,
        limit: int | None = None,
        max_message_bytes: int | None = None,
        peer: Peer = IN_PROCESS,
    ) -> HistoryRead:
        """Read a closed range of a catalog's log; ``limit`` counts records.

        A message of several captures is at most ``max_message_bytes``; None takes the engine's bound. Leave
        the read by ``with``, so that the room of its last message is free for others.

        Raises:
            CatalogUnknown, CatalogReplaced, PositionCompacted, DeadlineExceeded: As ``subscribe``.
            InvalidRequest: An anchor above what is published, or a limit below one.
            ServerFull: There is no room for the criteria.
        """
        return await self.reads.history(
            *(caller, peer, catalog, criteria),
            bounds=bounds,
            reverse=reverse,
            content=content,
            codec=codec,
            limit=limit,
            max_message_bytes=max_message_bytes,
        )

    async def state(
        self,
        caller: Principal,
        catalog: str,
        asked: StateAsked,
        *,
        codec: Codec,
        max_message_bytes: int | None = None,
        peer: Peer = IN_PROCESS,
    ) -> StateRead:
        """Read the rows of an entity type as of one version, under the grants of history, and leave it as that.

        Raises:
            CatalogUnknown, ServerFull, NotPermitted: As ``history``.
            TailraceError: As ``StateRead.begin``.
        """
        return await self.reads.state(
            caller, peer, catalog, asked, codec=codec, max_message_bytes=max_message_bytes
        )

    async def view(
        self,
        caller: Principal,
        catalog: str,
        with_version: int | VersionWait = 0,
        action: Action | None = None,
    ) -> LogView:
        """Return what is published of a catalog: its uuid, bounds, times and schemas, these as granted.

        Args:
            caller: Who asks.
            catalog: Its name, exact.
            with_version: Shown by the view, if the log's folder has it, or once it is published.
            action: What it is for, if that is not granted with everything.

        Raises:
            CatalogUnknown: No such catalog; names the known ones.
            NotPermitted: The action, or anything of the catalog, is not granted.
        """
        observer = await self._observer(caller, catalog)
        allowances = door.allowances_of(caller, catalog, action)
        return granted_view(await observer.log.view_with(with_version), allowances)

    def statistics(self, caller: Principal) -> EngineStatistics:
        """Return the figures of this moment; those of catalogs only where they are granted."""
        sees = partial(door.may, caller, Action.STATISTICS)
        for subscription in self._all_subscriptions():
            subscription.count_delivered()
        return EngineStatistics(
            observers=tuple(each.statistics() for _, each in self._observers(sees)),
            unreadable={name: why for name, why in self.unreadable(caller).items() if sees(name)},
            faults=self.faults(caller),
            cache=self._cache.statistics(),
            **self.counters.totals(),
            message_bytes_max=self._large.message_bytes_max,
            waiting_for_memory=self._large.waiting,
            disconnected_for_memory=self._governor.disconnected,
            latencies=dict(self.counters.latencies),
            disks={name: usage for name, usage in sorted(self._disks.found.items()) if sees(name)},
            sql=self.reads.statements.statistics(),
        )

    def faults(self, caller: Principal) -> tuple[ServerFault, ...]:
        """Return what is wrong now; with catalogs only where their statistics are granted."""
        return self._faults.found(partial(door.may, caller, Action.STATISTICS))

    def shows_itself_to(self, caller: Principal) -> bool:
        """Return whether a caller is granted the statistics of every catalog, and so those of the server."""
        names = (SYSTEM_CATALOG, *self._catalogs)
        return all(door.may(caller, Action.STATISTICS, name) for name in names)

    def subscriptions(self, caller: Principal) -> list[tuple[str, Subscription]]:
        """Return those that are open with their catalogs, by name; those of the system log are among them."""
        shown = self._shown_to(caller)
        return [(name, each) for name, observer in shown for each in observer.subscriptions]

    def publishers(self, caller: Principal) -> list[tuple[str, Publisher[Subscription]]]:
        """Return those that are open with their catalogs, by name; those of the system log are among them."""
        shown = self._shown_to(caller)
        return [(name, each) for name, observer in shown for each in observer.publishers()]

    def end_subscription(
        self, caller: Principal, id: str, reason: str, peer: Peer = IN_PROCESS
    ) -> str:
        """End a subscription by its id, with a reason for its client; return its resume cursor.

        Raises:
            InvalidRequest: No subscription that the caller may know of has this id.
            NotPermitted: The caller may not operate the catalog.
        """
        for catalog, each in self.subscriptions(caller):
            if each.acknowledgement.subscription_id == id:
                with self._admissions.action(caller, peer, catalog, "end_subscription", id, reason):
                    return ended_by_operator(caller, catalog, each, reason)
        raise InvalidRequest(f"no subscription {id[:60]!r} is open; it may have ended meanwhile")

    async def end_what_is_not_granted(self) -> None:
        """End the subscriptions and reads that a policy no longer grants, after it has changed."""
        await door.end_refused((*self._all_subscriptions(), *self.reads.open))

    def stop_subscriptions(self) -> None:
        """End every subscription with its resume cursor, and every statement, and take no more. Idempotent."""
        self._stopping = True
        self.reads.statements.stop()
        for each in self._all_subscriptions():
            each.stop()
        for _, observer in self._observers():
            observer.log.waits.end(ServerStopping("the server is stopping; connect again shortly"))

    def _shown_to(self, caller: Principal) -> list[tuple[str, Observer]]:
        """Return the observers of the catalogs whose statistics are granted, by name."""
        return self._observers(partial(door.may, caller, Action.STATISTICS))

    def _all_subscriptions(self) -> list[Subscription]:
        return [each for _, observer in self._observers() for each in observer.subscriptions]

    def _observers(
        self, sees: Callable[[str], bool] = lambda name: True
    ) -> list[tuple[str, Observer]]:
        """Return the observers of the catalogs that somebody sees, by name."""
        return [
            (name, catalog.observer)
            for name, catalog in sorted(self._catalogs.items())
            if catalog.observer is not None and sees(name)
        ]

    async def _observer(self, caller: Principal, name: str) -> Observer:
        """Return a catalog's observer; the root is searched for a catalog that was created a moment ago.

        Raises:
            CatalogUnknown: No such catalog.
            NotPermitted: The caller may not know whether there is one.
            TransportError: Its storage does not answer.
            TailraceError: Why its log cannot be read.
        """
        # 1. Before anything is looked for: neither the error nor the time that it takes tells of a catalog.
        if not door.knows(caller, name):
            raise NotPermitted(f"nothing of catalog {name!r} is granted")
        # 2. Both waits end with patience: a storage that hangs keeps its own catalog's callers no longer.
        patience_s = self.settings.opening_patience_s
        try:
            async with asyncio.timeout(patience_s):
                if name not in self._catalogs:
                    await self._discover()
                if name in self._catalogs:
                    await self._catalogs[name].opened.wait()
        except TimeoutError:
            raise TransportError(
                f"catalog {name!r} could not be opened within {patience_s:g} s: its storage does not answer; "
                "try again"
            ) from None
        # 3. It may have been dropped during the wait, or be unreadable: then it says why.
        catalog = self._catalogs.get(name)
        if catalog is None:
            raise CatalogUnknown(name, self._names(caller))
        return catalog.require()

    def _names(self, caller: Principal) -> list[str]:
        known = (name for name in self._catalogs if door.knows(caller, name))
        return [name for name in known if name != SYSTEM_CATALOG]

    async def _open_existing(self) -> None:
        """Wait until the catalogs that exist are opened, at most ``opening_patience_s``."""
        try:
            async with asyncio.timeout(self.settings.opening_patience_s):
                await self._discover()
                for catalog in tuple(self._catalogs.values()):
                    await catalog.opened.wait()
        except TimeoutError:
            _log.warning(
                "storage does not answer; going on without",
                catalogs=[
                    name for name, each in self._catalogs.items() if not each.opened.is_set()
                ],
                log_root=str(self._root),
                waited_s=self.settings.opening_patience_s,
            )

    async def _govern_memory(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                for _ in range(_MEASUREMENTS):
                    await asyncio.sleep(_MEASURE_EVERY_S)
                    self._governor.measure(loop.time())
                    self.reads.relieve(loop.time(), self._cache.scans)
                readers: tuple[Stallable, ...] = (*self._all_subscriptions(), *self.reads.open)
                self._governor.relieve(readers, loop.time())
            except Exception:  # the server stays, and measures again
                _log.exception("memory not governed")

    async def _follow_root(self) -> None:
        while True:
            await asyncio.sleep(_DISCOVER_EVERY_S)
            try:
                await self._discover()
            except TailraceError as error:
                _log.warning("log root unreadable", error=str(error))
            except Exception:  # the server stays, and tries again
                _log.exception("log root not followed")

    async def _discover(self) -> None:
        """Begin to open catalogs that have appeared; those that have gone end by themselves."""
        loop = asyncio.get_running_loop()
        known = frozenset(self._catalogs)
        found = await loop.run_in_executor(self._folder_threads, catalog_names, self._root, known)
        for name in found:
            if name not in self._catalogs:
                catalog = ObservedCatalog(
                    self._root / name,
                    self._folder_threads,
                    *(self._cache, self._rings, self._large, self.criteria),
                    *(self.settings, self.counters, self.turns, self._tails),
                )
                self._catalogs[name] = catalog
                self._start(self._observe(name, catalog), f"observe {name}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _observe(self, name: str, catalog: ObservedCatalog) -> None:
        """Follow one catalog until it is gone."""

        def forget() -> None:
            if self._catalogs.get(name) is catalog:
                del self._catalogs[name]

        measuring = self._start(self._disks.follow(name), f"measure {name}")
        try:
            await catalog.run(forget)
        except CatalogReplaced as error:
            _log.info("catalog gone", catalog=name, found=str(error.found))
        else:
            _log.info("catalog gone", catalog=name)
        finally:
            measuring.cancel()
            catalog.opened.set()
            forget()
