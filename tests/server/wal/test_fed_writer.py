"""A writer that is fed by a source: positions with each commit, announced columns, newest images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest, LogFull
from tailrace.schema import Origin
from tailrace_server.wal.catalog import open_catalog, open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.builder import Announced
from tailrace_server.wal.transaction_writer import TransactionWriter
from tests.server.wal.logs import armed, rows_of, transactions_in

if TYPE_CHECKING:
    from pathlib import Path


def fed(root: Path) -> TransactionWriter:
    opened = open_writer(root, "shop", writer="feed")
    return TransactionWriter(opened, images="full", announces=True)


def product(key: int, **columns: Any) -> bytes:
    return b"{%s}" % b",".join(
        b'"%s":%s' % (name.encode(), str(value).encode())
        for name, value in {"id": key, **columns}.items()
    )


def test_the_log_has_the_position_of_the_last_commit_also_without_transactions(
    tmp_path: Path,
) -> None:
    with LogWriter.open(tmp_path, "shop") as log:
        log.append([Mutation("product", "1", after=product(1))])
        receipt = log.commit(publish=True, source_positions={"topic": 7, "other": "a"})
        assert receipt is not None
        assert receipt.last_version == 1
        receipt = log.commit(source_positions={"topic": 9})
        assert receipt is not None
        assert receipt.last_version is None
        assert log.commit() is None
    state = open_catalog(tmp_path, "shop").state
    assert state.source_positions == {"topic": 9, "other": "a"}
    assert (state.last_version, state.published) == (1, 1)


def test_a_commit_that_failed_is_repeated_with_its_own_positions(tmp_path: Path) -> None:
    """Transactions that come after the failure get the position of the next commit."""
    with LogWriter.open(tmp_path, "shop") as log:
        log.append([Mutation("product", "1", after=product(1))])
        with armed("entry.before_link=enospc"), pytest.raises(LogFull):
            log.commit(source_positions={"topic": 1})
        log.append([Mutation("product", "2", after=product(2))])
        log.commit(publish=True, source_positions={"topic": 2})
        assert log.state.source_positions == {"topic": 2}
    assert len(transactions_in(rows_of(tmp_path / "shop"))) == 2


def test_announced_columns_are_in_the_schema_before_the_first_row_that_has_them(
    tmp_path: Path,
) -> None:
    with fed(tmp_path) as log:
        both = (("id", "BIGINT", "json", False), ("price", "DECIMAL(10,2)", "json", True))
        log.announce("product", Announced(both, ("id",), Origin.TABLE))
        log.append([Mutation("product", "1", after=product(1, price='"NaN"'))])
        log.announce("product", Announced(both[:1], ("id",), Origin.TABLE))
        log.append([Mutation("product", "1", after=product(1))])
    view = open_catalog(tmp_path, "shop").view
    first, last = (view.schema_of(version) for version in (1, 2))
    columns = [(each.name, each.sql_type, each.key) for each in first.columns("product")]
    assert columns == [("id", "BIGINT", 1), ("price", "DECIMAL(10,2)", 0)]
    assert [each.name for each in last.columns("product")] == ["id"]


def test_an_announcement_survives_a_refused_transaction(tmp_path: Path) -> None:
    with fed(tmp_path) as log:
        columns = (("id", "BIGINT", "json", False), ("note", "VARCHAR", "json", True))
        log.announce("product", Announced(columns, ("id",), Origin.TABLE))
        with pytest.raises(InvalidRequest, match="JSON object"):
            log.append([Mutation("product", "1", after=b"[]")])
        log.append([Mutation("product", "1", after=product(1))])
    found = open_catalog(tmp_path, "shop").view.schema_of(1).columns("product")
    assert [each.sql_type for each in found] == ["BIGINT", "VARCHAR"]


def test_newest_images_are_those_of_committed_and_of_buffered_rows(tmp_path: Path) -> None:
    with fed(tmp_path) as log:
        for key in range(4):
            log.append([Mutation("product", str(key), after=product(key))])
    with fed(tmp_path) as log:
        log.append([Mutation("product", "0", Operation.REMOVE)])
        log.append([Mutation("product", "1", after=product(1, stock=5))])
        log.expect_new("product", ["9"])
        log.append([Mutation("product", "9", after=product(9))])
        found = log.newest_images("product", ["0", "1", "2", "7", "9"])
        assert found == {"1": product(1, stock=5), "2": product(2), "9": product(9)}
        assert log.newest_images("order", ["1"]) == {}
