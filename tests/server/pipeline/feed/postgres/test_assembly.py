"""Transactions from the messages of a stream, without a server: streams, aborted parts, moved keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    Unsent,
    decoded,
)
from tailrace_server.pipeline.feed.postgres.streamed import StreamedTransactions
from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.postgres.values import column_type
from tests.server.pipeline.feed.postgres.test_pgoutput import encoded

if TYPE_CHECKING:
    from pathlib import Path

TEXT = RelationColumn(False, "body", 25, -1)
TABLE = Relation(1, "public", "doc", "d", (RelationColumn(True, "id", 23, -1), TEXT))


def assembler() -> Assembler:
    return Assembler(SourceTables(column_type, lambda _: ("id",)), str)


def insert(key: int, body: bytes = b"x") -> RowChange:
    return RowChange("I", 1, new=(b"%d" % key, body))


def test_pieces_of_two_streamed_transactions_are_told_apart_and_aborted_parts_are_dropped(
    tmp_path: Path,
) -> None:
    streamed = StreamedTransactions(tmp_path)
    for transaction, subtransaction, message in (
        (7, 7, insert(1)),
        (8, 8, insert(2)),
        (7, 9, TABLE),
        (7, 9, insert(3)),
        (7, 7, insert(4)),
    ):
        for data in (encoded(StreamStart(transaction)), encoded(message, subtransaction), b"E"):
            assert streamed.takes(data)
            assert streamed.add(data) is None
    assert not streamed.takes(encoded(Begin(1, 1, 1)))
    streamed.add(encoded(StreamAbort(7, 9)))
    streamed.add(encoded(StreamAbort(8, 8)))
    held = streamed.add(encoded(Committed(50, 5, 7)))
    assert held is not None
    assert held.end_lsn == 50
    found = [decoded(each) for each in held.messages()]
    assert found == [Begin(50, 5, 7), insert(1), TABLE, insert(4), Committed(50, 5)]
    held.close()


def test_a_key_that_moves_twice_leads_back_to_the_row_that_has_its_values() -> None:
    made = assembler()
    made.add(Begin(9, 0, 1))
    made.add(TABLE)
    for old, new in ((1, 2), (2, 3)):
        row = (b"%d" % new, Unsent.VALUE)
        made.add(RowChange("U", 1, (b"%d" % old, None), True, row))
    done = made.add(Committed(9, 0))
    assert done is not None
    found = [(each.operation, each.primary_key) for each in done.mutations]
    assert found == [(Operation.REMOVE, "1"), (Operation.UPSERT, "3")]
    assert done.moved == {("doc", "3"): "1"}


def test_columns_are_announced_with_the_first_row_and_with_the_first_after_a_change() -> None:
    made = assembler()
    found = []
    for messages in (
        (TABLE, insert(1)),
        (insert(2),),
        (TABLE._replace(columns=TABLE.columns[:1]),),
    ):
        made.add(Begin(9, 0, 1))
        for message in messages:
            made.add(message)
        row = (b"5",) if len(messages) == 1 and isinstance(messages[0], Relation) else (b"5", b"y")
        made.add(RowChange("I", 1, new=row))
        done = made.add(Committed(9, 0))
        assert done is not None
        found.append([len(each.columns) for each in done.columns.values()])
    assert found == [[2], [], [1]]
