"""PostgreSQL as a source of transactions: a snapshot, then the stream of a replication slot.

A slot is confirmed only up to the catalog's position. So a slot that is ahead of the position was confirmed by
another reader, or the catalog was restored from an older copy: changes are missing, and only a new snapshot
helps. That is also the only remedy for a slot that is gone.
"""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import closing
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from tailrace_server.pipeline.feed.postgres.assembly import (
    REQUESTS,
    Assembler,
    messages_of_lead,
)
from tailrace_server.pipeline.feed.postgres.batches import TransactionBatches
from tailrace_server.pipeline.feed.postgres.database import SourceDatabase
from tailrace_server.pipeline.feed.postgres.large import large_transaction
from tailrace_server.pipeline.feed.postgres.pgoutput import commit_of, message_of
from tailrace_server.pipeline.feed.postgres.positions import PostgresPosition, slot_name
from tailrace_server.pipeline.feed.postgres.replication import (
    ReplicationConnection,
    lsn_text,
    parameters_of,
)
from tailrace_server.pipeline.feed.postgres.resnapshot import Resnapshots
from tailrace_server.pipeline.feed.postgres.snapshot import snapshot_items
from tailrace_server.pipeline.feed.postgres.streamed import StreamedTransactions
from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.source import (
    Moved,
    PartedTransaction,
    SourceLost,
    SourceRefused,
    Transaction,
)
from tailrace_server.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from tailrace_server.pipeline.feed.postgres.database import Slot
    from tailrace_server.pipeline.feed.postgres.options import PostgresOptions
    from tailrace_server.pipeline.feed.postgres.streamed import Held
    from tailrace_server.pipeline.feed.source import Item

_COMMIT, _MESSAGE = b"CM"
_BATCH_BYTES: Final = 8 << 20
_BATCH_MESSAGES: Final = 30_000
"""Bytes and number of messages from which transactions are read without waiting for more."""
_LARGE_BYTES: Final = 64 << 20
"""Size of the messages of a transaction from which it is read in parts."""
_BUSY_S: Final = 10.0
"""Time to wait for the reader of a slot to end; the server notices late that a client is gone."""
_LOOK_S: Final = 0.1
_IDLE_S: Final = 0.3
"""Time between two notes that nothing has arrived, while a table is read again."""
_LAG_EVERY_S: Final = 10.0
_WARN_SHARE: Final = 5
"""A warning comes if less than 1/5 of the bound is left until the server drops the slot."""


