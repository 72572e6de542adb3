"""The engine: it observes every catalog under a log root, and is the only interface that faces use."""

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
    InvalidRequest,
    ServerStopping,
)
from tailrace_server.catalogs.catalogs import Catalogs
from tailrace_server.catalogs.observer import SharedParts
from tailrace_server.codecs.column_cut import codec_of
from tailrace_server.engine.operator_end import ended_by_operator
from tailrace_server.engine.reads import Reads
from tailrace_server.grants.conditions import use_in
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import IN_PROCESS, Peer, allowances_of, knows, may
from tailrace_server.grants.schemas import granted_view
from tailrace_server.live.options import delivery_options
from tailrace_server.live.ring import RingBudget
from tailrace_server.log_cache.batch_cache import BatchCache
from tailrace_server.log_cache.memory_governor import MemoryGovernor
from tailrace_server.named.named_subscriptions import NamedSubscriptions
from tailrace_server.resources.admission import FREE, Admissions
from tailrace_server.resources.event_loop import LoopTurns, Turn, shut_down
from tailrace_server.resources.faults import FaultWatch
from tailrace_server.resources.memory import (
    CRITERIA_SHARE,
    PAGES_SHARE,
    LargeMessages,
    MemoryBook,
    MemoryShare,
)
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.resources.statistics import Counters, EngineStatistics
from tailrace_server.wal.catalog import SYSTEM_CATALOG
from tailrace_server.wal.state.tail_pool import TailPool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from tailrace.criteria import Beginning, Criteria
    from tailrace_server.catalogs.catalog_info import CatalogInfo
    from tailrace_server.catalogs.observer import Observer
    from tailrace_server.codecs import Codec
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.log_cache.memory_governor import Stallable
    from tailrace_server.named.requests import NamedReader
    from tailrace_server.reads.history import HistoryBounds, HistoryRead
    from tailrace_server.reads.log_read import LogRead
    from tailrace_server.reads.state import StateRead
    from tailrace_server.reads.state_request import StateRequest
    from tailrace_server.resources.faults import ServerFault
    from tailrace_server.resources.version_waits import VersionWait
    from tailrace_server.wal.state.view import LogView

_MEASURE_EVERY_S: Final = 0.1
_MEASUREMENTS: Final = 5
"""Number of memory measurements between two attempts to free memory, which may take long in a large process."""
_FOLDER_THREADS: Final = 16
"""Number of threads that open and list catalogs, in addition to the reader threads.

A storage that hangs blocks one of them and leaves the others to the other catalogs.
"""
_LOADS_EACH: Final = 2
"""Loads of the cache for each reader thread: one that it runs, and one that is queued or waits for the loop."""
_log = structlog.get_logger("tailrace.engine")


