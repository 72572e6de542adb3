"""What is due by the clock; tests/process/ingest/test_ingest.py commits frames of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import UnknownWriter
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.foreach_batch import ForeachBatchSink, run_if_due
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.pipeline.shapes import BY_ID, decoder, envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settings(tmp_path: Path) -> IngestSettings:
    create_catalog(tmp_path, "shop")
    return IngestSettings(
        input=tmp_path,
        log=tmp_path,
        catalog="shop",
        source=Debezium(keys=BY_ID),
        rules=Rules(idle_s=1.0),
        publish_window_s=3600.0,
    )


def test_idle_time_commits_and_the_end_publishes(settings: IngestSettings) -> None:
    def watermarks() -> tuple[int, int]:
        state = CommitLog.open(settings.log / "shop").state
        return state.last_version, state.published

    with ForeachBatchSink(settings, writer="frames") as sink:
        feed = decoder()
        row = line(envelope("c", postgres(1, 7), after={"id": 1}))
        changes = [*feed.feed(FileSplit(""), [row]), *feed.finish()]
        sink.driver.idle.source_idle(0.0)
        sink.driver.batch(0, changes)
        run_if_due(sink.driver)
        assert watermarks() == (0, 0)
        sink.driver.idle.source_idle(1.5)
        run_if_due(sink.driver)
        assert watermarks() == (1, 0)
    assert watermarks() == (1, 1)


def test_a_catalog_of_another_writer_is_refused(settings: IngestSettings) -> None:
    with ForeachBatchSink(settings, writer="frames"):
        pass
    with pytest.raises(UnknownWriter):
        ForeachBatchSink(settings, writer="others")
