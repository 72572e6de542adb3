"""Statements that change rows without a message for each row, on a real log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Operation
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tests.process.ingest.reading import data
from tests.server.pipeline.input.test_table_bindings import ARCHIVE, PUBLIC, Ingest, Row, Table
from tests.server.pipeline.shapes import line

if TYPE_CHECKING:
    from pathlib import Path

DROPPED = (
    "DROP TABLE: shop.public.orders was dropped, but the log still has its rows; "
    "a message with op t of the table removes them"
)


def dropped(table: Table, **source: Any) -> bytes:
    """Return the message that a connector sends for DROP TABLE."""
    names = '"."'.join(level for level in table[:3] if level)
    changes = [{"type": "DROP", "id": f'"{names}"'}]
    block = {"connector": "postgresql", "name": table.connector, **source}
    return line({"source": block, "ddl": "DROP TABLE", "tableChanges": changes})


def test_a_statement_is_set_aside_only_where_the_log_has_rows_that_it_has_changed(
    tmp_path: Path,
) -> None:
    rows = [Row(PUBLIC, 1, 1, "c").line(1)]
    other = Table("shop", "public", "orders", "other")
    for number, (files, wanted) in enumerate(
        [
            ([[rows, [dropped(PUBLIC)]]], 1),
            ([[[dropped(PUBLIC)], rows]], 1),
            ([[rows], [[dropped(PUBLIC)], [dropped(PUBLIC)]]], 2),
            ([[rows], [[dropped(ARCHIVE), dropped(other), dropped(PUBLIC, snapshot="true")]]], 0),
        ]
    ):
        ingest = Ingest(tmp_path / str(number))
        counters = ingest.run(*files)
        reasons = [reason for _, reason in ingest.quarantined()]
        assert reasons == [DROPPED] * wanted
        assert ingest.state() == {("orders", "1"): 1}
        assert {table: each.count for table, each in counters.effects.items()} == (
            {"shop.public.orders": wanted} if wanted else {}
        )
        # A statement is a schema change, whether or not it is set aside.
        messages = sum(len(lines) for batch in files for lines in batch)
        assert (counters.messages, counters.ignored) == (messages, messages - 1)


def test_the_message_that_removes_the_rows_of_a_dropped_table_needs_no_position(
    tmp_path: Path,
) -> None:
    ingest = Ingest(tmp_path)
    ingest.run([[Row(PUBLIC, 1, 1, "c").line(1), dropped(PUBLIC)]])
    block = {
        "connector": "postgresql",
        "name": "shop",
        "db": "shop",
        "schema": "public",
        "table": "orders",
    }
    ingest.run([[line({"op": "t", "source": block})]])
    last = data(tmp_path / "shop")[-1]
    assert (last.operation, last.primary_key) == (Operation.REMOVE, None)
    assert len(ingest.quarantined()) == 1


def test_a_strict_ingest_stops_at_a_statement_that_has_changed_rows(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    with pytest.raises(LineRefused, match=r"line 2: DROP TABLE: shop\.public\.orders"):
        ingest.run([[Row(PUBLIC, 1, 1, "c").line(1), dropped(PUBLIC)]], strict=True)