class PostgresSource:
    """The tables of one PostgreSQL database; see `TransactionSource` for the methods."""

    def __init__(
        self,
        options: PostgresOptions,
        log: Path,
        catalog: str,
        *,
        follow: bool,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """Check the options; nothing is connected yet.

        Args:
            options: The options.
            log: The log root.
            catalog: Name of the catalog.
            follow: False: end once everything is read that was committed at the beginning.
            note: Prints a line.
            warn: Prints a warning.

        Raises:
            InvalidRequest: The DSN or the name of the slot is malformed.
        """
        self._slot = slot_name(options.slot, catalog)
        self._publication = options.publication or self._slot
        self._folder = log
        self._options = options
        self._follow = follow
        self._note, self._warn = note, warn
        self._resnapshot = options.resnapshot
        # Runs of the same catalog have the same name, so that a run can end the connection of a killed one.
        place = hashlib.sha256(f"{socket.gethostname()}:{log}:{catalog}".encode()).hexdigest()
        self._application = f"tailrace {catalog[:30]} {place[:16]}"
        self._parameters = parameters_of(options.dsn, self._application)
        self._stream: ReplicationConnection | None = None
        self._database: SourceDatabase | None = None
        self._confirmed = 0
        self._lag: tuple[float, int | None] = (float("-inf"), None)
        self._warned = False

    @property
    def name(self) -> str:
        """Name of the source in the log."""
        return f"postgresql:{self._slot}"

    def check(self) -> None:
        """Check server, user, tables and slot; create the publication. See `TransactionSource.check`."""
        database = SourceDatabase(self._parameters)
        try:
            self._checked(database)
        finally:
            database.close()

    def _checked(self, database: SourceDatabase) -> Slot | None:
        """Return the slot once it has no reader; None if it does not exist."""
        database.check_settings()
        database.publish(self._publication, self._options.table)
        return self._free_slot(database)

    def items(self, after: str | None) -> Generator[Item | None, None, None]:
        """Yield the snapshot, if one is needed, and the stream; see `TransactionSource.items`."""
        known = None if after is None else PostgresPosition.of(after)
        again = Resnapshots(
            *(self._parameters, self._publication, self._slot), note=self._note, warn=self._warn
        )
        if known is not None:
            again.pending += known.requests
        database = SourceDatabase(self._parameters)
        try:
            slot = self._checked(database)
            if slot is not None:
                self._warn_of_loss(slot)
            system, name = database.identity()
            timeline = database.timeline()
            self._database = database

            def position(at: int) -> str:
                left = tuple(again.pending)
                return PostgresPosition(
                    system, name, lsn_text(at), timeline=timeline, requests=left
                ).text

            with ReplicationConnection(self._parameters) as stream:
                end = None
                if known is not None and known.timeline:
                    end = stream.end_of(known.timeline, timeline)
                lsn = self._continued(known, slot, (system, name), end, database.end_lsn())
                if lsn is None:
                    if known is None or not known.snapshot:
                        # From here on the catalog says that the slot is its own, and may be dropped.
                        yield Moved(PostgresPosition(system, name, snapshot=True).text)
                    again.pending.clear()
                    if slot is not None:
                        database.drop_slot(self._slot)
                    created = yield from stream.create_slot(self._slot)
                    yield from snapshot_items(database, self._publication, created.snapshot)
                    lsn = created.lsn
                    yield Moved(position(lsn))
                    self._resnapshot = False
                self._stream, self._confirmed = stream, lsn
                yield from self._streamed(stream, database, lsn, position, again)
        finally:
            self._stream = self._database = None
            database.close()

    def acknowledge(self, position: str) -> None:
        """Confirm a position to the server."""
        if lsn := PostgresPosition.of(position).number:
            self._confirmed = max(self._confirmed, lsn)
            if self._stream is not None:
                self._stream.confirm(self._confirmed)

    def lag_bytes(self) -> int | None:
        """Return the size of the server's log behind the slot; looked up at most every ten seconds."""
        at, lag = self._lag
        if self._database is None or time.monotonic() < at + _LAG_EVERY_S:
            return lag
        slot = self._database.slot(self._slot)
        self._lag = time.monotonic(), None if slot is None else slot.behind_bytes
        if slot is not None:
            self._warn_of_loss(slot)
        return self._lag[1]

    def place(self, position: str) -> int | None:
        """Return the LSN of a position."""
        return PostgresPosition.of(position).number or None

    def _warn_of_loss(self, slot: Slot) -> None:
        left = slot.left_bytes
        is_close = slot.status == "unreserved" or (
            left is not None and left < (left + slot.behind_bytes) // _WARN_SHARE
        )
        if is_close and not self._warned:
            self._warn(
                f"slot {self._slot} is {format_bytes(slot.behind_bytes)} behind, and the server drops it "
                f"after {format_bytes(max(left or 0, 0))} more: raise max_slot_wal_keep_size"
            )
        self._warned = is_close

    def _free_slot(self, database: SourceDatabase) -> Slot | None:
        """Return the slot once it has no reader; None if it does not exist."""
        until = time.monotonic() + _BUSY_S
        while True:
            slot = database.slot(self._slot)
            if slot is None or slot.reader is None:
                return slot
            if slot.application == self._application:
                database.end_reader(slot.reader)
            elif time.monotonic() > until:
                raise SourceRefused(
                    f"slot {self._slot} is in use by process {slot.reader} of the server "
                    f"({slot.application or 'without a name'}): a slot has one reader; end the "
                    "other one, or choose another --slot"
                )
            time.sleep(_LOOK_S)

    def _continued(
        self,
        known: PostgresPosition | None,
        slot: Slot | None,
        identity: tuple[str, str],
        end_lsn: int | None,
        newest_lsn: int,
    ) -> int | None:
        """Return the LSN at which the stream continues; None if a snapshot is needed.

        Args:
            known: The catalog's position; None if it has none.
            slot: The slot; None if it does not exist.
            identity: Identifier of the server, and name of the database.
            end_lsn: End of the timeline of the position; None if it has not ended.
            newest_lsn: End of the server's log.

        Raises:
            SourceLost: Changes behind the position are gone.
            SourceRefused: The slot exists, and the catalog has not created it.
        """
        if known is None:
            if slot is not None:
                raise SourceRefused(
                    f"slot {self._slot} exists, and this catalog has not read it: choose another "
                    f"--slot, or drop it: SELECT pg_drop_replication_slot('{self._slot}')"
                )
            return None
        if known.snapshot or self._resnapshot:
            return None
        lsn = known.number
        reason = None
        if (known.system, known.database) != identity:
            reason = f"the catalog was read from database {known.database} of another server"
        elif end_lsn is not None and end_lsn < lsn:
            reason = (
                f"the server was promoted at {lsn_text(end_lsn)}, and the catalog is at {known.lsn}: "
                "it has changes that the server does not have"
            )
        elif newest_lsn < lsn:
            # PostgreSQL would skip the new changes up to the position without an error.
            reason = (
                f"the server is at {lsn_text(newest_lsn)}, and the catalog at {known.lsn}: the server "
                "was restored from an older copy"
            )
        elif slot is None:
            reason = f"the server has no slot {self._slot}"
        elif slot.status == "lost":
            reason = f"the server has dropped log that slot {self._slot} needs"
        elif slot.confirmed_lsn > lsn:
            reason = (
                f"slot {self._slot} is at {lsn_text(slot.confirmed_lsn)}, and the catalog only at "
                f"{known.lsn}: another reader has confirmed changes, or the catalog is an older copy"
            )
        if reason is not None:
            raise SourceLost(
                f"{reason}, so the two differ: run with --resnapshot, which reads the tables "
                "again and writes only what differs"
            )
        return lsn

    def _streamed(
        self,
        stream: ReplicationConnection,
        database: SourceDatabase,
        lsn: int,
        position: Callable[[int], str],
        again: Resnapshots,
    ) -> Iterator[Item | None]:
        """Yield the transactions behind an LSN, and between them the tables that are read again."""
        until = None if self._follow else database.end_lsn()
        tables = SourceTables(database.type_of, database.key_of)
        batches = TransactionBatches(tables, Assembler(tables, position, again.ask), position)
        stream.start(self._slot, self._publication, lsn)
        # Everything up to ``done`` is yielded; ``at`` is the end of the newest transaction that has arrived.
        done = at = lsn
        size = 0
        messages: list[bytes] = []
        """Whole transactions, and perhaps the beginning of another."""
        is_between = True
        with closing(StreamedTransactions(self._folder)) as streamed, closing(again):
            for message in stream.messages():
                if isinstance(message, bytes):
                    if message[0] == _MESSAGE:
                        said = message_of(message, is_streamed=streamed.takes(message))
                        is_request = said.prefix == REQUESTS and said.is_transactional
                        if not is_request and not said.prefix.startswith(self._options.messages):
                            continue
                        if not said.is_transactional:
                            # It stands between two transactions, and is a version of its own.
                            yield from again.noted(batches.items(messages))
                            messages, size = [], 0
                            done = at = said.lsn + 1
                            lead = messages_of_lead([said])
                            yield Transaction(mutations=(), position=position(at), lead=lead)
                            continue
                    if streamed.takes(message):
                        if (held := streamed.add(message)) is None:
                            continue
                        # A piece of a stream never comes within another transaction.
                        yield from again.noted(batches.items(messages))
                        messages, size = [], 0
                        with closing(held):
                            yield from again.noted(self._held_items(held, batches, position))
                        done = at = held.end_lsn
                    else:
                        messages.append(message)
                        size += len(message)
                        is_between = message[0] == _COMMIT
                        if not is_between:
                            continue
                        at = commit_of(message).end_lsn
                    is_end = until is not None and at >= until
                    if is_end or size >= _BATCH_BYTES or len(messages) >= _BATCH_MESSAGES:
                        yield from again.noted(batches.items(messages))
                        messages, size, done = [], 0, at
                        yield from _read_again(again, done, position)
                    if is_end and not again.pending:
                        return
                    continue
                if is_between:
                    yield from again.noted(batches.items(messages))
                    messages, size, done = [], 0, at
                if message is None:
                    due = time.monotonic()
                    while again.pending:
                        found = False
                        for item in _read_again(again, done, position):
                            found = True
                            yield item
                        if again.wait(stream, 0 if found else _LOOK_S):
                            break
                        if again.awaits(done):
                            stream.confirm(self._confirmed, wants_reply=True)
                        if time.monotonic() > due:
                            yield None
                            due = time.monotonic() + _IDLE_S
                    if until is not None:
                        if done >= until and not again.pending:
                            return
                        stream.confirm(self._confirmed, wants_reply=True)
                    yield None
                    continue
                # The server has sent every transaction up to here; it may want this confirmed before it stops.
                # In between, the log need not note that nothing has come.
                is_end = until is not None and message.end_lsn >= until
                is_awaited = again.awaits(done)
                if (
                    is_between
                    and message.end_lsn > at
                    and (message.wants_reply or is_end or is_awaited)
                ):
                    done = at = message.end_lsn
                    yield Moved(position(at))
                elif message.wants_reply:
                    stream.confirm(self._confirmed)
                if is_end and is_between and not again.pending:
                    return

    def _held_items(
        self, held: Held, batches: TransactionBatches, position: Callable[[int], str]
    ) -> Iterator[Item]:
        """Yield a transaction that was streamed; read in parts if it is large and the loops can read it."""
        if held.bytes >= _LARGE_BYTES:
            with TemporaryFile(dir=self._folder) as file:
                content = large_transaction(held, batches, file)
                if content is not None:
                    columns = batches.announced(content.counts)
                    if content.counts:
                        yield PartedTransaction(content, position(held.end_lsn), columns)
                    return
        yield from batches.items(list(held.messages()))


def _read_again(again: Resnapshots, done: int, position: Callable[[int], str]) -> Iterator[Item]:
    """Yield what is ready of the tables that are read again, and note the end of a request."""
    count = len(again.pending)
    yield from again.items(done)
    if len(again.pending) < count:
        yield Moved(position(done))
