"""Reads a part of a table again while the stream of its changes continues.

::

    request in the server's log ──▶ temporary slot: point C and its snapshot ──▶ the stream reaches C
        ──▶ pages of rows, between the items of the stream ──▶ the rows of the log that the snapshot lacks

The snapshot sees every transaction that ends before C, and no other. So a row of it is the newest one, unless
the stream has changed it since C: then the log has the newer row already, or will have it. Such rows are left
out. The others are compared with the log, and differences become versions that readers see at once.

An update since C may lack large values that it did not change. The log would fill them in from a row that is
perhaps wrong, so the row's first update takes them from the snapshot.

The table is locked in ACCESS SHARE mode before C, so that nothing alters or truncates it until the end.
Memory: the keys that change meanwhile.
"""

from __future__ import annotations

import secrets
import select
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import pq, sql

from tailrace.errors import InvalidRequest
from tailrace_server.failpoints import reach
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import words_of
from tailrace_server.pipeline.feed.postgres.assembly import REQUESTS
from tailrace_server.pipeline.feed.postgres.database import SourceDatabase, parts_of
from tailrace_server.pipeline.feed.postgres.keyed_rows import SnapshotLookup, checked, images_in
from tailrace_server.pipeline.feed.postgres.positions import PostgresPosition, Request, slot_name
from tailrace_server.pipeline.feed.postgres.replication import ReplicationConnection, parameters_of
from tailrace_server.pipeline.feed.postgres.tables import SourceTables, entity_type_of
from tailrace_server.pipeline.feed.source import (
    PartedTransaction,
    SnapshotEnd,
    SnapshotRows,
    SourceRefused,
    SourceUnreachable,
    Transaction,
    TransactionBatch,
)
from tailrace_server.wal.record.images import completed
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from tailrace_server.pipeline.feed.postgres.database import PublishedTable
    from tailrace_server.pipeline.feed.postgres.options import ResnapshotOptions
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable
    from tailrace_server.pipeline.feed.source import Item
    from tailrace_server.wal.record.mutation import Mutation

_ROWS: Final = 1_000
"""Rows that are read or looked up at once."""
_RETRY_S: Final = 5.0
"""Time until a new attempt if the server has no room for a connection."""


def _published(request: Request, database: SourceDatabase, publication: str) -> PublishedTable:
    """Return the table of a request.

    Raises:
        SourceRefused: The publication does not have it.
    """
    for each in database.tables(publication):
        if (each.relation.schema, each.relation.name) == (request.schema, request.table):
            return each
    raise SourceRefused(f"publication {publication} has no table {request.schema}.{request.table}")


def _condition(request: Request) -> str:
    """Return the condition of a request for PostgreSQL.

    Raises:
        ConditionRefused: It is not one.
    """
    return words_of(parse(request.where)) if request.where else ""


def request_resnapshot(options: ResnapshotOptions) -> tuple[str, bool]:
    """Ask an ingest to read a part of a table again; return its slot, and True if it runs now.

    The table and the condition are checked first.

    Raises:
        InvalidRequest: An option is malformed, or the condition does not fit the table.
        SourceRefused: There is no such slot, or the publication has no such table.
        SourceUnreachable: The server cannot be reached.
    """
    schema, table = parts_of(options.table)
    name = slot_name(options.slot, options.catalog)
    request = Request(name, schema, table, options.where or "")
    condition, publication = _condition(request), options.publication or name
    parameters = parameters_of(options.dsn, "tailrace resnapshot")
    with closing(SourceDatabase(parameters)) as database:
        if (slot := database.slot(request.slot)) is None:
            raise SourceRefused(
                f"the server has no slot {request.slot}: name the --catalog or --slot of the ingest"
            )
        published = _published(request, database, publication)
        try:
            database.rows(f"EXPLAIN {published.selection(condition)}")
        except psycopg.Error as error:
            raise InvalidRequest(f"--where does not fit {request.table}: {error}") from error
        content = msgspec.json.encode(request).decode()
        # A transactional message is durable with its commit, and has a position in the stream.
        database.rows("SELECT pg_logical_emit_message(true, %s::text, %s::text)", REQUESTS, content)
        return name, slot.reader is not None


