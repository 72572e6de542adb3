"""One SQL statement: pinned to the newest published version at its begin, computed at the speed of its reader.

::

    reader takes a message ─▶ the next batch is computed, in a thread ─▶ cut into messages
    reader goes away, time is over, the server stops ─▶ DuckDB is interrupted

Only one batch is computed ahead. So memory does not grow with the size of the result. A reader that stops
reading occupies one of the places for statements until the statement's time is over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, PositionCompacted, TailraceError, again
from tailrace.position import END, FIRST
from tailrace_server.log_cache.frames import Frames
from tailrace_server.reads.log_read import LogRead
from tailrace_server.reads.sql_forms import answer_columns, form_of
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.scans import LogSource
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor
    from uuid import UUID

    import pyarrow as pa

    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.reads.log_read import ReadTerms
    from tailrace_server.reads.sql_forms import AnswerColumn, AnswerForm, Piece
    from tailrace_server.reads.sql_request import SqlRequest
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.sql.duck.databases import Databases
    from tailrace_server.sql.query import Query
    from tailrace_server.sql.shown import ShownTables
    from tailrace_server.wal.segment.reader import SegmentMissing
    from tailrace_server.wal.state.view import LogView

_T = TypeVar("_T")
_log = structlog.get_logger("tailrace.sql")


def _take_left(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a job whose caller was cancelled, and log it if it is a defect."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, TailraceError):
        _log.error("a statement failed after its reader had left", exc_info=error)


class StatementWork:
    """The jobs of one statement: they run in a pool of threads, one at a time. Used on the event loop."""

    def __init__(self, threads: ThreadPoolExecutor, end: Callable[[], None]) -> None:
        """Begin without a job; ``end`` releases resources, and is called once, in a thread, after all jobs."""
        self._threads = threads
        self._end = end
        self._lock = threading.Lock()
        self._busy = self._closing = False
        self.computed_s = 0.0
        """Wall-clock seconds that the jobs have taken so far."""

    async def run(self, job: Callable[[], _T]) -> _T:
        """Run a job and return its result.

        A cancelled caller does not stop the job: it continues in its thread, and ``end`` runs after it.
        """
        with self._lock:
            assert not self._busy, "one job at a time"
            self._busy = True
        future = asyncio.wrap_future(self._threads.submit(self._ran, job))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Otherwise asyncio would log the job's error, which
            # usually just says that the statement was closed.
            future.add_done_callback(_take_left)
            raise

    def _ran(self, job: Callable[[], _T]) -> _T:
        began = time.monotonic()
        try:
            return job()
        finally:
            self.computed_s += time.monotonic() - began
            # Under the lock exactly one of two sides sees that both have happened, the end of the last job and
            # `close`: so `end` runs exactly once, and never while a job runs.
            with self._lock:
                self._busy = False
                closing = self._closing
            if closing:
                self._end()

    @property
    def is_busy(self) -> bool:
        """True if a job runs, or waits for a thread."""
        return self._busy

    @property
    def is_closed(self) -> bool:
        """True after ``close``: no job may begin any more."""
        return self._closing

    def close(self) -> None:
        """Run ``end`` after the current job, or at once if there is none. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            busy = self._busy
        if not busy:
            self._threads.submit(self._end)


