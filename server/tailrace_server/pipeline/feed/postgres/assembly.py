"""Assembly of a transaction from its messages, message by message.

Memory: all rows of the transaction.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

from tailrace.criteria import Operation
from tailrace.schema import Column
from tailrace_server.pipeline.feed.postgres.pgoutput import (
    Begin,
    Committed,
    LogicalMessage,
    Relation,
    RowChange,
    Truncation,
    Unsent,
)
from tailrace_server.pipeline.feed.source import Transaction
from tailrace_server.pipeline.input.change import CHANGE, DELETE, INSERT, TRUNCATE, UPDATE, Change
from tailrace_server.pipeline.transactions.consolidate import consolidate
from tailrace_server.wal.last_images import KnownImage, Restating
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace_server.pipeline.feed.postgres.pgoutput import Message, RowValues
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable, SourceTables
    from tailrace_server.wal.schema.builder import Announced

REQUESTS: Final = "tailrace.resnapshot"
"""Prefix of the logical messages that ask the ingest to read a part of a table again."""


class Assembler:
    """Assembles the transactions of one replication connection."""

    def __init__(
        self,
        tables: SourceTables,
        position: Callable[[int], str],
        ask: Callable[[bytes], None] | None = None,
    ) -> None:
        """Begin outside a transaction.

        Args:
            tables: The tables of the stream; relation messages change them.
            position: Returns the position of an LSN, for the log.
            ask: Takes the requests of a transaction, before its position is asked for; None: there are none.
        """
        self._ask = ask
        self._messages: list[LogicalMessage] = []
        self._tables = tables
        self._position = position
        self._open: Begin | None = None
        self._changes: list[Change] = []
        self._columns: dict[str, Announced] = {}
        self._moved: dict[tuple[str, str], str] = {}
        self._announced: dict[str, Announced] = {}
        """Entity type → columns of its newest transaction."""

    def add(self, message: Message) -> Transaction | None:
        """Take a message; return the transaction that it commits, unless that has neither rows nor messages.

        Raises:
            SourceRefused: A table has no key.
        """
        match message:
            case Begin():
                self._open = message
            case Committed(end_lsn, timestamp):
                assert self._open is not None, "a commit follows its begin"
                return self._finish(self._open.xid, timestamp, end_lsn)
            case Relation():
                before, now = self._tables.put(message)
                if before is not None and before is not now:
                    self._restate(before, now)
            case RowChange():
                self._add_row(message)
            case Truncation():
                for oid in message.relations:
                    name = self._announce(self._tables[oid])
                    self._changes.append(Change(CHANGE, b"", entity_type=name, operation=TRUNCATE))
            case LogicalMessage():
                self._messages.append(message)
        return None

    def announced(self, tables: Iterable[SourceTable]) -> dict[str, Announced]:
        """Return the columns of tables that no transaction has announced before, or not as they are now."""
        found = {}
        for each in tables:
            if self._announced.get(each.entity_type) is not each.announced:
                found[each.entity_type] = each.announced
        self._announced.update(found)
        return found

    def _announce(self, table: SourceTable) -> str:
        self._columns.update(self.announced((table,)))
        return table.entity_type

    def _add_row(self, row: RowChange) -> None:
        table = self._tables[row.relation]
        name = self._announce(table)
        old = None if row.old is None else table.texts(row.old)
        before = None if old is None or row.is_key else table.image(old)
        if row.kind == "D":
            assert old is not None, "the decoder requires the old row"
            change = Change(
                *(CHANGE, b""), entity_type=name, operation=DELETE, primary_key=table.key_of(old)
            )
            self._changes.append(change._replace(before=before))
            return
        assert row.new is not None, "the decoder requires the new row"
        # A large value that did not change is in the old row, if that was sent as a whole. If the key has such
        # a value, the old row is sent with the key.
        texts = table.texts(_filled(row.new, row.old, table, is_key=row.is_key))
        key = table.key_of(texts)
        moved = None if old is None else table.key_of(old)
        if moved == key:
            moved = None
        if moved is not None:
            self._moved[name, key] = self._moved.pop((name, moved), moved)
        self._changes.append(
            Change(
                *(CHANGE, b""),
                entity_type=name,
                operation=INSERT if row.kind == "I" else UPDATE,
                primary_key=key,
                old_key=moved,
                before=before,
                after=table.image(texts),
            )
        )

    def _restate(self, before: SourceTable, now: SourceTable) -> None:
        """Convert the rows of a table that this transaction altered: a version has one schema."""
        name = before.entity_type
        if name != now.entity_type or not any(each.entity_type == name for each in self._changes):
            return
        then, columns = _columns(before, now)
        restating = Restating(dict, DEFAULT)

        def restated(image: bytes | None) -> bytes | None:
            return None if image is None else restating.now(KnownImage(image, then), columns, ())

        self._changes = [
            each._replace(before=restated(each.before), after=restated(each.after))
            if each.entity_type == name
            else each
            for each in self._changes
        ]
        self._announce(now)

    def _finish(self, xid: int, timestamp: int, end_lsn: int) -> Transaction | None:
        effects = consolidate(self._changes)
        columns, moved = self._columns, self._moved
        said = []
        for each in self._messages:
            if each.prefix == REQUESTS and self._ask is not None:
                self._ask(each.content)
            else:
                said.append(each)
        self._changes, self._columns, self._moved, self._messages = [], {}, {}, []
        if not effects and not said:
            # The next transaction announces what this one did not.
            for name in columns:
                self._announced.pop(name, None)
            return None
        mutations = [
            Mutation(
                *(each.entity_type, each.primary_key, each.operation, each.before, each.after),
                # The writer computes the changes of a row, from the image before that it fills in.
                change=each.change if each.primary_key is None else None,
            )
            for each in effects
        ]
        inserted = [
            (each.entity_type, each.primary_key)
            for each in effects
            if each.operation is Operation.UPSERT
            and each.primary_key is not None
            and each.before is None
            and each.changed is None
        ]
        return Transaction(
            mutations=mutations,
            position=self._position(end_lsn),
            transaction_id=str(xid),
            source_timestamp=timestamp,
            columns=columns,
            inserted=inserted,
            moved=moved,
            lead=messages_of_lead(said),
        )


def messages_of_lead(said: Sequence[LogicalMessage]) -> dict[str, list[dict[str, str]]]:
    """Return logical messages as fields of a lead: as text, or in base64 if they are not UTF-8."""
    found = []
    for each in said:
        try:
            content = {"content": each.content.decode()}
        except UnicodeDecodeError:
            content = {"base64": b64encode(each.content).decode()}
        found.append({"prefix": each.prefix, **content})
    return {"messages": found} if found else {}


def _filled(
    new: RowValues, old: RowValues | None, table: SourceTable, *, is_key: bool
) -> RowValues:
    """Return a new row with the values of the old row that were not sent again."""
    if old is None or Unsent.VALUE not in new:
        return new
    names = [column.name for column in table.relation.columns]
    return tuple(
        then if value is Unsent.VALUE and (not is_key or name in table.key) else value
        for name, value, then in zip(names, new, old, strict=True)
    )


def _columns(
    before: SourceTable, now: SourceTable
) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Return the columns of a table before and after it was altered; equal names have equal ids."""
    then, later = (
        {name: Column(name, sql_type=kind, encoding=encoding) for name, kind, encoding, _ in each}
        for each in (before.announced.columns, now.announced.columns)
    )
    ids = {name: number for number, name in enumerate({**then, **later}, 1)}

    def numbered(column: Column, *, dropped: bool = False) -> Column:
        return Column(
            column.name,
            sql_type=column.sql_type,
            encoding=column.encoding,
            origin=now.announced.origin,
            id=ids[column.name],
            dropped=dropped,
        )

    gone = [numbered(each, dropped=True) for name, each in then.items() if name not in later]
    return (
        tuple(map(numbered, then.values())),
        (*map(numbered, later.values()), *gone),
    )
