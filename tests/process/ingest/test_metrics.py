"""Metrics of the command ``tailrace ingest``: on its port while it runs, in its file when it has ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.transactions.ingest import run_ingest
from tests.process.commands import TERMINATE, Command
from tests.server.pipeline.cdcv2.streams import SCHEMA, make_history, statements, write_files
from tests.server.pipeline.run.test_ingest_metrics import samples
from tests.server.pipeline.shapes import end, envelope, line, postgres
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow


def value(text: str, name: str, labels: str = "") -> float:
    """Return one sample of the catalog ``shop``."""
    found = re.search(
        rf'^tailrace_ingest_{name}{{catalog="shop"{labels}}} (\S+)$', text, re.MULTILINE
    )
    assert found is not None, (name, text)
    return float(found[1])


async def test_an_ingest_that_follows_is_scraped_and_leaves_its_last_values(
    tmp_path: Path, log_root: Path
) -> None:
    source, schema, file = tmp_path / "in", tmp_path / "schema.json", tmp_path / "shop.prom"
    schema.write_text(SCHEMA.text)
    source.mkdir()
    write_files(source, statements(make_history(1, 20, 10, 5), 10, 21), 1)
    files = len([*source.iterdir()])
    options = ("--input", source, "--log", log_root, "--catalog", "shop", "--follow")
    stream = ("--schema", schema, "--entity-type", "product", "--key", "id")
    outlets = ("--metrics", "0", "--metrics-file", file)
    async with Command("ingest", "cdcv2", *options, *stream, *outlets) as command:
        url = "http://" + (await command.note("metrics at http://")).rpartition("http://")[2]
        async with httpx.AsyncClient(trust_env=False) as http:

            async def all_published() -> bool:
                now = (await http.get(url)).text
                # A batch counts its files after its commit, but before it is published.
                read = value(now, "input_files_total") == files
                return read and value(now, "published_version") == value(now, "committed_version")

            await until_answered(all_published)
            text = (await http.get(url)).text
        assert value(text, "running") == 1
        command.send(TERMINATE)
        assert await command.end() == 143
    last = file.read_text()
    assert value(last, "versions_total") == value(text, "versions_total") > 0
    assert value(last, "published_version") == value(text, "published_version") > 0
    assert (value(last, "running"), value(last, "waiting_files")) == (0, 0)
    assert value(last, "failed", ',code=""') == 0


async def test_a_run_that_could_not_begin_says_so_in_the_file(
    tmp_path: Path, log_root: Path
) -> None:
    schema, file = tmp_path / "schema.json", tmp_path / "shop.prom"
    schema.write_text(SCHEMA.text)
    options = ("--input", tmp_path / "absent", "--log", log_root, "--catalog", "shop")
    stream = ("--schema", schema, "--entity-type", "product", "--metrics-file", file)
    async with Command("ingest", "cdcv2", *options, *stream) as command:
        assert await command.end() == 2
    assert value(file.read_text(), "failed", ',code="INVALID_REQUEST"') == 1
    assert value(file.read_text(), "running") == 0


def test_an_ingest_on_spark_counts_files_bytes_and_how_far_its_source_is_ahead(
    source: Source,
) -> None:
    (source.input / "deep").mkdir()
    rows = [line(envelope("c", postgres(n, 7), after={"id": n})) for n in (1, 2)]
    files = [source.add(*rows, line(end("7", 2)), name="deep/a b.json"), source.add(b"{}")]
    size = sum(file.stat().st_size for file in files)
    metrics = IngestMetrics("shop", "debezium", version="1.2.3")
    run_ingest(source.settings, ProgressReporter(quiet=True), source.spark, metrics)
    found = {name: figure for name, (_, figure) in samples(metrics).items()}
    assert (found["input_files_total"], found["input_bytes_total"]) == (2, size)
    assert (found["rows_total"], found["versions_total"], found["set_aside_total"]) == (2, 1, 1)
    assert (found["waiting_files"], found["waiting_bytes"]) == (0, 0)
    assert found["newest_source_timestamp_seconds"] > 0
    assert found["source_lag_seconds"] > 0
    source.add(b"{}")
    metrics.end()  # looks once more
    assert {name: figure for name, (_, figure) in samples(metrics).items()}["waiting_files"] == 1
