"""An ingest that stands still says so, once, and says when it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import open_writer
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.input.folder import WaitingFiles
from tailrace_server.pipeline.run import metrics as run_metrics
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.standstill import standstill_told
from tests.server.pipeline.cdcv2.streams import SCHEMA
from tests.server.pipeline.run.test_ingest_metrics import samples
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_standstill_is_told_once_and_in_the_metrics_until_the_ingest_goes_on(
    log_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Quiet input is none, however long."""
    monkeypatch.setattr(run_metrics, "_LOOK_EVERY_S", 0.01)
    settings = Cdcv2Settings(
        input=tmp_path, log=log_root, catalog="shop", folding=Folding(SCHEMA, "product", ("id",))
    )
    metrics = IngestMetrics("shop", "cdcv2", version="1.2.3")
    waits, looks, written = WaitingFiles(0, 0), 0, ""

    def look() -> WaitingFiles:
        nonlocal looks
        looks += 1
        return waits

    def looked_again(times: int) -> None:
        behind = looks + times
        wait_until(lambda: looks >= behind)

    def told() -> str:
        nonlocal written
        written += capsys.readouterr().err
        return written

    with open_writer(settings) as writer:
        metrics.follow(Cdcv2Driver(writer, settings), look)
        with standstill_told(metrics, ProgressReporter(), after_s=0.05, look_every_s=0.001):
            looked_again(20)
            assert told() == ""
            waits = WaitingFiles(3, 12 << 20)
            wait_until(lambda: "3 files (12MiB) wait" in told())
            assert samples(metrics)["standstill_seconds"][1] >= 0.05
            looked_again(20)
            assert told().count("nothing was read or committed for") == 1
            metrics.counters.lines += 1
            wait_until(lambda: "the ingest continues" in told())


def test_a_file_that_changed_after_being_read_is_named_at_once_and_once(
    log_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_metrics, "_LOOK_EVERY_S", 0.0)
    settings = Cdcv2Settings(
        input=tmp_path, log=log_root, catalog="shop", folding=Folding(SCHEMA, "product", ("id",))
    )
    metrics = IngestMetrics("shop", "debezium", version="1.2.3")
    changed: list[str] = []
    written = ""

    def told() -> str:
        nonlocal written
        written += capsys.readouterr().err
        return written

    with open_writer(settings) as writer:
        metrics.follow(Cdcv2Driver(writer, settings), changed=lambda: [*changed])
        with standstill_told(metrics, ProgressReporter(), look_every_s=0.001):
            changed.append("/in/1.json")
            wait_until(lambda: "1 input file changed after being read, first /in/1.json" in told())
            changed.append("/in/2.json")
            wait_until(lambda: "1 input file changed after being read, first /in/2.json" in told())
            assert samples(metrics)["changed_files"][1] == 2
    assert told().count("/in/1.json") == 1
