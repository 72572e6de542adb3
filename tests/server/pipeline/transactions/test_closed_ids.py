"""Closed transactions, read from the leads of a log, of which the newest are remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver_state import ClosedTransactions
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Return a log of five transactions, the fourth being late rows of the first."""
    with LogWriter.open(tmp_path, "shop") as log:
        for name, extras in (
            ("7:100", {}),
            ("8:101", {}),
            ("x", {}),
            ("7:102", {"late": True, "of": 1}),
            (None, {}),
        ):
            log.append([upsert("1")], transaction_id=name, **extras)
        log.commit(publish=True)
    return tmp_path / "shop"


def read(catalog: Path, limit: int = 100) -> dict[str, int]:
    view = CommitLog.open(catalog).view
    return dict(ClosedTransactions.read(catalog, view, Debezium(), limit).versions)


def test_ids_are_read_in_the_form_that_rows_share(catalog: Path) -> None:
    assert read(catalog) == {"7": 1, "8": 2, "x": 3}


def test_only_the_newest_leads_are_read(catalog: Path) -> None:
    assert read(catalog, limit=3) == {"x": 3}


def test_the_oldest_are_forgotten() -> None:
    closed = ClosedTransactions(Debezium(), limit=2)
    for version, name in enumerate(("7:1", "8:1", "9:1"), 1):
        closed.add(name, version)
    assert list(closed.versions.items()) == [("8", 2), ("9", 3)]
