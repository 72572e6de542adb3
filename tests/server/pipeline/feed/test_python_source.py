"""The generator of docs/ingest-postgres.md as a source: it continues where the catalog ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.loop import run_feed
from tailrace_server.pipeline.feed.python_source import PythonSource
from tailrace_server.pipeline.feed.settings import FeedSettings
from tailrace_server.pipeline.feed.source import SourceRefused, Transaction
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.record.mutation import Mutation
from tests.rules.test_documented_programs import blocks
from tests.server.wal.logs import armed, rows_of, transactions_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (source,) = blocks("ingest-postgres.md", "Your own source", "python")
    (tmp_path / "shop_feed.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_feed", raising=False)
    return "shop_feed:changes"


def ingest(program: str, root: Path) -> int:
    """Run the ingest once; return the number of versions that it wrote."""
    return run(PythonSource.load(program), root)


def run(source: PythonSource, root: Path) -> int:
    counters = run_feed(
        [source],
        "python",
        FeedSettings(log=root, catalog="shop", batch_rows=1),
        ProgressReporter(quiet=True),
        stopping=Stopping(),
        metrics=IngestMetrics("shop", "python", version="1"),
    )
    return counters.versions


def test_a_generator_continues_where_the_catalog_ends(program: str, tmp_path: Path) -> None:
    assert ingest(program, tmp_path) == 3
    assert ingest(program, tmp_path) == 0
    assert open_catalog(tmp_path, "shop").state.source_positions[f"python:{program}"] == "3"


@pytest.mark.parametrize("place", ["feed.before_commit=error@2", "feed.after_commit=error@2"])
def test_a_failure_around_a_commit_neither_loses_nor_repeats_a_transaction(
    program: str, tmp_path: Path, place: str
) -> None:
    with armed(place), pytest.raises(OSError, match="failpoint"):
        ingest(program, tmp_path)
    ingest(program, tmp_path)
    assert transactions_in(rows_of(tmp_path / "shop")) == ["1", "2", "3"]


def test_a_generator_that_goes_back_writes_nothing_twice(tmp_path: Path) -> None:
    """The error of a function that forgets its argument, and of one whose positions repeat."""

    def at(*positions: str) -> PythonSource:
        def items(after: str | None) -> Iterator[Transaction]:
            for each in positions:
                yield Transaction(
                    mutations=[Mutation("t", each, after=b"{}")],
                    transaction_id=each,
                    position=each,
                )

        return PythonSource("back", items)

    def written(*positions: str) -> list[str]:
        with suppress(SourceRefused):
            run(at(*positions), tmp_path)
        return transactions_in(rows_of(tmp_path / "shop"))

    assert written("9", "10") == ["9", "10"]
    with pytest.raises(SourceRefused, match="position '9', but it is already at '10'"):
        run(at("9", "11"), tmp_path)
    assert written("10", "11") == ["9", "10"]
    assert written("11", "b", "b", "c") == ["9", "10", "11", "b"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("shop_feed", "package.module:function"),
        ("shop_food:changes", "no module shop_food"),
        ("shop_feed:change", "has no change"),
    ],
)
def test_a_function_that_cannot_be_found_is_named(program: str, function: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        PythonSource.load(function)
