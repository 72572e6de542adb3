"""The sources of answers for ``tailrace sql``: a log's folder, or a server.

Both yield answers one after another, as batches that are read while they are printed. With ``--follow``, each
answer covers the versions since the last one.
"""

from __future__ import annotations

import asyncio
import io
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tailrace.cursor import Cursor
from tailrace.errors import PositionCompacted
from tailrace.position import END
from tailrace.retry import Retry, Timeouts
from tailrace.sql.calls import Poll
from tailrace_server.cli.terminal.output import note
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import Query
from tailrace_server.sql.scans import LogSource
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from tailrace import Client, SqlArrow
    from tailrace.errors import LogCorrupted
    from tailrace.sql.calls import Beginning, Misfits
    from tailrace_server.sql.query import QueryLimits
    from tailrace_server.wal.segment.reader import SegmentMissing
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """A statement to run, with its parameters and its repetition."""

    catalog: str
    text: str
    parameters: Mapping[str, Any]
    since: int | datetime | None = None
    """With ``--follow``, the first version or a commit time to begin at; None: the statement runs once."""
    every_s: float = 1.0
    """With ``--follow``, the interval between runs, in seconds."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    """The treatment of a value that its column's type cannot hold."""

    @property
    def misfits(self) -> Misfits:
        """The value of ``on_misfit`` in the client's words."""
        return "null" if self.on_misfit is OnMisfit.NULL else "refuse"


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One answer; its batches must be read before the next answer is requested."""

    version: int
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


# A log's folder.


def local_answers(
    asked: SqlStatement, root: Path, limits: QueryLimits, stopped: Interruption
) -> Generator[ShownAnswer, None, None]:
    """Yield the answer to a statement; with ``since``, one answer after another, for ever."""
    log = open_catalog(root, asked.catalog)
    begin = asked.since
    with BatchReader(log.path) as reader:
        while True:
            # With --follow, do not run the statement before there is a new version: it could only return no
            # rows.
            version = log.view.published
            since = None if begin is None else _first_version(log.view, begin)
            polled = None if since is None else (since, version)
            if since is None or version >= since:
                source = _source(log, reader)
                # With --follow each query has its own interruption; otherwise the caller stops the query by its
                # own, at Ctrl-C.
                interruption = stopped if since is None else Interruption()
                given = (source, asked.text, asked.parameters, limits, interruption)
                query = Query(
                    *given, polled=polled, may_define=since is None, on_misfit=asked.on_misfit
                )
                with query:
                    yield ShownAnswer(query.version, query.schema, query.batches())
                if since is None:
                    return
                begin = version + 1
            time.sleep(asked.every_s)
            log.refresh()


def _first_version(view: LogView, since: int | datetime) -> int:
    if isinstance(since, int):
        refuse_other_history(view, Cursor(view.uuid, max(since - 1, 0), END))
        return since or view.oldest.version
    micros = round(since.timestamp() * 1_000_000)
    if view.is_trimmed_at(micros):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, view.oldest)
    return view.version_at(micros)


def _source(log: CommitLog, reader: BatchReader) -> LogSource:
    """Return the log as a source of statements."""

    # Compaction or a trim may delete a segment while a statement runs. A newer view has another segment in its
    # place; if it still names the missing one, the log is damaged.
    def newer(missing: SegmentMissing) -> LogView:
        log.refresh()
        view = log.view
        if any(segment.path == missing.path for segment in view.segments()):
            raise missing
        return view

    return LogSource(log.view, reader, newer, _note_damage)


def _note_damage(damaged: LogCorrupted) -> None:
    note(f"{damaged}; the read avoided it. `tailrace log rebase --anew` makes the bases again")


# A server.


class ServerAnswers:
    """Answers of a server for a thread that prints them, while the client works on an event loop."""

    def __init__(self, client: Client, asked: SqlStatement) -> None:
        """Store the client and the statement; call this on the client's event loop."""
        self._client = client
        self._asked = asked
        self._loop = asyncio.get_running_loop()

    def answers(self) -> Generator[ShownAnswer, None, None]:
        """Yield the answer to the statement; with ``since``, one answer after another, for ever.

        Call it in another thread than that of the event loop.
        """
        asked = self._asked
        if asked.since is None:
            answer = self._client.sql_arrow(
                *(asked.catalog, asked.text), parameters=asked.parameters, misfits=asked.misfits
            )
            with self._entered(answer):
                yield self._shown(answer)
            return

        def ask(begin: Beginning) -> SqlArrow:
            return self._client.sql_arrow(
                *(asked.catalog, asked.text),
                parameters=asked.parameters,
                since=None if isinstance(begin, Cursor) else begin,
                after=begin if isinstance(begin, Cursor) else None,
                misfits=asked.misfits,
            )

        poll = Poll(ask, asked.since, asked.every_s, Retry(), Timeouts())
        with self._entered(poll):
            while True:
                yield self._shown(self._wait(anext(poll)))

    @contextmanager
    def _entered(self, resource: SqlArrow | Poll[SqlArrow]) -> Iterator[None]:
        self._wait(resource.__aenter__())
        try:
            yield
        finally:
            self._wait(resource.__aexit__(None, None, None))

    def _shown(self, answer: SqlArrow) -> ShownAnswer:
        pieces = aiter(answer)
        stream = pa.ipc.open_stream(io.BufferedReader(_Pieces(self, pieces), 1))

        def batches() -> Iterator[pa.RecordBatch]:
            yield from stream
            # Arrow stops at the end of its stream. Read on to the end of the answer, or the poll would take the
            # answer for incomplete and repeat its versions.
            while self.next_piece(pieces):
                pass

        return ShownAnswer(answer.header.version, stream.schema, batches())

    def _wait(self, work: Awaitable[_T]) -> _T:
        async def done() -> _T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    def next_piece(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Return the next piece of a stream; empty bytes at its end."""
        return self._wait(_next_or_nothing(pieces))


async def _next_or_nothing(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


class _Pieces(io.RawIOBase):
    """A file object over a stream that comes in pieces of bytes."""

    def __init__(self, answers: ServerAnswers, pieces: AsyncIterator[bytes]) -> None:
        self._answers = answers
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._answers.next_piece(self._pieces))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