class Resnapshots:
    """The requests of one replication connection, which are done one after another."""

    def __init__(
        self,
        parameters: dict[str, str],
        publication: str,
        slot: str,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """Begin without requests.

        Args:
            parameters: Parameters of a connection.
            publication: Name of the publication.
            slot: Slot of the ingest.
            note: Prints a line.
            warn: Prints a warning.
        """
        self._server = parameters, publication
        self._slot = slot
        self._note, self._warn = note, warn
        self.pending: list[Request] = []
        """Requests that are not done, in their order; the position has them."""
        self._reading: _PartReading | None = None
        self._not_before = 0.0

    def ask(self, content: bytes) -> None:
        """Take a request from a logical message; one that is for another slot is passed over."""
        try:
            request = msgspec.json.decode(content, type=Request)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._warn(f"a message {REQUESTS} is not a request, and is passed over: {error}")
            return
        if request.slot == self._slot:
            self.pending.append(request)

    def noted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items of the stream, after noting their keys; each must be taken before the next."""
        for item in items:
            yield item if self._reading is None else self._reading.noted(item)

    def awaits(self, reached: int) -> bool:
        """Return True if the snapshot waits until the stream has reached another LSN."""
        return self._reading is not None and self._reading.awaits(reached)

    def wait(self, stream: ReplicationConnection, timeout_s: float) -> bool:
        """Wait until the stream or the snapshot may have more; return True if it is the stream."""
        reading = self._reading
        own = [] if reading is None or reading.waits_on is None else [reading.waits_on]
        return stream.socket in select.select([stream.socket, *own], [], [], timeout_s)[0]

    def items(self, reached: int) -> Iterator[SnapshotRows | SnapshotEnd]:
        """Yield what can be read of the first request without waiting: at most one page.

        Args:
            reached: The stream has yielded every transaction that ends up to this LSN.
        """
        if not self.pending or time.monotonic() < self._not_before:
            return
        if self._reading is None:
            self._reading = _PartReading(self.pending[0], *self._server)
        try:
            yield from self._reading.step(reached)
        except (SourceRefused, InvalidRequest) as error:
            self._warn(f"{self.pending[0]} is not read again: {error}")
        except SourceUnreachable as error:
            # The stream notices by itself if the server is gone.
            self._warn(
                f"{error}; {self.pending[0]} is read again from its beginning in {_RETRY_S:g} s"
            )
            self._not_before = time.monotonic() + _RETRY_S
            self.close()
            return
        else:
            if not self._reading.is_done:
                return
            self._note(f"{self.pending[0]} was read again: {self._reading.count:,} rows")
        self.close()
        self.pending.pop(0)

    def close(self) -> None:
        """Give the reading up; the request stays."""
        if self._reading is not None:
            self._reading.close()
        self._reading = None


class _PartReading:
    """The reading of one request."""

    def __init__(self, request: Request, parameters: dict[str, str], publication: str) -> None:
        self.is_done = False
        self.count = 0
        """Rows that were read."""
        self.waits_on: int | None = None
        """Socket with the answer that the last step waits for; None: it waits for something else."""
        self._request = request
        self._parameters, self._publication = parameters, publication
        self._entity_type = entity_type_of(request.schema, request.table)
        self._reached = 0
        self._refused: SourceRefused | None = None
        """The reason why the server refuses to look rows up."""
        self._forget()
        self._steps = self._run()

    def _forget(self) -> None:
        self._point: int | None = None
        """Point C; None: not known yet."""
        self._early: list[tuple[int, set[str], bool]] = []
        """End of each change before C was known, its keys, and whether it lacks values."""
        self._changed: set[str] = set()
        """Keys that have changed since C. The lock lets no truncate pass."""
        self._images: Callable[[Sequence[str]], Mapping[str, bytes]] = lambda _: {}
        """Returns the rows of some keys in the snapshot."""

    def close(self) -> None:
        self._steps.close()

    def awaits(self, reached: int) -> bool:
        return self._point is not None and reached < self._point

    def step(self, reached: int) -> Iterator[SnapshotRows | SnapshotEnd]:
        self._reached = reached
        self.waits_on = None
        for item in self._steps:
            if item is not None:
                yield item
            if self._refused is not None:
                raise self._refused
            if item is None:
                return
            if isinstance(item, SnapshotRows) and item.rows:
                return
        self.is_done = True

    def noted(self, item: Item) -> Item:
        """Note the keys of an item; return it with large values that it lacks and the snapshot has."""
        match item:
            case Transaction():
                found = [each for each in item.mutations if each.entity_type == self._entity_type]
                lacking = {
                    key: item.moved.get((each.entity_type, key), key)
                    for each in found
                    if (key := each.primary_key) is not None
                    and each.after is not None
                    and DEFAULT.may_be_in(each.after)
                }
                keys = self._keys_at(item.position, lacks=bool(lacking))
                if lacking and keys is self._changed:
                    item = replace(item, mutations=self._filled(item.mutations, lacking))
                keys.update(each.primary_key for each in found if each.primary_key is not None)
            case TransactionBatch():
                self._keys_at(item.position).update(self._keys_in(item.rows))
            case PartedTransaction() if self._entity_type in item.content.counts:
                keys, parts = self._keys_at(item.position), item.content.parts

                def noted() -> Iterator[pa.RecordBatch]:
                    for part in parts:
                        keys.update(self._keys_in(part))
                        yield part

                item = replace(item, content=item.content._replace(parts=noted()))
        return item

    def _keys_in(self, rows: pa.RecordBatch) -> list[str]:
        mask = pc.equal(rows["entity_type"].cast(pa.utf8()), self._entity_type)
        found: list[str] = rows["primary_key"].filter(mask).to_pylist()
        return found

    def _keys_at(self, position: str, *, lacks: bool = False) -> set[str]:
        """Return the set for the keys of a change.

        A batch may have transactions on both sides of C. It counts as later: its rows are complete, so the log
        has the newest state of their keys in any case.
        """
        lsn = PostgresPosition.of(position).number
        if self._point is not None:
            return self._changed if lsn > self._point else set()
        keys: set[str] = set()
        self._early.append((lsn, keys, lacks))
        return keys

    def _filled(self, mutations: Sequence[Mutation], lacking: Mapping[str, str]) -> list[Mutation]:
        """Return mutations with the values of the snapshot in the rows that have not changed since C."""
        # The log has the right values of the others, all of which came since C.
        images = self._looked_up([*{*lacking.values()} - self._changed]) or {}
        found = []
        for each in mutations:
            if each.entity_type == self._entity_type and each.after is not None:
                image = images.get(lacking.get(each.primary_key or "", ""))
                if image is not None:
                    each = replace(each, after=completed(each.after, image))
            found.append(each)
        return found

    def _run(self) -> Generator[SnapshotRows | SnapshotEnd | None, None, None]:
        while True:
            with (
                closing(SourceDatabase(self._parameters)) as pages,
                closing(SourceDatabase(self._parameters)) as keyed,
            ):
                for each in (pages, keyed):
                    each.rows("SET idle_in_transaction_session_timeout = 0")
                    each.rows("SET standard_conforming_strings = on")
                yield from self._lock(pages)
                published = _published(self._request, keyed, self._publication)
                table = SourceTables(keyed.type_of, keyed.key_of).put(published.relation)[1]
                point = yield from self._point_of(pages, keyed)
                late = [each for each in self._early if each[0] > point]
                if any(lacks for _, _, lacks in late):
                    # The log has filled in values of perhaps wrong rows since C: a later C is needed.
                    self._forget()
                    continue
                self._point = point
                self._changed.update(*(keys for _, keys, _ in late))
                self._images = SnapshotLookup(keyed, published, table).of
                while self._reached < point:
                    yield None
                yield from self._read(pages, published, table)
                return

    def _lock(self, pages: SourceDatabase) -> Iterator[None]:
        """Begin a transaction that has a lock of the table, and no snapshot yet."""
        name = sql.Identifier(self._request.schema, self._request.table).as_string()
        while True:
            pages.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                checked(pages, f"LOCK TABLE {name} IN ACCESS SHARE MODE NOWAIT")
                return
            except psycopg.errors.LockNotAvailable:
                pages.rows("ROLLBACK")
                yield None

    def _point_of(self, pages: SourceDatabase, keyed: SourceDatabase) -> Generator[None, None, int]:
        """Let two connections see the same snapshot; return its point C."""
        keyed.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with ReplicationConnection(self._parameters) as connection:
            slot = f"tailrace_again_{secrets.token_hex(8)}"
            creation = connection.create_slot(slot, temporary=True)
            while True:
                try:
                    next(creation)
                except StopIteration as done:
                    created = done.value
                    break
                self.waits_on = connection.socket
                yield None
            for each in (pages, keyed):
                each.rows(f"SET TRANSACTION SNAPSHOT '{created.snapshot}'")
        lsn: int = created.lsn
        return lsn

    def _read(
        self, pages: SourceDatabase, published: PublishedTable, table: SourceTable
    ) -> Generator[SnapshotRows | SnapshotEnd | None, None, None]:
        yield SnapshotRows(self._entity_type, {}, table.announced, hidden=False)
        selection = published.selection(_condition(self._request))
        checked(pages, f"DECLARE part NO SCROLL CURSOR FOR {selection}")
        while True:
            result = yield from self._answer(pages, f"FETCH {_ROWS} FROM part")
            rows = images_in(result, table)
            if not rows:
                break
            self.count += len(rows)
            reach("postgres.resnapshot_page")
            fresh = {key: image for key, image in rows.items() if key not in self._changed}
            yield SnapshotRows(self._entity_type, fresh, hidden=False)
        yield SnapshotEnd(self._entity_type, self._stays)

    def _stays(self, keys: Sequence[str]) -> set[str]:
        stay = self._changed.intersection(keys)
        if self._request.where:
            # A row of the log is not in the part that was read; it may still exist.
            left = [each for each in keys if each not in stay]
            for start in range(0, len(left), _ROWS):
                existing = self._looked_up(left[start : start + _ROWS])
                if existing is None:
                    return {*keys}
                stay.update(existing)
        return stay

    def _looked_up(self, keys: Sequence[str]) -> Mapping[str, bytes] | None:
        """Return the rows of some keys in the snapshot; None if the server refuses: the next step says why."""
        try:
            return self._images(keys)
        except SourceRefused as error:
            self._refused = error
            return None

    def _answer(
        self, database: SourceDatabase, query: str
    ) -> Generator[None, None, pq.abc.PGresult]:
        """Return the result of a query; yield None while it is not there."""
        connection = database.connection.pgconn
        try:
            connection.send_query(query.encode())
            while connection.flush():
                yield None
            while connection.is_busy():
                if not select.select([connection.socket], [], [], 0)[0]:
                    self.waits_on = connection.socket
                    yield None
                    continue
                connection.consume_input()
            result = connection.get_result()
            while connection.get_result() is not None:
                pass
        except psycopg.OperationalError as error:
            raise SourceUnreachable(f"PostgreSQL cannot be reached: {error}") from error
        if result is None or connection.status != pq.ConnStatus.OK:
            raise SourceUnreachable("PostgreSQL cannot be reached: the connection was closed")
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise SourceRefused(result.get_error_message().strip())
        return result


__all__ = ["Request", "Resnapshots", "request_resnapshot"]
