"""One catalog in the engine: it is opened, observed, and opened again after errors of its log."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.errors import CatalogReplaced, LogMissing, TailraceError, again, kept
from tailrace_server.catalogs.catalog_info import writers_of
from tailrace_server.catalogs.observer import Observer
from tailrace_server.errors import as_tailrace_error
from tailrace_server.log_cache.catalog_reader import CatalogReader
from tailrace_server.log_cache.damage import Damage
from tailrace_server.resources.faults import CatalogVersions, ServerFault
from tailrace_server.wal.catalog import SYSTEM_CATALOG, list_catalogs, open_catalog
from tailrace_server.wal.files.catalog_folder import is_dropped
from tailrace_server.wal.files.documents import CATALOG_FILE
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.tailer import Tailer

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from concurrent.futures import Executor
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.catalogs.observer import SharedParts
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.tail_pool import TailPool
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.upkeep.keeping import Excess

CLOCK_AHEAD_S: Final = 60.0
"""Seconds in the future from which a commit is reported as a fault; clocks with NTP differ by less than one."""
_log = structlog.get_logger("tailrace.engine")


class ObservedCatalog:
    """Supervisor of the observer of one catalog's folder; ``run`` is its task."""

    def __init__(self, path: Path, threads: Executor, tails: TailPool, shared: SharedParts) -> None:
        """Bind to a catalog's folder; nothing is read before ``run``, and then only in the given threads."""
        self._path = path
        self._threads = threads
        self._tails = tails
        self._shared = shared
        self.error: TailraceError | None = None
        """The reason why the log cannot be read; None if it can be read, or before the first attempt."""
        self._told = ""
        """The text of the last error that was logged."""
        self._opening_since: float | None = None
        """Monotonic time at which the current attempt to open the log began; None if there is none."""
        self._tailer: Tailer | None = None
        self._reading: CatalogReader | None = None
        self.opened = asyncio.Event()
        """Event that is set when the first attempt to open the log has succeeded or failed."""
        self._uuid: UUID | None = None
        """The UUID of the log that was opened last; None before the first success."""
        self.observer: Observer | None = None
        """The observer; None while the log cannot be read."""
        self._gate: Callable[[], str] = str
        """Function that returns what publication waits for; an empty text without a gate."""

    def require(self) -> Observer:
        """Return the observer.

        Raises:
            TailraceError: The catalog's log cannot be read now; the error has the reason.
        """
        if self.observer is None:
            assert self.error is not None
            raise again(self.error)
        return self.observer

    def faults(self) -> list[ServerFault]:
        """Return the current faults of the log: unreadable, not followed, damaged, or with a wrong clock."""
        name, now = self._path.name, time.monotonic()
        if self.error is not None:
            return [ServerFault("log_unreadable", name, str(self.error))]
        tailer, since = self._tailer, self._opening_since
        # Seconds since the tailer should have read, or since the current attempt to open began.
        unseen_s = now - (tailer.due_at if tailer is not None else now if since is None else since)
        found = []
        if unseen_s >= self._shared.settings.standstill_s:
            reason = (
                f"its log could not be read for {unseen_s:.0f} s: its storage does not answer; check the "
                "mount, or restart the server if the mount works"
            )
            found.append(ServerFault("log_not_read", name, reason))
        if self._reading is not None:
            damaged = self._reading.damage.reasons().items()
            found += [ServerFault(kind, name, reason) for kind, reason in damaged]
        if self.observer is not None:
            newest = self.observer.log.view.newest_timestamp
            if (ahead_s := newest / 1e6 - time.time()) > CLOCK_AHEAD_S:
                found.append(ServerFault("clock_ahead", name, _clock_reason(ahead_s)))
        return found

    def look(self) -> None:
        """Check whether damaged places of the log have been repaired; blocks."""
        reading, observer = self._reading, self.observer
        if reading is not None:
            reading.damage.look(None if observer is None else observer.log.view)

    def versions(self) -> CatalogVersions | None:
        """Return the log's published and committed versions; None while it cannot be read."""
        one = self.observer
        return (
            None
            if one is None
            else CatalogVersions(one.log.view.published, one.committed, self._gate())
        )

    def excess(self) -> Excess | None:
        """Return by how much the log exceeds the size in its settings; None if it does not."""
        return None if self.observer is None else self.observer.log.excess

    async def run(self, forget: Callable[[], None]) -> None:
        """Observe the catalog until cancelled; retry at intervals while its log cannot be read.

        Returns when the folder of an unreadable log is gone for good: the catalog was dropped, or could never
        be opened.

        Args:
            forget: Function that removes the catalog from the list of catalogs. It is called in the same step
                that ends a dropped catalog's subscriptions. So a subscriber that reconnects at once finds the
                new catalog.

        Raises:
            CatalogReplaced: The catalog was dropped or replaced; its subscriptions have ended with this error.
        """
        while True:
            try:
                await self._observe(forget)
            except CatalogReplaced:
                raise
            except Exception as error:  # an error must end only this catalog's subscriptions
                self._report(error)
            finally:
                if self._reading is not None:
                    self._reading.forget()
                self.observer = self._tailer = self._reading = self._opening_since = None
                self.opened.set()
            await asyncio.sleep(self._shared.settings.reopen_interval_s)
            loop = asyncio.get_running_loop()
            if await loop.run_in_executor(self._threads, self._is_gone_for_good):
                return

    def _open(self) -> CommitLog:
        """Open the log; blocks.

        Raises:
            LogMissing: The log was open before, and its folder is missing now; it may come back.
            TailraceError: ``open_catalog`` raises it.
        """
        # Measured from here, in the thread: time in the thread pool's queue says nothing about the storage.
        self._opening_since = time.monotonic()
        if self._uuid is not None and _is_gone(self._path / CATALOG_FILE):
            raise LogMissing(self._path.name)
        return open_catalog(self._path.parent, self._path.name)

    def _is_gone_for_good(self) -> bool:
        """Return True if the catalog was dropped, or its folder never had a log; blocks."""
        if self._uuid is None:
            return _is_gone(self._path / CATALOG_FILE)
        return is_dropped(self._path.parent, self._uuid) and _is_gone(self._path / CATALOG_FILE)

    def _report(self, error: Exception) -> None:
        """Store the reason why the log cannot be read, and log it if it is new: retries are not logged."""
        known, self._told = self._told, str(as_tailrace_error(error))
        if self._told != known:
            foreseen = isinstance(error, TailraceError)
            _log.error(
                "log unreadable",
                catalog=self._path.name,
                error=self._told,
                exc_info=None if foreseen else error,
            )
        self.error = kept(error)

    async def _observe(self, forget: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        log = await loop.run_in_executor(self._threads, self._open)
        view = log.view
        self._uuid = view.uuid
        self._gate = lambda: log.gate

        async def refresh() -> LogView:
            await loop.run_in_executor(self._threads, log.refresh)
            # Return the view even if `refresh` found nothing new: the tailer may have read the news a moment
            # earlier without having delivered it yet.
            return log.view

        damage = Damage(view.uuid, log.store)
        with BatchReader(self._path, damage.add) as reader:
            reading = CatalogReader(view, reader, self._shared.cache, self._shared.settings, damage)
            observer = Observer(
                view,
                reading,
                refresh,
                lambda: log.committed,
                partial(writers_of, log),
                self._shared,
            )
            with suppress(TailraceError):  # a request for a view raises the error again
                await observer.log.definitions.look(view.schema_of(view.published))
            self.observer, self.error, self._opening_since = observer, None, None
            self._reading = reading
            self.opened.set()
            small_commits = reading.small_commits
            # The watch of views must not be a context inside `observer.run`: its exit awaits, and there must be
            # no await between the end of a dropped catalog's subscriptions and `forget`.
            async with (
                observer.views,
                Tailer(
                    log,
                    self._tails,
                    prepare=small_commits.read_published,
                    read_ahead=small_commits.read_arriving,
                ) as tailer,
            ):
                self._tailer = tailer
                try:
                    await observer.run(tailer)
                except CatalogReplaced:
                    forget()
                    raise


def _clock_reason(ahead_s: float) -> str:
    return (
        f"its newest commit is {ahead_s:,.0f} s in the future: the clock of a writer or of this server "
        "is or was wrong; set both (NTP). Commit timestamps never decrease, so all commits have future "
        "times until then: retention by age, reads as of a time and lags in seconds are wrong by this "
        "amount"
    )


def _is_gone(path: Path) -> bool:
    """Return True if a file certainly does not exist; after any other error it counts as existing."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def catalog_names(root: Path, known: Container[str] = ()) -> tuple[str, ...]:
    """Return the names of the catalogs under a root, with the system log; ``known`` ones are not checked."""
    system = SYSTEM_CATALOG in known or (root / SYSTEM_CATALOG / CATALOG_FILE).exists()
    return (*list_catalogs(root, known), *((SYSTEM_CATALOG,) if system else ()))
