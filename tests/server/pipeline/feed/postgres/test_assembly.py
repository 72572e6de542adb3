"""Transactions from the messages of a stream, without a server: streamed pieces, aborted parts, moved keys."""

from __future__ import annotations

from tailrace.criteria import Operation
from tailrace_server.pipeline.feed.postgres.assembly import Assembler
from tailrace_server.pipeline.feed.postgres.pgoutput import (
    Begin,
    Committed,
    Relation,
    RelationColumn,
    RowChange,
    StreamAbort,
    StreamStart,
    StreamStop,
    Unsent,
)
from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.postgres.values import column_type

TEXT = RelationColumn(False, "body", 25, -1)
TABLE = Relation(1, "public", "doc", "d", (RelationColumn(True, "id", 23, -1), TEXT))


def assembler() -> Assembler:
    return Assembler(SourceTables(column_type, lambda _: ("id",)), str)


def insert(key: int, body: bytes = b"x") -> RowChange:
    return RowChange("I", 1, new=(b"%d" % key, body))


def test_pieces_of_two_streamed_transactions_are_told_apart_and_aborted_parts_are_dropped() -> None:
    made = assembler()
    for streamed, subtransaction, message in (
        (7, 7, TABLE),
        (7, 7, insert(1)),
        (8, 8, TABLE),
        (8, 8, insert(2)),
        (7, 9, insert(3)),
        (7, 7, insert(4)),
    ):
        made.add(StreamStart(streamed), None)
        made.add(message, subtransaction)
        made.add(StreamStop(), None)
    assert made.is_between
    made.add(StreamAbort(7, 9), None)
    done = made.add(Committed(50, 5, 7), None)
    assert done is not None
    assert done.transaction is not None
    assert [each.primary_key for each in done.transaction.mutations] == ["1", "4"]
    assert (done.end_lsn, done.transaction.transaction_id) == (50, "7")
    made.add(StreamAbort(8, 8), None)
    made.add(Begin(60, 6, 10), None)
    assert made.add(Committed(60, 6), None) == (60, None)


def test_a_key_that_moves_twice_leads_back_to_the_row_that_has_its_values() -> None:
    made = assembler()
    made.add(Begin(9, 0, 1), None)
    made.add(TABLE, None)
    for old, new in ((1, 2), (2, 3)):
        row = (b"%d" % new, Unsent.VALUE)
        made.add(RowChange("U", 1, (b"%d" % old, None), True, row), None)
    done = made.add(Committed(9, 0), None)
    assert done is not None
    assert done.transaction is not None
    found = [(each.operation, each.primary_key) for each in done.transaction.mutations]
    assert found == [(Operation.REMOVE, "1"), (Operation.UPSERT, "3")]
    assert done.transaction.moved == {("doc", "3"): "1"}


def test_columns_are_announced_with_the_first_row_and_with_the_first_after_a_change() -> None:
    made = assembler()
    found = []
    for messages in (
        (TABLE, insert(1)),
        (insert(2),),
        (TABLE._replace(columns=TABLE.columns[:1]),),
    ):
        made.add(Begin(9, 0, 1), None)
        for message in messages:
            made.add(message, None)
        row = (b"5",) if len(messages) == 1 and isinstance(messages[0], Relation) else (b"5", b"y")
        made.add(RowChange("I", 1, new=row), None)
        done = made.add(Committed(9, 0), None)
        assert done is not None
        assert done.transaction is not None
        found.append([len(each.columns) for each in done.transaction.columns.values()])
    assert found == [[2], [], [1]]
