"""The engine: every catalog under a log root, observed, and the one door through which the faces come in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from tailrace.criteria import Content, canonical
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    InvalidRequest,
    ServerStopping,
    TailraceError,
    TransportError,
)
from tailrace_server.capture.delivery.memory_budget import LargeMessages, MemoryGovernor
from tailrace_server.capture.delivery.options import Delivery
from tailrace_server.capture.delivery.ring import RingBudget
from tailrace_server.capture.history import History, HistoryBounds
from tailrace_server.capture.matching.predicate import Predicate
from tailrace_server.capture.observed_catalog import ObservedCatalog
from tailrace_server.capture.reading.batch_cache import BatchCache
from tailrace_server.capture.settings import EngineSettings, SubscriptionLimits
from tailrace_server.capture.statistics import Counters, EngineStatistics
from tailrace_server.wal.catalog import SYSTEM_CATALOG, list_catalogs

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    from tailrace.criteria import Criteria, Start
    from tailrace.position import Position
    from tailrace.schema import Schema
    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.delivery.publisher import Publisher
    from tailrace_server.capture.delivery.subscription import Subscription
    from tailrace_server.capture.observer import Observer

_DISCOVER_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 0.1
_LOOKS: Final = 5
"""At the process's memory before it is relieved, where it must be: that may take long where it is large."""
_FOLDER_THREADS: Final = 16
"""Openings and listings at once, apart from the reader threads: a storage that hangs keeps one of them, and
leaves the others to the other catalogs."""
_LOADS_EACH: Final = 2
"""For each reader thread: one that it has, one that it finds or that waits for the loop."""
_DEMAND_MAX: Final = 2**63 - 1
_log = structlog.get_logger("tailrace.engine")


@dataclass(frozen=True, slots=True)
class CatalogInfo:
    """One catalog as it stands now."""

    name: str
    uuid: UUID
    oldest: Position
    published: int
    """Highest version that subscribers may see; 0 for none."""
    committed: int
    """Highest durable version; those above ``published`` wait for their publication."""
    newest_timestamp: int
    """Commit timestamp of the newest published version, µs; 0 for none."""


