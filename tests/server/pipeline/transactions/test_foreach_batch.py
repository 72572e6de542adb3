"""What is due by the clock; tests/process/ingest/test_sink_streams.py commits frames of every kind."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InvalidRequest, UnknownWriter
from tailrace_server.pipeline.foreach_batch import ForeachBatchSink
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.foreach_batch import run_if_due
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.pipeline.shapes import BY_ID, decoder, envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path


def sink_into(log: Path, writer: str = "frames", **options: Any) -> ForeachBatchSink:
    return ForeachBatchSink(log, "shop", writer=writer, source=Debezium(keys=BY_ID), **options)


def test_idle_time_commits_and_the_end_publishes(tmp_path: Path) -> None:
    def watermarks() -> tuple[int, int]:
        state = CommitLog.open(tmp_path / "shop").state
        return state.last_version, state.published

    sink = sink_into(tmp_path, rules=Rules(idle_s=1.0), publish_window_s=3600.0)
    with closing(sink):
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


def test_a_catalog_of_another_writer_is_refused(tmp_path: Path) -> None:
    with sink_into(tmp_path):
        pass
    with pytest.raises(UnknownWriter):
        sink_into(tmp_path, "others")


def test_an_unknown_option_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match="no option 'small_rows'; did you mean small_batch_rows"
    ):
        sink_into(tmp_path, small_rows=1)
    assert not (tmp_path / "shop").exists()
