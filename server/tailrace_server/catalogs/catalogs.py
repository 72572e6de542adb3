"""The catalogs under one log root: discovered, opened, followed, and removed once they are dropped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    NotPermitted,
    TailraceError,
    TransportError,
)
from tailrace_server.catalogs.observed_catalog import ObservedCatalog, catalog_names
from tailrace_server.grants.principal import knows
from tailrace_server.resources.disk_usage import DiskMeasurements
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor
    from pathlib import Path

    from tailrace_server.catalogs.observer import Observer, SharedParts
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.wal.state.tail_pool import TailPool

_DISCOVER_EVERY_S: Final = 0.5
_log = structlog.get_logger("tailrace.engine")


class Catalogs:
    """The observed catalogs of a log root: an async context manager that owns their tasks."""

    def __init__(self, root: Path, threads: Executor, tails: TailPool, shared: SharedParts) -> None:
        """Bind to a log root.

        Args:
            root: The folder with the catalogs.
            threads: Threads that open and list folders; a storage that hangs blocks only one of them.
            tails: The threads that follow logs.
            shared: The parts that all catalogs share.
        """
        self._root = root
        self._threads = threads
        self._tails = tails
        self._shared = shared
        self.by_name: dict[str, ObservedCatalog] = {}
        """Catalogs that are open or being opened, by name; the system log is one of them."""
        self.disks = DiskMeasurements(root, threads)
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Open the existing catalogs, and begin to discover new ones.

        Catalogs are opened concurrently. A catalog whose storage does not answer delays the start by at most
        ``opening_patience_s``; it becomes available when its storage answers.
        """
        await self._tasks.__aenter__()
        try:
            await self._open_existing()
        # `async with` does not exit a context whose entry fails, so end the tasks here.
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._start(self._follow_root(), "follow log root")
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in tuple(self._running):
            task.cancel()
        await self._tasks.__aexit__(*error)

    def observers(
        self, sees: Callable[[str], bool] = lambda name: True
    ) -> list[tuple[str, Observer]]:
        """Return name and observer of each readable catalog whose name passes ``sees``, sorted by name."""
        return [
            (name, catalog.observer)
            for name, catalog in sorted(self.by_name.items())
            if catalog.observer is not None and sees(name)
        ]

    def subscriptions(self) -> list[Subscription]:
        """Return the open subscriptions of all catalogs."""
        return [each for _, observer in self.observers() for each in observer.subscriptions]

    def unreadable(self) -> dict[str, str]:
        """Return name → reason for the catalogs that cannot be read now; they are retried."""
        return {
            name: str(catalog.error)
            for name, catalog in sorted(self.by_name.items())
            if catalog.error is not None
        }

    async def observer(self, caller: Principal, name: str) -> Observer:
        """Return a catalog's observer; if the name is unknown, look for a newly created catalog first.

        Raises:
            CatalogUnknown: The catalog does not exist.
            NotPermitted: The caller may not know whether the catalog exists.
            TransportError: The catalog's storage does not answer.
            TailraceError: The catalog's log cannot be read; the error has the reason.
        """
        # 1. Check the grant before any lookup, so that neither the error nor its delay reveals a catalog.
        if not knows(caller, name):
            raise NotPermitted(f"nothing of catalog {name!r} is granted")
        # 2. Limit both waits: a storage that hangs must not block the callers for longer.
        patience_s = self._shared.settings.opening_patience_s
        try:
            async with asyncio.timeout(patience_s):
                if name not in self.by_name:
                    await self._discover()
                if name in self.by_name:
                    await self.by_name[name].opened.wait()
        except TimeoutError:
            raise TransportError(
                f"catalog {name!r} could not be opened within {patience_s:g} s: its storage does not answer; "
                "try again"
            ) from None
        # 3. The catalog may have been dropped during the wait.
        #    If it is unreadable, `require` raises the reason.
        catalog = self.by_name.get(name)
        if catalog is None:
            raise CatalogUnknown(name, self._names(caller))
        return catalog.require()

    def _names(self, caller: Principal) -> list[str]:
        known = (name for name in self.by_name if knows(caller, name))
        return [name for name in known if name != SYSTEM_CATALOG]

    async def _open_existing(self) -> None:
        """Wait until the existing catalogs are opened, for at most ``opening_patience_s``."""
        try:
            async with asyncio.timeout(self._shared.settings.opening_patience_s):
                await self._discover()
                for catalog in tuple(self.by_name.values()):
                    await catalog.opened.wait()
        except TimeoutError:
            _log.warning(
                "storage does not answer; starting without this catalog",
                catalogs=[name for name, each in self.by_name.items() if not each.opened.is_set()],
                log_root=str(self._root),
                waited_s=self._shared.settings.opening_patience_s,
            )

    async def _follow_root(self) -> None:
        while True:
            await asyncio.sleep(_DISCOVER_EVERY_S)
            try:
                await self._discover()
            except TailraceError as error:
                _log.warning("log root unreadable", error=str(error))
            except Exception:  # a bug must not end the discovery of catalogs: log it and retry
                _log.exception("log root not followed")

    async def _discover(self) -> None:
        """Begin to open new catalogs; the task of a dropped catalog ends by itself."""
        loop = asyncio.get_running_loop()
        known = frozenset(self.by_name)
        # Listing a folder may block, so it runs in a thread. It need not check the catalogs that are known.
        found = await loop.run_in_executor(self._threads, catalog_names, self._root, known)
        for name in found:
            if name not in self.by_name:
                catalog = ObservedCatalog(
                    self._root / name, self._threads, self._tails, self._shared
                )
                self.by_name[name] = catalog
                self._start(self._observe(name, catalog), f"observe {name}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _observe(self, name: str, catalog: ObservedCatalog) -> None:
        """Follow one catalog until it is dropped."""

        def forget() -> None:
            # A new catalog may already have the name.
            if self.by_name.get(name) is catalog:
                del self.by_name[name]

        measuring = self._start(self.disks.follow(name), f"measure {name}")
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
