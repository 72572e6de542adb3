"""Views at their ends: empty ones, and ones that are older than the log.

Look-ups in full logs: test_commit_log.py. Trimmed ones: ../upkeep/test_retention.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.position import FIRST, Position
from tailrace.schema import Schema
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import rows_of, upsert, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_view_of_an_empty_catalog_answers_every_question(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    view = CommitLog.open(log_root / "shop").view
    assert view
    assert (len(view), view.published, view.oldest, view.newest_timestamp) == (0, 0, FIRST, 0)
    assert view.find(Position(1)) == view.find_row(0) == view.first_row == view.end_row == 0
    assert view.version_at(0) == 1
    assert view.timestamps_of(np.array([1, 2], np.int64)).tolist() == [0, 0]
    assert view.segments() == []
    assert [*view.schemas()] == []
    assert view.schema_of(1) == Schema()


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_outside_is_named_with_the_number_of_batches(log_root: Path, place: int) -> None:
    write(log_root, "shop", 2)
    view = CommitLog.open(log_root / "shop").view
    with pytest.raises(IndexError, match=f"batch {place} of 2"):
        view.batch(place)


def test_a_view_stays_as_it_was_while_its_log_goes_on(log_root: Path) -> None:
    write(log_root, "shop", 2)
    catalog = log_root / "shop"
    log = CommitLog.open(catalog)
    old, before = log.view, rows_of(catalog, log.view)
    segments = old.segments()
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1", entity_type="new")])
    trim(catalog, 2, 5)
    log.refresh()
    assert (log.view.published, log.view.oldest) == (3, Position(2, 0))
    assert (len(old), old.published, old.oldest, old.segments()) == (2, 2, FIRST, segments)
    assert "new" not in [*old.schemas()][-1].entity_types
    assert old.version_at(log.view.newest_timestamp) == 3
    assert rows_of(catalog, old) == before


def test_no_versions_have_no_timestamps(log_root: Path) -> None:
    write(log_root, "shop", 2)
    view = CommitLog.open(log_root / "shop").view
    assert view.timestamps_of(np.array([], np.int64)).tolist() == []
