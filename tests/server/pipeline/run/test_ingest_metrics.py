"""What an ingest tells of itself. The command with both outlets: tests/process/ingest/test_metrics.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.cdcv2 import Progress, Update
from tailrace.errors import LogFull
from tailrace_server.cdcv2 import write_line
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.input.change import FileSplit, quarantined
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import IngestCounters, ProgressReporter
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.run.stop_signals import Stopping
from tests.server.pipeline.cdcv2.streams import SCHEMA, put

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace.cdcv2 import Statement

SHOP = {"catalog": "shop"}


def samples(metrics: IngestMetrics) -> dict[str, tuple[dict[str, str], float]]:
    """Return what a scrape shows, by name; of one with several samples the last."""
    registry = CollectorRegistry()
    registry.register(metrics)
    text = generate_latest(registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["catalog"] == "shop", sample
            found[sample.name.removeprefix("tailrace_ingest_")] = (sample.labels, sample.value)
    return found


def test_a_run_shows_what_it_has_read_committed_set_aside_and_left(
    tmp_path: Path, log_root: Path
) -> None:
    told: list[Statement[int]] = [[Update((1, "cup", None), 0, 1)]]
    told.append(Progress((0,), (1,), ((0, 1),)))
    lines = b"".join(write_line(SCHEMA.form, each) for each in told)
    (tmp_path / "in").mkdir()
    put(tmp_path / "in" / "a.json", lines + b"no message\n")
    settings = Cdcv2Settings(
        input=tmp_path / "in",
        log=log_root,
        catalog="shop",
        folding=Folding(SCHEMA, "product", ("id",)),
    )
    metrics = IngestMetrics("shop", "cdcv2", version="1.2.3")
    assert samples(metrics)["lines_total"] == (SHOP, 0.0)
    ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping(), metrics=metrics)
    found = samples(metrics)
    size = (tmp_path / "in" / "a.json").stat().st_size
    expected = {
        **{"lines_total": 3, "rows_total": 1, "input_files_total": 1, "input_bytes_total": size},
        **{"versions_total": 1, "published_version": 1, "committed_version": 1, "epoch": 1},
        **{"waiting_files": 0, "waiting_bytes": 0, "open_transactions": 0, "running": 1},
        **{"commit_seconds_count": 1, "info": 1, "failed": 0},
    }
    assert {name: found[name][1] for name in expected} == expected
    assert found["written_bytes_total"][1] > 0
    labels, count = found["set_aside_total"]
    assert labels["reason"]
    assert count == 1
    assert "newest_source_timestamp_seconds" not in found  # its times are no clock's
    assert "ended_timestamp_seconds" not in found


def test_how_it_ended_is_told_with_what_waits_by_then(tmp_path: Path) -> None:
    metrics = IngestMetrics("shop", "debezium", version="1.2.3")
    metrics.end(LogFull("no room"))
    found = samples(metrics)
    assert found["failed"] == ({**SHOP, "code": "LOG_FULL"}, 1.0)
    assert found["running"] == (SHOP, 0.0)
    assert found["ended_timestamp_seconds"][1] >= found["started_timestamp_seconds"][1]
    ours = IngestMetrics("shop", "debezium", version="1.2.3")
    ours.end(KeyError("a bug"))
    assert samples(ours)["failed"] == ({**SHOP, "code": "INTERNAL"}, 1.0)


def of(reasons: Iterable[str]) -> SetAside:
    """Return the summary of lines with some reasons."""
    lines = (quarantined(FileSplit("f"), n, b"", each) for n, each in enumerate(reasons, 1))
    return SetAside.of(lines, lambda _: False)


def test_reasons_are_few_however_many_values_they_name() -> None:
    counters = IngestCounters()
    counters.count_set_aside(of(f"no key: the image has no column {n}" for n in range(1_000)))
    assert dict(counters.set_aside) == {"no key": 1_000}
    counters.count_set_aside(of(f"row {n} is wrong" for n in range(1_000)))
    assert len(counters.set_aside) <= 31
    assert counters.set_aside.total() == counters.quarantined == 2_000
    assert counters.set_aside["other"] > 900


def test_the_commonest_reason_is_whole_with_its_remedy() -> None:
    counters = IngestCounters()
    assert counters.commonest_reason == ""
    counters.count_set_aside(of(["no key: 1", "CSV: write JSON", "CSV: write JSON"]))
    assert counters.commonest_reason == "CSV: write JSON"


def test_statements_are_counted_by_the_table_whose_rows_they_have_changed() -> None:
    metrics = IngestMetrics("shop", "debezium", version="1.2.3")
    line = quarantined(FileSplit("f"), 1, b"", "DROP TABLE: …")._replace(table="shop.orders")
    aside = SetAside.of([line, line], lambda _: False)
    metrics.counters.count_set_aside(aside.with_effects(lambda *_: True))
    labels = SHOP | {"table": "shop.orders"}
    assert samples(metrics)["unapplied_statements_total"] == (labels, 2.0)


def test_lag_is_that_of_the_newest_row_by_the_clock_of_its_source() -> None:
    metrics = IngestMetrics("shop", "debezium", version="1.2.3")
    metrics.counters.newest_us = 1_500_000
    found = samples(metrics)
    assert found["newest_source_timestamp_seconds"] == (SHOP | {"source": "debezium"}, 1.5)
    assert found["source_lag_seconds"][1] > 1e9