class Engine:
    """The catalogs under one log root; an async context manager that owns every task it starts.

    The first argument of every method for faces is the caller. Only the engine evaluates the caller's grant.
    """

    def __init__(
        self, root: Path, settings: EngineSettings | None = None, admissions: Admissions = FREE
    ) -> None:
        """Bind to a log root; nothing is read before the context is entered.

        Args:
            root: The folder with the catalogs.
            settings: The settings; None: the defaults.
            admissions: The quotas and the audit of callers.
        """
        self._admissions = admissions
        self._root = root
        self.settings = settings or EngineSettings()
        self.counters = Counters()  # of all subscriptions since the engine began
        self.memory = MemoryBook(self.settings.memory_bytes)
        """The accounts of the engine; servers open theirs in it."""
        self.criteria = MemoryShare("criteria", self.memory, CRITERIA_SHARE)
        """The share of memory for the criteria of open subscriptions and reads."""
        self.pages = MemoryShare("pages of history", self.memory, PAGES_SHARE)
        """The share of memory for pages that are collected into one answer."""
        self.turns = LoopTurns()  # of the event loop, for streams that begin or catch up
        self._stack = AsyncExitStack()
        self._stopping = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Open the existing catalogs, and begin to follow the log root."""
        # The stack is closed in reverse order: first catalogs and tasks, last the threads that these use.
        memory_bytes = self.settings.memory_bytes
        threads = ThreadPoolExecutor(self.settings.reader_threads, "tailrace-reader")
        self._stack.push_async_callback(shut_down, threads)
        folder_threads = ThreadPoolExecutor(_FOLDER_THREADS, "tailrace-folder")
        self._stack.push_async_callback(shut_down, folder_threads)
        tails = TailPool()
        self._stack.callback(tails.close)
        self._cache = BatchCache(
            *(memory_bytes, self.settings.frames_bytes, self.settings.reads_bytes, threads),
            loads_max=_LOADS_EACH * self.settings.reader_threads,
            readers=lambda: self.counters.subscriptions + len(self.reads.open),
        )
        cache, rings = self._cache, RingBudget(self.settings.rings_bytes)
        self._large = large = LargeMessages(memory_bytes, self.settings.message_bytes)
        self.memory.open("cache", cache.bytes_max, lambda: cache.bytes)
        self.memory.open("rings", self.settings.rings_bytes, lambda: rings.bytes)
        self.memory.open("large messages", large.bytes_max, lambda: large.bytes)
        self._catalogs = Catalogs(
            self._root,
            folder_threads,
            tails,
            SharedParts(
                self.settings,
                self.counters,
                self._cache,
                rings,
                large,
                self.criteria,
                self.turns,
            ),
        )
        self.named = NamedSubscriptions(
            self._root, self.settings, self._admissions, self._catalogs, self.subscribe
        )
        self.reads = Reads(self.settings, self._admissions, self._large, self._catalogs)
        self._stack.push_async_callback(self.reads.statements.close)
        self._governor = MemoryGovernor(memory_bytes, self._cache, self._large)
        self._faults = FaultWatch(
            *(self._root, self.settings.room_bytes, self._catalogs.by_name),
            *(self._admissions.faults, tails.polled),
        )
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        try:
            await self._stack.enter_async_context(self._catalogs)
        except BaseException:
            await self.__aexit__()
            raise
        self._start(self._govern_memory(), "memory governor")
        self._start(self.named.follow(), "named subscriptions")
        self._start(self._faults.run(), "faults")
        self._start(self._faults.look_at_files(folder_threads), "files on the disk")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all streams, and wait for the end of all tasks and threads."""
        self.stop_subscriptions()
        for task in tuple(self._running):
            task.cancel()
        await self._stack.__aexit__(None, None, None)

    def catalogs(self, caller: Principal) -> tuple[CatalogInfo, ...]:
        """Return the readable catalogs that the caller may know, sorted by name, without the system log."""
        return tuple(
            observer.info()
            for name, observer in self._catalogs.observers(partial(knows, caller))
            if name != SYSTEM_CATALOG
        )

    def unreadable(self, caller: Principal) -> dict[str, str]:
        """Return name → reason for the catalogs that cannot be read now; they are retried."""
        found = self._catalogs.unreadable()
        return {name: why for name, why in found.items() if knows(caller, name)}

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
        named: NamedReader | None = None,
    ) -> Subscription:
        """Subscribe to a catalog, or to the system log, which reports created, dropped and replaced catalogs.

        Args:
            caller: The caller.
            catalog: The catalog's exact name.
            criteria: The criteria; empty: every record, as a whole.
            start: The start; None: the first version after the newest published one.
            content: The bodies that captures carry.
            codec: The wire form of the frames.
            demand: The initial demand in captures; None: no demand is counted, and the caller reads at its own
                pace.
            limits: The subscription's limits that differ from the engine's; None: none.
            peer: The subscriber's end of the connection, for ``subscriptions``.
            named: The named subscription to read: it has its own criteria, and begins after its own cursor.

        Raises:
            CatalogUnknown: There is no such catalog; the error lists the known ones.
            CatalogReplaced: The cursor belongs to another log.
            PositionCompacted: The start is no longer retained.
            DeadlineExceeded: The version to wait for was not published in time.
            ServerFull: There is no room for the criteria.
            NotPermitted: The criteria name something that is not granted, or nothing of them is granted.
        """
        if named is not None:
            return await self.named.read(
                *(named, caller, catalog, criteria),
                start=start,
                content=content,
                codec=codec,
                demand=demand,
                limits=limits,
                peer=peer,
            )
        # After a restart all clients subscribe at once: they take turns, so that open streams are not delayed.
        await self.turns.turn(peer)
        with self._admissions.subscription(caller, peer, catalog, criteria, content) as admission:
            observer = await self._catalogs.observer(caller, catalog)
            if self._stopping:
                raise ServerStopping("the server is stopping; connect again shortly")
            peer = replace(peer, principal=caller.name)
            given = (observer.log, caller, Action.SUBSCRIBE, criteria, content, limits)
            use = await use_in(*given, start)
            admission.take(use.narrowed.criteria)
            codec = codec_of(codec, use.narrowed.shown)
            options = delivery_options(
                self.settings, limits, use, content, codec, demand, peer, admission
            )
            subscription = await observer.subscribe(start, options)
        # During the waits above, the server may have begun to stop, or the policy may have changed. Neither has
        # seen this subscription yet.
        if bool(self._stopping):
            subscription.stop()
        subscription.end_if_refused()
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
        """Open a read of a closed range of a catalog's log.

        Use the read as a context manager, so that its memory is released.

        Args:
            caller: The caller.
            catalog: The catalog's exact name.
            criteria: The criteria; empty: every record, as a whole.
            bounds: The range; None: the whole log.
            reverse: True to read from the end to the beginning.
            content: The bodies that captures carry.
            codec: The wire form of the frames.
            limit: The most records to deliver; None: all.
            max_message_bytes: The most bytes of a message with several captures; None: the engine's limit.
            peer: The reader's end of the connection.

        Raises:
            CatalogUnknown, CatalogReplaced, PositionCompacted, DeadlineExceeded: See ``subscribe``.
            InvalidRequest: The anchor is above the newest published version, or the limit is below one.
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
        request: StateRequest,
        *,
        codec: Codec,
        max_message_bytes: int | None = None,
        peer: Peer = IN_PROCESS,
    ) -> StateRead:
        """Open a read of an entity type's rows as of one version. Use it as a context manager.

        The action HISTORY must be granted.

        Raises:
            CatalogUnknown, ServerFull, NotPermitted: See ``subscribe``.
            TailraceError: ``StateRead.begin`` raises it.
        """
        return await self.reads.state(
            caller, peer, catalog, request, codec=codec, max_message_bytes=max_message_bytes
        )

    async def view(
        self,
        caller: Principal,
        catalog: str,
        with_version: int | VersionWait = 0,
        action: Action | None = None,
    ) -> LogView:
        """Return a view of a catalog: its uuid, bounds and times, and the granted part of its schemas.

        Args:
            caller: The caller.
            catalog: The catalog's exact name.
            with_version: A version that the view must have, if the log's folder has it; or a version to wait
                for.
            action: The action that must be granted; None: any action.

        Raises:
            CatalogUnknown: There is no such catalog; the error lists the known ones.
            NotPermitted: The action is not granted, or nothing of the catalog is.
        """
        observer = await self._catalogs.observer(caller, catalog)
        allowances = allowances_of(caller, catalog, action)
        return granted_view(await observer.log.view_with(with_version), allowances)

    def statistics(self, caller: Principal) -> EngineStatistics:
        """Return the current figures of the engine, and those of catalogs whose statistics are granted."""
        sees = partial(may, caller, Action.STATISTICS)
        for subscription in self._catalogs.subscriptions():
            subscription.count_delivered()
        process_bytes = self._cache.measured()
        return EngineStatistics(
            observers=tuple(each.statistics() for _, each in self._catalogs.observers(sees)),
            unreadable={name: why for name, why in self.unreadable(caller).items() if sees(name)},
            faults=self.faults(caller),
            cache=self._cache.statistics(),
            memory=self.memory.accounts(process_bytes),
            **self.counters.totals(),
            message_bytes_max=self._large.message_bytes_max,
            waiting_for_memory=self._large.waiting,
            disconnected_for_memory=self._governor.disconnected,
            latencies=dict(self.counters.latencies),
            disks={
                name: usage
                for name, usage in sorted(self._catalogs.disks.found.items())
                if sees(name)
            },
            sql=self.reads.statements.statistics(),
        )

    def faults(self, caller: Principal) -> tuple[ServerFault, ...]:
        """Return the current faults of the server, and those of catalogs whose statistics are granted."""
        return self._faults.found(partial(may, caller, Action.STATISTICS))

    def shows_itself_to(self, caller: Principal) -> bool:
        """Return True if a caller may see the server's own figures: it is granted all catalogs' statistics."""
        names = (SYSTEM_CATALOG, *self._catalogs.by_name)
        return all(may(caller, Action.STATISTICS, name) for name in names)

    def subscriptions(self, caller: Principal) -> list[tuple[str, Subscription]]:
        """Return the open subscriptions, each with the name of its catalog, sorted by name.

        Only catalogs whose statistics are granted are included; the system log may be one of them.
        """
        shown = self._shown_to(caller)
        return [(name, each) for name, observer in shown for each in observer.subscriptions]

    def publishers(self, caller: Principal) -> list[tuple[str, Publisher[Subscription]]]:
        """Return the open publishers, each with the name of its catalog, sorted by name.

        Only catalogs whose statistics are granted are included; the system log may be one of them.
        """
        shown = self._shown_to(caller)
        return [(name, each) for name, observer in shown for each in observer.publishers()]

    def end_subscription(
        self, caller: Principal, id: str, reason: str, peer: Peer = IN_PROCESS
    ) -> str:
        """End a subscription by its id, with a reason for its client; return its resume cursor.

        Raises:
            InvalidRequest: No open subscription that is visible to the caller has this id.
            NotPermitted: The caller may not operate the catalog.
        """
        for catalog, each in self.subscriptions(caller):
            if each.acknowledgement.subscription_id == id:
                with self._admissions.action(caller, peer, catalog, "end_subscription", id, reason):
                    return ended_by_operator(caller, catalog, each, reason)
        raise InvalidRequest(f"no subscription {id[:60]!r} is open; it may have ended")

    async def end_what_is_not_granted(self) -> None:
        """End the subscriptions and reads that are no longer granted, after a change of the policy."""
        turn = Turn()
        streams: tuple[Subscription | LogRead, ...] = (
            *self._catalogs.subscriptions(),
            *self.reads.open,
        )
        for each in streams:
            each.end_if_refused()
            if turn.is_over():
                await turn.give_way()

    def stop_subscriptions(self) -> None:
        """End all subscriptions, with their resume cursors, and all statements; refuse new ones. Idempotent."""
        self._stopping = True
        self.reads.statements.stop()
        for each in self._catalogs.subscriptions():
            each.stop()
        for _, observer in self._catalogs.observers():
            observer.log.waits.end(ServerStopping("the server is stopping; connect again shortly"))

    def _shown_to(self, caller: Principal) -> list[tuple[str, Observer]]:
        """Return name and observer of the catalogs whose statistics are granted, sorted by name."""
        return self._catalogs.observers(partial(may, caller, Action.STATISTICS))

    async def _govern_memory(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                for _ in range(_MEASUREMENTS):
                    await asyncio.sleep(_MEASURE_EVERY_S)
                    self._governor.measure(loop.time())
                    self.reads.relieve(loop.time(), self._cache.scans)
                readers: tuple[Stallable, ...] = (*self._catalogs.subscriptions(), *self.reads.open)
                self._governor.relieve(readers, loop.time())
            except Exception:  # a bug must not end the measurements: log it and retry
                _log.exception("memory not governed")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