class Engine:
    """Serves the catalogs under one log root; an async context manager that owns every task it starts."""

    def __init__(self, root: Path, settings: EngineSettings | None = None) -> None:
        """Bind to a log root; nothing is read before the context is entered."""
        self._root = root
        self.settings = settings or EngineSettings()
        self._counters = Counters()
        self._catalogs: dict[str, ObservedCatalog] = {}
        self._stack = AsyncExitStack()
        self._stopping = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Open the catalogs that exist and begin to follow the root.

        They are opened at once, each in its own time: one whose storage does not answer is not waited for
        longer than ``opening_patience_s``, and joins the others when it does.
        """
        threads = ThreadPoolExecutor(self.settings.reader_threads, "tailrace-reader")
        self._stack.push_async_callback(_shut_down, threads)
        self._folder_threads = ThreadPoolExecutor(_FOLDER_THREADS, "tailrace-folder")
        self._stack.push_async_callback(_shut_down, self._folder_threads)
        self._cache = BatchCache(
            self.settings.memory_bytes,
            self.settings.frames_bytes,
            self.settings.reads_bytes,
            threads,
            loads_max=_LOADS_EACH * self.settings.reader_threads,
            subscriptions=lambda: self._counters.subscriptions,
        )
        self._rings = RingBudget(self.settings.rings_bytes)
        self._large = LargeMessages(self.settings.memory_bytes, self.settings.message_bytes)
        self._governor = MemoryGovernor(self.settings.memory_bytes, self._cache, self._large)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        try:
            await self._open_what_is_there()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._start(self._follow_root(), "follow log root")
        self._start(self._govern_memory(), "memory governor")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what is left and wait until no task or thread is."""
        self.stop_subscriptions()
        for task in tuple(self._running):
            task.cancel()
        await self._stack.__aexit__(None, None, None)

    def catalogs(self) -> tuple[CatalogInfo, ...]:
        """Return the catalogs that can be subscribed to, by name; the system log is not one of them."""
        return tuple(
            CatalogInfo(
                name=view.name,
                uuid=view.uuid,
                oldest=view.oldest,
                published=view.published,
                committed=observer.committed,
                newest_timestamp=view.newest_timestamp,
            )
            for name in sorted(self._names())
            if (observer := self._catalogs[name].observer) is not None
            for view in [observer.view]
        )

    def unreadable(self) -> dict[str, str]:
        """Return why catalogs cannot be read now, by name; they are tried again."""
        return {
            name: str(catalog.error)
            for name, catalog in sorted(self._catalogs.items())
            if catalog.error is not None
        }

    async def subscribe(
        self,
        catalog: str,
        criteria: Sequence[Criteria] = (),
        *,
        start: Start | None = None,
        content: Content = Content.HEADER,
        codec: Codec,
        demand: int | None = None,
        limits: SubscriptionLimits | None = None,
    ) -> Subscription:
        """Subscribe to a catalog.

        Args:
            catalog: Its name, exact.
            criteria: What to deliver; empty = every record, entity level.
            start: Where to begin; None = the first version after the one published now.
            content: Which bodies captures carry.
            codec: The wire form of the frames.
            demand: Captures that may be delivered at first; None = no accounting, the caller's pace
                is the demand.
            limits: What differs from the engine's bounds.

        Raises:
            CatalogUnknown: No such catalog; names the known ones.
            CatalogReplaced: The cursor belongs to another log.
            PositionCompacted: The start is no longer retained.
        """
        observer = await self._observer(catalog)
        self._refuse_when_stopping()
        subscription = await observer.subscribe(
            criteria, start, self._delivery(content, codec, demand, limits)
        )
        if self._stopping:  # since the start was looked up
            subscription.stop()
        return subscription

    async def subscribe_system(
        self,
        criteria: Sequence[Criteria] = (),
        *,
        start: Start | None = None,
        content: Content = Content.BODY,
        codec: Codec,
        demand: int | None = None,
        limits: SubscriptionLimits | None = None,
    ) -> Subscription:
        """Subscribe to the engine-level stream: catalogs created, dropped, replaced. As ``subscribe``."""
        return await self.subscribe(
            SYSTEM_CATALOG,
            criteria,
            start=start,
            content=content,
            codec=codec,
            demand=demand,
            limits=limits,
        )

    async def history(
        self,
        catalog: str,
        criteria: Sequence[Criteria] = (),
        *,
        bounds: HistoryBounds | None = None,
        reverse: bool = False,
        content: Content = Content.HEADER,
        codec: Codec,
        limit: int | None = None,
        max_message_bytes: int | None = None,
    ) -> History:
        """Read a closed range of a catalog's log; ``limit`` counts records.

        A message of several captures is at most ``max_message_bytes``; None takes the engine's bound.

        Raises:
            CatalogUnknown, CatalogReplaced, PositionCompacted: As ``subscribe``.
            InvalidRequest: An anchor above what is published, or a limit below one.
        """
        history = History(
            await self._observer(catalog),
            Predicate(canonical(criteria)),
            bounds or HistoryBounds(),
            reverse=reverse,
            content=content,
            codec=codec,
            limit=limit,
            message_bytes=min(self.settings.message_bytes, max_message_bytes or _DEMAND_MAX),
        )
        await history.begin()
        return history

    async def schema(self, catalog: str, version: int | None = None) -> Schema:
        """Return the entity types and columns of a catalog at a version; None = the published one."""
        view = (await self._observer(catalog)).view
        return view.schema_of(view.published if version is None else version)

    def statistics(self) -> EngineStatistics:
        """Return the figures of this moment."""
        for _, subscription in self.subscriptions():
            subscription.settle()
        observers = tuple(
            catalog.observer.statistics()
            for _, catalog in sorted(self._catalogs.items())
            if catalog.observer is not None
        )
        counters = self._counters
        return EngineStatistics(
            observers=observers,
            unreadable=self.unreadable(),
            cache=self._cache.statistics(),
            subscriptions=counters.subscriptions,
            subscriptions_opened=counters.subscriptions_opened,
            subscriptions_failed=counters.subscriptions_failed,
            captures_delivered=counters.captures_delivered,
            bytes_delivered=counters.bytes_delivered,
            heartbeats_sent=counters.heartbeats_sent,
            resyncs=counters.resyncs,
            returns=counters.returns,
            message_bytes_max=self._large.message_bytes_max,
            waiting_for_memory=self._large.waiting,
            disconnected_for_memory=self._governor.disconnected,
        )

    def observer(self, catalog: str) -> Observer:
        """Return a catalog's observer, for statistics and tests.

        Raises:
            CatalogUnknown: No such catalog is observed now.
        """
        found = self._catalogs.get(catalog)
        if found is None or found.observer is None:
            raise CatalogUnknown(catalog, self._names())
        return found.observer

    def stop_subscriptions(self) -> None:
        """End every subscription with its resume cursor and take no more. Idempotent."""
        self._stopping = True
        for _, subscription in self.subscriptions():
            subscription.stop()

    def subscriptions(self) -> list[tuple[str, Subscription]]:
        """Return those that are open with their catalogs, by name; those of the system log are among them."""
        return [
            (name, subscription)
            for name, catalog in sorted(self._catalogs.items())
            if catalog.observer is not None
            for subscription in catalog.observer.subscriptions
        ]

    def publishers(self) -> list[tuple[str, Publisher]]:
        """Return those that are open with their catalogs, by name; those of the system log are among them."""
        return [
            (name, publisher)
            for name, catalog in sorted(self._catalogs.items())
            if catalog.observer is not None
            for publisher in catalog.observer.publishers()
        ]

    def _delivery(
        self,
        content: Content,
        codec: Codec,
        demand: int | None,
        limits: SubscriptionLimits | None,
    ) -> Delivery:
        settings, limits = self.settings, limits or SubscriptionLimits()
        if demand is not None and demand < 0:
            raise InvalidRequest(f"demand {demand}: it cannot be negative")
        max_message_bytes = limits.max_message_bytes or settings.max_message_bytes
        return Delivery(
            content=content,
            codec=codec,
            demand=None if demand is None else min(demand, _DEMAND_MAX),
            queue_captures=limits.queue_captures or settings.queue_captures,
            message_bytes=min(settings.message_bytes, max_message_bytes),
            max_message_bytes=max_message_bytes,
            heartbeat_interval_s=limits.heartbeat_interval_s or settings.heartbeat_interval_s,
        )

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise ServerStopping("the server is stopping; connect again shortly")

    async def _observer(self, name: str) -> Observer:
        """Return a catalog's observer; a catalog that was created a moment ago is looked for.

        Raises:
            CatalogUnknown: No such catalog.
            TransportError: Its storage does not answer.
            TailraceError: Why its log cannot be read.
        """
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
        catalog = self._catalogs.get(name)
        if catalog is None:
            raise CatalogUnknown(name, self._names())
        return catalog.require()

    def _names(self) -> list[str]:
        return [name for name in self._catalogs if name != SYSTEM_CATALOG]

    async def _open_what_is_there(self) -> None:
        """Wait until the catalogs that exist have been opened, as long as patience lasts."""
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
                for _ in range(_LOOKS):
                    await asyncio.sleep(_LOOK_EVERY_S)
                    self._governor.look()
                self._governor.relieve([each for _, each in self.subscriptions()], loop.time())
            except Exception:  # the server stays, and measures again
                _log.exception("memory not governed")

    async def _follow_root(self) -> None:
        while True:
            await asyncio.sleep(_DISCOVER_EVERY_S)
            try:
                await self._discover()
            except TailraceError as error:
                _log.warning("log root unreadable", error=str(error))
            except Exception:  # the server stays, and looks again
                _log.exception("log root not followed")

    async def _discover(self) -> None:
        """Begin to open catalogs that have appeared; those that have gone end by themselves."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._folder_threads, _catalog_names, self._root)
        for name in found:
            if name not in self._catalogs:
                catalog = ObservedCatalog(
                    self._root / name,
                    self._folder_threads,
                    self._cache,
                    self._rings,
                    self._large,
                    self.settings,
                    self._counters,
                )
                self._catalogs[name] = catalog
                self._start(self._observe(name, catalog), f"observe {name}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _observe(self, name: str, catalog: ObservedCatalog) -> None:
        """Follow one catalog until it is gone."""

        def forget() -> None:
            if self._catalogs.get(name) is catalog:
                del self._catalogs[name]

        try:
            await catalog.run(forget)
        except CatalogReplaced as error:
            _log.info("catalog gone", catalog=name, found=str(error.found))
        else:
            _log.info("catalog gone", catalog=name)
        finally:
            catalog.opened.set()
            forget()


async def _shut_down(threads: ThreadPoolExecutor) -> None:
    """Wait until threads have ended, off the loop: a second signal must get through while one of them hangs."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        threads.shutdown(wait=True)
        loop.call_soon_threadsafe(ended.set)

    waiting = threading.Thread(target=wait, name="tailrace-shutdown", daemon=True)
    waiting.start()
    await ended.wait()
    waiting.join()


def _catalog_names(root: Path) -> tuple[str, ...]:
    """Return the catalogs under a root, the system log among them if it exists."""
    system = (root / SYSTEM_CATALOG / "catalog.json").exists()
    return (*list_catalogs(root), *((SYSTEM_CATALOG,) if system else ()))
