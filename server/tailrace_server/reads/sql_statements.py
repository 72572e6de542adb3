"""The SQL statements that run at the same time, and the threads that compute them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from tailrace.errors import ServerFull, ServerStopping
from tailrace_server.reads.sql_read import SqlRead
from tailrace_server.resources.event_loop import shut_down
from tailrace_server.resources.statistics import SqlStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.reads.log_read import ReadTerms
    from tailrace_server.reads.sql_request import SqlRequest
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.sql.duck.processes import DatabasesBeside
    from tailrace_server.sql.shown import ShownTables

_PATIENCE_S: Final = 5.0
"""The longest time, in seconds, that a statement waits for a place."""


class Statements:
    """The running statements of one engine; their number is limited. Used on the event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        """Begin without statements; threads are started when needed."""
        self._settings = settings
        self._places = asyncio.Semaphore(settings.sql_statements)
        self._threads = ThreadPoolExecutor(settings.sql_statements, "tailrace-sql")
        self._processes: DatabasesBeside | None = None
        self._open: WeakSet[SqlRead] = WeakSet()
        self._stopping = False
        self._lock = threading.Lock()
        self._statements = self._answered = self._refused = self._left = self._answer_bytes = 0
        self._computing_s = 0.0

    async def begun(
        self,
        log: FollowedLog,
        request: SqlRequest,
        terms: ReadTerms,
        shown: ShownTables | None,
        row_bytes_max: int,
        *,
        may_define: bool,
        readers_of: Callable[[str], int],
    ) -> SqlRead:
        """Begin a statement and return it; the caller has to close it. Arguments are those of ``SqlRead``.

        Raises:
            ServerFull: Too many statements are running.
            ServerStopping: The server is stopping.
            TailraceError: ``SqlRead.begin`` raises it.
        """
        # From here on the place is freed by `on_closed`, which is called after the end of any statement.
        await self._place()
        loop = asyncio.get_running_loop()

        def on_closed(seconds: float) -> None:
            loop.call_soon_threadsafe(self._note_closed, read, seconds)

        try:
            read = SqlRead(
                *(log, request, terms),
                settings=self._settings,
                row_bytes_max=row_bytes_max,
                threads=self._threads,
                databases=self._databases,
                shown=shown,
                may_define=may_define,
                readers_of=readers_of,
                on_closed=on_closed,
            )
        except BaseException as error:
            self._places.release()
            self._refused += isinstance(error, Exception)
            raise
        self._open.add(read)
        self._statements += 1
        try:
            # `stop` may have been called during the wait for the place, and has not seen this statement.
            if self._stopping:
                read.end(_stopping())
            await read.begin()
        except BaseException as error:
            # The caller does not get this statement, so it has to be closed here.
            read.is_refused = isinstance(error, Exception)
            read.close()
            raise
        return read

    def _note_closed(self, read: SqlRead, seconds: float) -> None:
        """Free the place of a closed statement, and count its outcome."""
        self._places.release()
        self._statements -= 1
        self._computing_s += seconds
        self._answer_bytes += read.answer_bytes
        if read.is_refused:
            self._refused += 1
        elif read.is_answered:
            self._answered += 1
        else:
            self._left += 1

    def _databases(self) -> DatabasesBeside:
        """Return the databases that compute statements; called in one of the threads."""
        # Imported late: a server without SQL requests need not load DuckDB.
        from tailrace_server.sql.duck.processes import DatabasesBeside

        # Several threads may call this at the same time.
        with self._lock:
            if self._processes is None:
                self._processes = DatabasesBeside()
            return self._processes

    async def _place(self) -> None:
        count = self._settings.sql_statements
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._places.acquire()
        except TimeoutError:
            self._refused += 1
            raise ServerFull(
                f"{count} statements are already running, the limit (sql_statements); try again"
            ) from None

    def statistics(self) -> SqlStatistics:
        """Return the current figures."""
        return SqlStatistics(
            statements=self._statements,
            computing=sum(read.is_computing for read in self._open),
            answered=self._answered,
            refused=self._refused,
            left=self._left,
            computing_s=self._computing_s,
            answer_bytes=self._answer_bytes,
        )

    def stop(self) -> None:
        """End all statements, and refuse new ones. Idempotent."""
        self._stopping = True
        for read in tuple(self._open):
            read.end(_stopping())

    async def close(self) -> None:
        """End all statements, and wait for the end of their threads and processes."""
        self.stop()
        # Threads first, because they use the processes.
        await shut_down(self._threads)
        if self._processes is not None:
            self._processes.close()


def _stopping() -> ServerStopping:
    return ServerStopping("the server is stopping; try again shortly")