class SqlRead(LogRead):
    """One statement. Call ``begin`` first, then iterate over it once."""

    def __init__(
        self,
        log: FollowedLog,
        request: SqlRequest,
        terms: ReadTerms,
        *,
        settings: EngineSettings,
        row_bytes_max: int,
        threads: ThreadPoolExecutor,
        databases: Callable[[], Databases],
        shown: ShownTables | None,
        may_define: bool,
        readers_of: Callable[[str], int],
        on_closed: Callable[[float], None],
    ) -> None:
        """Bind a statement to a log; nothing is computed before ``begin``.

        Args:
            log: The log.
            request: The statement.
            terms: The terms on which the statement was admitted.
            settings: The settings with the statement's limits.
            row_bytes_max: The most bytes of a row; a larger row is an error.
            threads: The pool of threads in which the statement waits for its results.
            databases: Function that returns the databases that compute statements.
            shown: The granted tables; None: the whole log.
            may_define: True if the statement may define views and change tables.
            readers_of: Function that returns the number of subscriptions to a view; called on the event loop.
            on_closed: Function that is called once, in a thread, when all resources are released, with the
                seconds that the statement took.
        """
        super().__init__(terms)
        self._log = log
        self._request = request
        self._settings = settings
        self._row_bytes_max = row_bytes_max
        self._databases = databases
        self._shown = shown
        self._may_define = may_define
        self._readers_of = readers_of
        self._view = view = log.view
        self.version = view.published
        """The version that is read."""
        self.closed_until = view.timestamp_of(self.version) + 1 if self.version else 0
        """Commit timestamp in microseconds below which no more records can appear; 0 for an empty log."""
        self.since_version = self._first_version()
        """The first version of a poll, ``$from``; None for other statements."""
        self.columns: tuple[AnswerColumn, ...] = ()
        """The columns of the result; set by ``begin``."""
        self.answer_bytes = 0
        """Bytes of the result that have been delivered so far."""
        self.is_answered = False
        """True if the result was read to its end."""
        self.is_refused = False
        """True if an error ended the statement."""
        self._interruption = Interruption()
        self._on_closed = on_closed
        self._work = StatementWork(threads, self._give_back)
        self._query: Query | None = None
        self._pieces: deque[Piece] = deque()
        """The messages of the last computed batch that have not been delivered yet."""

    @property
    def catalog_uuid(self) -> UUID:
        """The UUID of the log that is read."""
        return self._view.uuid

    @property
    def commit_timestamp(self) -> int:
        """Commit time of the version, in microseconds; 0 for an empty log, or if the log no longer has it."""
        return self._view.known_timestamp_of(self.version) or 0

    @property
    def cursor(self) -> Cursor:
        """The cursor after the version, for a read that continues there."""
        return self._view.cursor(self.version, END)

    @property
    def is_computing(self) -> bool:
        """True if the statement uses, or waits for, a thread."""
        return self._work.is_busy

    def resume_cursor(self) -> None:
        """Return None: a result cannot be resumed in its middle."""

    def _let_go(self) -> None:
        pass  # the computed batch cannot be read again, so it is not dropped

    def _first_version(self) -> int | None:
        request, view = self._request, self._view
        if request.from_time is not None:
            # A poll must not skip versions silently, so refuse a time before the oldest retained version.
            oldest = view.oldest
            if oldest > FIRST and request.from_time < view.timestamp_of(oldest.version):
                raise PositionCompacted(oldest.preceding(), oldest, self._log.newest)
            return view.version_at(request.from_time)
        if not request.is_poll:
            return None
        if request.since_version == 0:
            return view.oldest.version
        # The client has read up to some version. A cursor says of which log it was, a number does not. Either
        # is checked: a log that was restored may not have that version.
        passed = request.after or Cursor(view.uuid, request.read_version, END)
        refuse_other_history(view, passed)
        return passed.version + 1

    async def begin(self) -> None:
        """Start the statement, up to the columns of its result.

        Raises:
            InvalidRequest: The statement is invalid; the error has the place.
            PositionCompacted: The statement reads versions that the log no longer has.
        """
        # The statement runs in a thread. These functions let it use state that belongs to the event loop.
        loop = asyncio.get_running_loop()

        def newer(missing: SegmentMissing) -> LogView:
            return asyncio.run_coroutine_threadsafe(self._recovered(missing), loop).result()

        async def count(name: str) -> int:
            return self._readers_of(name)

        def readers_of(name: str) -> int:
            return asyncio.run_coroutine_threadsafe(count(name), loop).result()

        reading = self._log.reading
        source = LogSource(self._view, reading.batches, newer, reading.damage.add, self._shown)
        self._answer, self.columns = await self._run(lambda: self._begun(source, readers_of))

    async def _recovered(self, missing: SegmentMissing) -> LogView:
        await self._log.recover(missing, self._log.view.end_row)
        return self._log.view

    def _begun(
        self, source: LogSource, readers_of: Callable[[str], int]
    ) -> tuple[AnswerForm, tuple[AnswerColumn, ...]]:
        # Imported late: a server without SQL requests need not load DuckDB.
        from tailrace_server.sql.query import Query, QueryLimits

        settings = self._settings
        limits = QueryLimits(settings.sql_memory_bytes, settings.sql_s, settings.sql_rows)
        request = self._request
        polled = None if self.since_version is None else (self.since_version, self.version)
        self._query = query = Query(
            *(source, request.statement, request.parameters, limits, self._interruption),
            polled=polled,
            may_define=self._may_define,
            databases=self._databases(),
            readers_of=readers_of,
            on_misfit=request.on_misfit,
        )
        self._batches: Iterator[pa.RecordBatch] = query.batches()
        return form_of(request.form, query.schema), answer_columns(query.schema)

    async def _run(self, job: Callable[[], _T]) -> _T:
        """Run a job and return its result; if the read was ended meanwhile, raise its error instead."""
        if not self._work.is_closed:
            try:
                return await self._work.run(job)
            except Exception:
                if self.error is None:
                    raise
        raise again(self.error or InvalidRequest("the statement was closed"))

    def _next(self) -> list[Piece] | None:
        batch = next(self._batches, None)
        return None if batch is None else self._answer.messages(batch, self.last.bytes_max)

    async def __aiter__(self) -> AsyncIterator[Frames]:
        """Yield messages of whole rows; the last one may have no rows, only the end of the encoded form.

        Raises:
            InvalidRequest: A value cannot be computed, or the result exceeds a limit.
            SubscriberTooSlow: The reader stalled, and other readers needed the memory of its message.
            ServerFull: There was no room for a large message within the send deadline.
        """
        messages = self._messages()
        try:
            async for frames in messages:
                self.answer_bytes += len(frames.data)
                yield frames
                del frames
            self.is_answered = True
        except Exception:
            self.is_refused = True
            raise
        finally:
            await messages.aclose()

    async def _messages(self) -> AsyncGenerator[Frames, None]:
        while (pieces := await self._run(self._next)) is not None:
            # This generator is suspended while the reader is slow, so it must not hold data that was already
            # delivered: hence each `del`.
            self._pieces.extend(pieces)
            del pieces
            while self._pieces:
                data, rows = self._pieces.popleft()
                if len(data) > self._row_bytes_max:
                    raise InvalidRequest(
                        f"a row of the answer has {len(data)} bytes, but a message may have at most "
                        f"{self._row_bytes_max} (max_message_bytes): select fewer columns"
                    )
                await self._log.turns.turn(self)
                while not self.last.admits(len(data), self):
                    await self._turn()
                yield self._handed(Frames(data, rows, (self.version, END, 0)))
                del data
                await self._taken()
        if end := await self._run(self._answer.end):
            yield self._handed(Frames(end, 0, (self.version, END, 0)))
            await self._taken()

    def close(self) -> None:
        """Interrupt the computation and release all resources. Idempotent."""
        # Interrupt first: otherwise the resources would stay in use until the end of the computation.
        self._interruption.ask("the statement was closed")
        self._pieces.clear()
        self._work.close()
        super().close()

    def end(self, error: TailraceError) -> None:
        """Interrupt the computation and end the read with an error; see ``LogRead.end``. Idempotent."""
        self._interruption.ask(str(error))
        super().end(error)

    def _give_back(self) -> None:
        """Close the statement and report its end; called in a thread."""
        try:
            if self._query is not None:
                self._query.close()
        finally:
            self._on_closed(self._work.computed_s)
