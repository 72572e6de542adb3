"""The programs of docs/log-writer.md, docs/read-log.md and docs/cdcv2.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from tailrace import Area, Operation
from tailrace.cdcv2 import Progress, Reader, Update
from tailrace_server.cdcv2 import AvroForm, read_lines
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import records

if TYPE_CHECKING:
    import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, section: str, language: str) -> list[str]:
    """Return the code blocks of a language below a heading, up to the next of its level."""
    text = (DOCS / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def run(program: str) -> None:
    exec(compile(program, "a program of the docs", "exec"), {"__name__": "__main__"})


def test_the_writer_of_the_page_of_ingests_writes_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("log-writer.md", "A program", "python")
    (batches,) = blocks("log-writer.md", "Record batches", "python")
    run(program)
    assert capsys.readouterr().out == "durable: 1 to 3\npublished: 3\n"
    assert CommitLog.open(tmp_path / "log" / "shop").view.published == 5
    rows = [each for each in records(tmp_path / "log" / "shop") if each.area == Area.DATA]
    found = [(each.version, each.primary_key, each.operation, each.changed) for each in rows]
    assert found == [
        (1, "1", Operation.UPSERT, None),
        (2, "1", Operation.UPSERT, ["price"]),
        (3, "1", Operation.REMOVE, None),
        (4, None, Operation.REMOVE, None),
        (5, "2", Operation.UPSERT, None),
    ]
    assert rows[1].before == b'{"id": 1, "name": "cup", "price": 9.90}'
    assert rows[3].change == b'{"truncate": true}'
    run(batches)
    assert capsys.readouterr().out == "versions: 7\n"
    assert [each.primary_key for each in records(tmp_path / "log" / "shop")][-3:] == [
        "2",
        None,
        "1",
    ]


def test_the_reader_of_a_log_feeds_polars_pandas_and_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (writing,) = blocks("log-writer.md", "A program", "python")
    program = (DOCS / "read-log.md").read_text().partition("```python\n")[2].partition("```")[0]
    run(writing)
    capsys.readouterr()
    run(program)
    found = capsys.readouterr().out
    kinds = ["insert", "update_preimage", "update_postimage", "delete", "insert"]
    counts = [("remove", 2), ("transaction", 5), ("upsert", 4)]
    assert found.startswith(f"{kinds} 4.00 {counts}\n0 changes since 1.")


def test_the_programs_of_the_page_of_cdcv2_run_on_the_schema_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the lines that it shows are those that are written, apart from how they are cut."""
    monkeypatch.chdir(tmp_path)
    schema, lines = blocks("cdcv2.md", "The schema", "json")
    orjson.loads(schema)
    Path("price.avsc").write_text(schema)
    (writing,) = blocks("cdcv2.md", "Writing", "python")
    (reading,) = blocks("cdcv2.md", "Reading", "python")
    run(writing)
    run(reading)
    form = AvroForm.of(schema)
    shown = list(read_lines(form, lines.splitlines()))
    assert shown[-1] == Progress((0,), (10,), ((4, 1), (5, 2)))
    written = list(read_lines(form, Path("changes.jsonl").read_bytes().splitlines()))
    states = []
    for messages in (shown, written):
        reader: Reader[int] = Reader()
        found = [update for each in messages for done, _ in reader.receive(each) for update in done]
        states.append((sorted(found, key=repr), reader.frontier))
    assert states[0] == states[1]
    assert Update((5, 12), 4, 1) in states[0][0]
    assert str(states[0][0][0]) in capsys.readouterr().out
