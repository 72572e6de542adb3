"""A catalog behind a server, read by the server's calls for history and state, under its grants.

Its view of the log has the published versions and the visible schemas, and no record batches: those stay at the
server. A read that loses its connection continues after the last rows that it returned, so nothing is missing
or repeated.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np

from tailrace.client import Client
from tailrace.criteria import Area, Content, Criteria
from tailrace.cursor import Cursor
from tailrace.errors import CatalogReplaced, PositionCompacted, TailraceError, TransportError
from tailrace.position import END, Position
from tailrace.retry import Retry
from tailrace.transport.blocking import BlockingTransport
from tailrace_server.log_read.bounds import RecordRange, following, span_of
from tailrace_server.sql.scans import LogSource
from tailrace_server.sql.version_bounds import micros, refuse_future
from tailrace_server.wal.state.expired_bodies import ExpiredBodies
from tailrace_server.wal.state.schema_history import SchemaHistory
from tailrace_server.wal.state.state import LogState
from tailrace_server.wal.state.view import LogView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence

    from tailrace.capture import Capture
    from tailrace.reads.history import HistoryHeader
    from tailrace.reads.pinned_read import PinnedRead
    from tailrace.reads.state import StateRow
    from tailrace.schema import Schema
    from tailrace_server.log_read.request import Bound, ReadRequest

_ATTEMPTS: Final = Retry(attempts_max=8)
"""The attempts to continue a read: about 20 s in all, as a server takes to restart."""
_PAGE_ROWS: Final = 65_536
"""Rows of a state in one answer; a lost connection repeats at most as many."""
_KEYS: Final = 1_000
"""Keys in one request."""
_NO_FILES: Final[Any] = None
"""Scans of a server read no files."""

_T = TypeVar("_T")
_Read = TypeVar("_Read", bound="PinnedRead[Any, Any, Any, Any]")


class ServedCatalog:
    """A catalog behind a server; a context manager. Threads may share it."""

    def __init__(self, request: ReadRequest) -> None:
        """Connect, and read the versions and schemas that the caller may see.

        Args:
            request: The read, with the address of the server.

        Raises:
            TransportError: The server cannot be reached; the error has its address.
            TlsFailed, Unauthenticated, NotPermitted: The server refuses the caller, or TLS does not fit.
            CatalogUnknown: There is no such catalog.
        """
        assert request.server is not None
        self._name = request.catalog
        named = (
            () if request.entity_type is None else (Criteria(entity_type=(request.entity_type,)),)
        )
        self._asked = named
        """Criteria that the caller must be granted."""
        opener = BlockingTransport.opener(request.server, request.tls, token=request.token)
        self._client = Client(opener)
        self._thread = _ClientThread(self._client)
        self._spans: list[tuple[int, Schema]] = []
        """First version of each schema, oldest first."""
        self._until = 0
        """The last version whose schema is known."""
        try:
            self.view = self._newest()
        except BaseException as error:
            self.close()
            if type(error) is TransportError:
                raise TransportError(
                    f"server {request.server}: {error}; start it with `tailrace serve`, or correct its address"
                ) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._thread.close()

    # The published versions.

    def refreshed(self) -> LogView:
        """Ask for what was published since, and return the newest versions."""
        self.view = self._newest()
        return self.view

    def _newest(self) -> LogView:
        with self._thread.entered(
            self._client.read_changes(self._name, self._asked, limit=1)
        ) as read:
            header = read.header
        self._learn_schemas(header.anchor)
        schemas = SchemaHistory()
        for since, schema in self._spans:
            schemas.append(since, schema, 0, whole=True)
        empty = LogState(self._name, header.catalog_uuid)
        timestamp = header.closed_until - 1
        return LogView(
            uuid=header.catalog_uuid,
            opening=None,
            name=self._name,
            published=header.anchor,
            oldest=header.oldest,
            end_row=0,
            committed=header.anchor,
            newest_timestamp=timestamp,
            revision=0,
            entry=0,
            unknown_changes=(),
            whole_removals=empty.whole_removals,
            bodies=ExpiredBodies((), schemas),
            _batches=empty.batches.columns,
            _batch_count=0,
            _segments=empty.batches.segments,
            # Commit times come with the records. Only that of the newest version is known.
            _commits=np.array([[header.anchor], [timestamp]], np.int64),
            _commit_count=1 if header.anchor else 0,
            _schemas=schemas,
        )

    def _learn_schemas(self, published: int) -> None:
        """Ask for the schemas of new versions, newest first."""
        found: list[tuple[int, Schema]] = []
        version = published
        while version > self._until:
            span = self._thread.call(self._client.schema_span(self._name, version))
            found.append((span.since, span.schema))
            version = span.since - 1
        known = {since for since, _ in self._spans}
        self._spans += [each for each in reversed(found) if each[0] not in known and each[1].id]
        self._until = published

    def source(self) -> LogSource:
        """Return the log as a source of scans."""
        return LogSource(self.view, _NO_FILES, _NO_FILES)

    def must_have(self, uuid: object, version: int) -> None:
        """Check that this is a certain log; its reads wait for their versions.

        Raises:
            CatalogReplaced: The catalog is another one now.
        """
        if self.view.uuid != uuid or self.view.published < version:
            self._check(self.refreshed().uuid, uuid)

    def _check(self, found: object, uuid: Any) -> None:
        if found != uuid:
            raise CatalogReplaced(self._name, uuid, found)  # type: ignore[arg-type]

    # Positions.

    def span(self, request: ReadRequest) -> RecordRange:
        """Return the range of a request.

        Raises:
            InvalidRequest, PositionCompacted, CatalogReplaced, HistoryReplaced, CursorAhead: As `span_of`.
        """
        starting, ending = request.starting, request.ending
        first: Bound | None = starting
        last: Bound | None = ending
        if isinstance(starting, datetime):
            found = self._first(from_time=starting)
            first = self.view.published + 1 if found is None else found.version
        if isinstance(ending, datetime):
            refuse_future(self.view, ending)
            found = self._first(to_time=micros(ending) + 1, reverse=True)
            last = 0 if found is None else found.version
        # The server checks that a cursor is of this log and history.
        if isinstance(starting, Cursor):
            self._header(after=starting)
        if isinstance(ending, Cursor):
            self._header(before=ending)
        return span_of(self.view, replace(request, starting=first, ending=last))

    def version_of(self, request: ReadRequest) -> int:
        """Return the version of a state.

        Raises:
            EntityTypeUnknown, InvalidRequest, PositionCompacted: The request does not fit the log.
        """
        assert request.entity_type is not None
        at = self.view.published if request.at is None else request.at
        read = self._client.state(self._name, request.entity_type, at=at, keys_only=True, limit=1)
        with self._thread.entered(read):
            return read.header.version

    def cursor(self, position: Position) -> Cursor:
        """Return the cursor after a position, with the commit time of its version if that is visible."""
        view, time_of = self.view, None
        if position.version in (0, view.published):
            time_of = view.known_timestamp_of(position.version)
        elif (found := self._first(until=position.version, reverse=True)) is not None:
            time_of = found.commit_timestamp if found.version == position.version else None
        return Cursor(view.uuid, *position, commit_timestamp=time_of)

    def _first(self, **bounds: Any) -> Capture | None:
        """Return the first capture within bounds, or with ``reverse`` the last one."""
        read = self._client.read_changes(self._name, **bounds, limit=1, anchor=self.view.published)
        with self._thread.entered(read):
            if read.header.truncated:
                newest = Position(self.view.published, END)
                raise PositionCompacted(self.view.oldest.preceding(), read.header.oldest, newest)
            return next((batch[0] for batch in self._thread.iterated(read.batches())), None)

    def _header(self, **bounds: Any) -> HistoryHeader:
        with self._thread.entered(self._client.read_changes(self._name, **bounds, limit=1)) as read:
            return read.header

    def version_within(
        self,
        after: int,
        last: int,
        max_rows: int,
        entity_type: str | None,
        schema_version: int | None,
    ) -> int:
        """Return the last version of a batch; as `OpenLog.version_within`, with the newest schema."""
        criteria = () if entity_type is None else (Criteria(Area.DATA, (entity_type,)),)
        read = self._client.read_changes(
            *(self._name, criteria), since=after + 1, limit=max_rows + 1, anchor=last
        )
        count = 0
        with self._thread.entered(read):
            for batch in self._thread.iterated(read.batches()):
                count += len(batch)
                if count > max_rows:
                    return max(after + 1, batch[-1].version - 1)
        return last

    # Records and rows.

    def changes(
        self, criteria: tuple[Criteria, ...], span: RecordRange, content: Content
    ) -> Iterator[list[Capture]]:
        """Yield the captures of a range.

        Args:
            criteria: The captures to read; none: all.
            span: The range, with at least one position.
            content: The bodies to read.
        """
        last = span.end.preceding()

        given: dict[str, Any] = {
            "content": content,
            "until": last.version if last.index == END else last,
            "wait_for": last.version,
        }

        def begin(behind: Capture | None) -> PinnedRead[Any, Any, Any, Capture]:
            start: dict[str, Any] = {"since": following(span.begin)}
            if behind is not None:
                start = {"after": behind.cursor}
            return self._client.read_changes(self._name, criteria, **start, **given)

        yield from self._repeated(begin, skips=False)

    def rows(
        self,
        entity_type: str,
        at: int,
        keys: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> Iterator[list[StateRow]]:
        """Yield the rows of a table.

        Args:
            entity_type: Name of the table at the version.
            at: The version.
            keys: The only keys to read; None: all.
            columns: Names of the columns in the images; None: all; empty: rows without images.
            where: Condition on the rows.
        """
        given: dict[str, Any] = {"where": where, "limit": _PAGE_ROWS, "columns": columns or ()}
        given["keys_only"] = columns is not None and not columns
        for start in range(0, 1 if keys is None else len(keys), _KEYS):
            given["keys"] = () if keys is None else keys[start : start + _KEYS]
            place: dict[str, Any] = {"at": at, "wait_for": at}
            while place:
                begin = partial(self._client.state, self._name, entity_type, **given, **place)
                end = yield from self._repeated(begin, skips=True)
                place = {"page": end.next_page} if end.next_page else {}

    def _repeated(
        self, begin: Callable[..., PinnedRead[Any, Any, Any, _T]], *, skips: bool
    ) -> Generator[list[_T], None, Any]:
        """Yield the items of a read, begin it again after a failure that may pass, and return its end.

        Args:
            begin: Returns the read, given the last item that was returned if ``skips`` is False.
            skips: True if each read begins with the same items: those that were returned are left out.
        """
        last: _T | None = None
        done = attempt = 0
        while True:
            skip = done if skips else 0
            try:
                with self._thread.entered(begin() if skips else begin(last)) as read:
                    self._check(read.header.catalog_uuid, self.view.uuid)
                    for batch in self._thread.iterated(read.batches()):
                        new, skip = batch[skip:], max(0, skip - len(batch))
                        if new:
                            yield new
                            last, done, attempt = new[-1], done + len(new), 0
                    return read.end
            except TailraceError as error:
                attempt += 1
                if not error.retriable or not _ATTEMPTS.allows(attempt):
                    raise
            time.sleep(_ATTEMPTS.wait_s(attempt))


class _ClientThread:
    """A thread with the event loop of a client, so that callers with and without a loop may wait for it."""

    def __init__(self, client: Client) -> None:
        """Start the thread and open the client."""
        self._client = client
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace client", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._ready.set_exception(error)

    async def _main(self) -> None:
        async with self._client:
            self._ready.set_result(asyncio.get_running_loop())
            await self._stop.wait()

    def close(self) -> None:
        """Close the client and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @contextmanager
    def entered(self, read: _Read) -> Iterator[_Read]:
        """Enter a read on the loop, and leave it."""
        self.call(read.__aenter__())
        try:
            yield read
        finally:
            self.call(read.__aexit__(None, None, None))

    def iterated(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        """Yield the items of an iterator of the loop."""

        async def following_item() -> _T | None:
            return await anext(items, None)

        while (item := self.call(following_item())) is not None:
            yield item
