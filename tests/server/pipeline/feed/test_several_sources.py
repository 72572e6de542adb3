"""Several sources in one catalog: each transaction once, in its source's order, and snapshots as a whole."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest
from tailrace_server.cli.ingest.app import ingest_app
from tailrace_server.pipeline.feed.loop import run_feed
from tailrace_server.pipeline.feed.postgres.options import PostgresOptions
from tailrace_server.pipeline.feed.python_source import PythonSource
from tailrace_server.pipeline.feed.settings import FeedSettings, PythonOptions
from tailrace_server.pipeline.feed.source import (
    Moved,
    SnapshotEnd,
    SnapshotRows,
    SourceLost,
    SourceRefused,
    SourceUnreachable,
    Transaction,
)
from tailrace_server.pipeline.feed_sources import read_sources
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.record.mutation import Mutation
from tests.process.ingest.reading import records
from tests.rules.test_documented_programs import blocks
from tests.server.pipeline.run.test_ingest_metrics import samples
from tests.server.wal.logs import armed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tailrace_server.pipeline.feed.source import Item

SNAPSHOT = 25
"""Rows of the snapshot with which a table begins."""
LAST = 60


def table(name: str, seed: int) -> Callable[[str | None], Iterator[Item | None]]:
    """Return a source: a snapshot of rows 1 to 25, then inserts of the rows behind it, with interruptions."""
    chance = random.Random(seed)

    def items(after: str | None) -> Iterator[Item | None]:
        if after in (None, "begun"):
            yield Moved("begun")
            for first in range(1, SNAPSHOT, 5):
                rows = {str(each): b"{}" for each in range(first, first + 5)}
                yield SnapshotRows(name, rows)
                if not chance.randrange(40):
                    raise SourceUnreachable(f"{name} is away")
            yield SnapshotEnd(name)
            yield Moved(after := str(SNAPSHOT))
        for number in range(int(after) + 1, LAST + 1):
            if not chance.randrange(3):
                yield None
            yield Transaction(
                mutations=[Mutation(name, str(number), after=b"{}")],
                transaction_id=f"{name}{number}",
                source_timestamp=number,
                position=str(number),
            )

    return items


def ingest(
    root: Path, sources: dict[str, Any], *, stopping: Stopping | None = None, **options: Any
) -> IngestMetrics:
    metrics = IngestMetrics("shop", "sources", version="1")
    run_feed(
        [PythonSource(*each) for each in sources.items()],
        "sources",
        FeedSettings(log=root, catalog="shop", **options),
        ProgressReporter(quiet=True),
        stopping=stopping or Stopping(),
        metrics=metrics,
    )
    return metrics


def keys(root: Path, entity_type: str) -> list[str | None]:
    """Return the keys of all published changes of an entity type."""
    if not (root / "shop").exists():
        return []
    found = records(root / "shop")
    return [x.primary_key for x in found if x.area == Area.DATA and x.entity_type == entity_type]


PLACES = ("feed.before_commit", "feed.after_commit", "feed.before_acknowledge")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_each_change_is_in_the_log_once_in_its_order_through_failures(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    sources = {name: table(name, seed) for name in ("a", "b", "c")}
    for attempt in range(40):
        place = f"{chance.choice(PLACES)}=error@{chance.randrange(1, 9)}"
        try:
            with armed(place if attempt < 6 else ""):
                ingest(tmp_path, sources, batch_rows=chance.randrange(1, 20))
            break
        except (OSError, SourceUnreachable):
            pass
        for name in sources:
            # A snapshot is visible as a whole or not at all.
            seen = keys(tmp_path, name)
            assert not seen or len(seen) >= SNAPSHOT
            assert seen == [str(each) for each in range(1, len(seen) + 1)]
    positions = open_catalog(tmp_path, "shop").state.source_positions
    for name in sources:
        assert keys(tmp_path, name) == [str(each) for each in range(1, LAST + 1)]
        assert positions[f"python:{name}"] == str(LAST)


@pytest.mark.slow
def test_a_source_that_is_away_does_not_hold_up_another(tmp_path: Path) -> None:
    """The second goes on while the first is away, and the first returns."""
    stopping, done = Stopping(), threading.Event()
    away = 0

    def first(after: str | None) -> Iterator[Item | None]:
        nonlocal away
        yield from ()
        away += 1
        if away == 1:
            yield Transaction(mutations=[Mutation("a", "1", after=b"{}")], position="1")
            raise SourceUnreachable("away")
        assert after == "1"
        while not done.wait(0.01):
            yield None
        yield Moved("2")
        stopping.set()
        yield None

    def second(after: str | None) -> Iterator[Item | None]:
        yield from table("b", 1)(str(SNAPSHOT))
        yield Moved("end")
        done.set()
        while not stopping.wait(0.01):
            yield None

    metrics = ingest(tmp_path, {"a": first, "b": second}, follow=True, stopping=stopping)
    assert keys(tmp_path, "a") == ["1"]
    assert len(keys(tmp_path, "b")) == LAST - SNAPSHOT
    assert metrics.counters.sources["python:a"].positions == {"": 2}
    figures = metrics.counters.sources["python:b"]
    assert (figures.rows, figures.newest_us) == (LAST - SNAPSHOT, LAST)
    assert samples(metrics)["rows_total"][0] == {"catalog": "shop", "source": "python:b"}


def one(entity_type: str, then: Exception | None = None) -> Callable[..., Iterable[Item]]:
    def items(after: str | None) -> Iterator[Item]:
        if after is None:
            yield Transaction(mutations=[Mutation(entity_type, "1", after=b"{}")], position="1")
        if then is not None:
            raise then

    return items


def test_the_error_of_one_source_ends_the_run_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceLost, match="python:b: gone"):
        ingest(tmp_path, {"a": table("a", 1), "b": one("b", SourceLost("gone"))})
    assert keys(tmp_path, "b") == ["1"]


def test_an_entity_type_belongs_to_one_source_also_in_later_runs(tmp_path: Path) -> None:
    ingest(tmp_path, {"a": one("x"), "b": one("y")})
    types = open_catalog(tmp_path, "shop").state.source_positions["feed:types:python:a"]
    assert orjson.loads(str(types)) == ["x"]
    reason = "python:c has rows of x, which python:a writes"
    with pytest.raises(SourceRefused, match=reason):
        ingest(tmp_path, {"a": one("x"), "c": one("x")})
    assert keys(tmp_path, "x") == ["1"]
    ingest(tmp_path, {"c": one("x"), "b": one("y")})  # once it is listed no longer
    with pytest.raises(SourceRefused, match="two sources are called python:a"):
        run_feed(
            [PythonSource("a", one("x")), PythonSource("a", one("y"))],
            "sources",
            FeedSettings(log=tmp_path, catalog="other"),
            ProgressReporter(quiet=True),
            stopping=Stopping(),
            metrics=IngestMetrics("other", "sources", version="1"),
        )
    assert not (tmp_path / "other").exists()


def test_another_source_does_not_publish_a_hidden_snapshot(tmp_path: Path) -> None:
    """It was killed while the snapshot was written: nothing else is written before this is complete."""
    sources = {"a": table("a", 99)}
    with armed("feed.after_commit=error@4"), pytest.raises(OSError, match="failpoint"):
        ingest(tmp_path, sources, batch_rows=5)
    assert keys(tmp_path, "a") == []
    with pytest.raises(SourceRefused, match="snapshot of python:a is incomplete"):
        ingest(tmp_path, {"b": one("b")})
    reason = "snapshot of python:a was interrupted"
    with pytest.raises(SourceRefused, match=reason):
        ingest(tmp_path, {"a": lambda _: sources["a"]("30"), "b": one("b")})
    assert keys(tmp_path, "a") == []
    begun = iter(("begun",))

    def again(after: str | None) -> Iterator[Item | None]:
        assert next(begun) == after
        yield None
        assert keys(tmp_path, "b") == []
        yield from sources["a"](after)

    ingest(tmp_path, {"b": one("b"), "a": again})
    assert (len(keys(tmp_path, "a")), keys(tmp_path, "b")) == (LAST, ["1"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[source", "it is not TOML"),
        ("[[sources]]", "there is no 'sources'; did you mean source"),
        ("", r"write \[\[source\]\] and its options"),
        ("[[source]]\nkind='postgrs'", "source 1: kind = 'postgrs'; did you mean postgres"),
        ("[[source]]\nkind='postgres'", r"source 1 \(postgres\): dsn is missing"),
        ("[[source]]\nkind='python'\nfunktion='a:b'", "unknown option 'funktion'; did you mean"),
        ("[[source]]\nkind='postgres'\ndsn='x'\nresnapshot=true", "unknown option 'resnapshot'"),
        ("[[source]]\nkind='postgres'\ndsn='x'\ntable='t'", "table = 't': write a list of texts"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "sources.toml"
    with pytest.raises(InvalidRequest, match="no such file"):
        read_sources(str(file))
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=reason):
        read_sources(str(file))


def test_the_file_of_the_page_has_the_options_of_the_commands(tmp_path: Path) -> None:
    file = tmp_path / "sources.toml"
    (text,) = blocks("ingest-postgres.md", "Several sources in one catalog", "toml")
    file.write_text(text)
    assert read_sources(str(file)) == [
        PostgresOptions(dsn="postgresql://reader@db/shop", slot="shop"),
        PythonOptions(function="shop_feed:changes"),
    ]


@pytest.mark.slow
def test_the_command_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (program,) = blocks("ingest-postgres.md", "Your own source", "python")
    text = ""
    for name in ("first_feed", "second_feed"):
        (tmp_path / f"{name}.py").write_text(program.replace('"product"', f'"{name}"'))
        text += f"[[source]]\nkind = 'python'\nfunction = '{name}:changes'\n"
    (tmp_path / "sources.toml").write_text(text)
    command = ["sources", "sources.toml", "--log", str(tmp_path), "--catalog", "shop"]
    runner = CliRunner()
    assert runner.invoke(ingest_app, command).exit_code == 0
    assert keys(tmp_path, "first_feed") == keys(tmp_path, "second_feed") == ["1", "2", "3"]
    found = runner.invoke(ingest_app, [*command, "--resnapshot", "python:first_feed:change"])
    assert "did you mean python:first_feed:changes" in str(found.exception)
