"""Delta tables as a source: what is refused, and what a new snapshot repairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.tables.delta import DeltaSource
from tailrace_server.pipeline.tables.settings import DeltaFeedSettings
from tests.server.pipeline.tables.lake import Lake

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path)
    found.append((1, "a"), (2, "b"), (3, "c"))
    return found


def ingest(lake: Lake, **given: Any) -> None:
    options = {"table": lake.table, "entity_type": "order", "key": ("id",), **given}
    settings = DeltaFeedSettings(log=lake.log, catalog="shop", **options)
    DeltaSource(settings, ProgressReporter(quiet=True)).run(Stopping())


def test_what_is_missing_is_repaired_by_a_snapshot(lake: Lake) -> None:
    """Files of the feed that were deleted, a table that goes back, another table in the place of this one."""

    def breaks(message: str) -> None:
        with pytest.raises(SourceLost, match=f"{message}.*--resnapshot"):
            ingest(lake)
        ingest(lake, resnapshot=True)
        assert lake.state() == lake.rows()

    ingest(lake)
    DeltaTable(lake.table).delete("id = 1")
    lake.append((4, "d"))
    DeltaTable(lake.table).optimize.compact()
    DeltaTable(lake.table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    breaks("the changes of versions 1 to [0-9]+ cannot be read")
    assert lake.versions() == [1, 2]
    lake.move("second")
    lake.append((7, "new"))
    breaks("another Delta table")
    # Rows that are the same are no changes.
    ingest(lake, resnapshot=True)
    assert lake.versions() == [1, 2, 3]
    lake.move("third")
    lake.copy_of("second")
    lake.append((8, "later"))
    ingest(lake)
    lake.move("second")
    breaks("was restored from a copy")


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"table": "/nowhere/t"}, SourceUnreachable, "--table /nowhere/t: there is no Delta table"),
        ({"key": ("no",)}, InvalidRequest, "no column 'no'"),
    ],
)
def test_wrong_options_write_nothing(
    lake: Lake, given: dict[str, Any], kind: type[TailraceError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ingest(lake, **given)
    assert not lake.log.joinpath("shop").exists()


def test_a_table_without_a_change_feed_is_refused(lake: Lake) -> None:
    DeltaTable(lake.table).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    with pytest.raises(
        SourceRefused, match=r"set its property delta\.enableChangeDataFeed to true"
    ):
        ingest(lake)
