"""A source is a class of a few lines: `Pairs` goes through the driver, to a log, and back out of it.

tests/process/ingest/test_ingest.py has Spark read it, in the driver and in tasks.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from tailrace_server.cli.ingest.app import source_command
from tailrace_server.option_fields import values_of
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.input.change import Change, FileSplit
from tailrace_server.pipeline.sources.registry import SOURCES
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA, decode_lines
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.wal.catalog import create_catalog, open_writer
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.shapes import UNBOUND
from tests.server.pipeline.sources.pairs import Pairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Ingest:
    """A driver fed with batches of lines, as Spark would hand them over."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.settings = IngestSettings(
            input=root, log=root, catalog="shop", source=Pairs(), **settings
        )
        create_catalog(root, "shop")
        self.writer = open_writer(root, "shop", writer="test")
        self.driver = Driver(self.writer, self.settings)

    def batch(self, number: int, *lines: bytes) -> None:
        file = f"file://{self.settings.input}/{number:05}.txt"
        rows = [{"value": each, "file": file, "block": 0, "modified_us": number} for each in lines]
        table = pa.Table.from_pylist(rows, LINES_SCHEMA)
        decoded = decode_lines(table, self.settings, self.driver.bindings, self.driver.consumed)
        self.driver.batch(number, decoded.changes, decoded.skipped)


@pytest.fixture
def make_ingest(tmp_path: Path) -> Iterator[Any]:
    made: list[Ingest] = []

    def make(**settings: Any) -> Ingest:
        made.append(Ingest(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.writer.close()


def test_lines_become_versions_of_a_log(make_ingest: Any, tmp_path: Path) -> None:
    ingest = make_ingest()
    ingest.batch(0, b"1 a=x", b"1 b=y", b"", b"nonsense")
    ingest.batch(1, b"2 a=z", b"1 c=w")
    ingest.driver.flush(ended=True)
    assert [(r.version, r.primary_key, r.after) for r in data(tmp_path / "shop")] == [
        (1, "a", b'{"id": "a", "value": "x"}'),
        (1, "b", b'{"id": "b", "value": "y"}'),
        (1, "c", b'{"id": "c", "value": "w"}'),
        (2, "a", b'{"id": "a", "value": "z"}'),
    ]
    assert [body["transaction_id"] for body in leads(tmp_path / "shop")] == ["1", "2"]
    counters = ingest.driver.counters
    assert (counters.lines, counters.ignored, counters.quarantined) == (6, 1, 1)
    assert ingest.driver.consumed("00000.txt") == 4


def test_a_strict_ingest_names_the_line(make_ingest: Any) -> None:
    with pytest.raises(LineRefused, match=r"00000\.txt line 2: not a pair"):
        make_ingest(strict=True).batch(0, b"1 a=x", b"nonsense")


def test_a_source_pickles_with_its_options() -> None:
    for source in (Pairs(entity_type="price"), *(each() for each in SOURCES.values())):
        assert pickle.loads(pickle.dumps(source)) == source


def test_the_command_has_the_options_of_source_and_settings(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("pairs")(source_command(Pairs))
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert "Turn pairs, one a line, into versions of a catalog." in shown
    assert "--entity-type" in shown
    assert "--transaction-idle" in shown
    assert values_of(Pairs, {"entity_type": "price"}) == {"entity_type": "price"}


def test_a_change_is_restated_as_a_line_that_says_the_same() -> None:
    decode = Pairs().line_decoder(None, 1 << 20, UNBOUND)
    change = decode(FileSplit("f"), 1, b"7 a=x")
    assert isinstance(change, Change)
    assert Pairs().restated(change) == b"7 a=x"
