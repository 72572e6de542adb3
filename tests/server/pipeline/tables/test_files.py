"""Snapshots from files: what becomes a version, and what is refused before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace.log
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.tables.files import ingest_snapshot
from tailrace_server.pipeline.tables.settings import SnapshotSettings
from tailrace_server.wal.catalog import list_catalogs
from tests.rules.test_documented_programs import blocks


def settings(root: Path, name: str, **given: Any) -> SnapshotSettings:
    options = {"entity_type": "person", "key": ("id",), **given}
    return SnapshotSettings(log=root / "log", catalog="shop", input=str(root / name), **options)


def ingest(root: Path, name: str, **given: Any) -> None:
    ingest_snapshot(settings(root, name, **given), ProgressReporter(quiet=True))


def changes(root: Path) -> list[tuple[Any, ...]]:
    """Return version, id, type and name of each change, sorted."""
    rows = tailrace.log.read(root / "log", "shop", "person").read_all().to_pylist()
    names = ("_commit_version", "id", "_change_type", "name")
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_the_difference_of_each_format_is_one_version(tmp_path: Path) -> None:
    """Formats and types of strings may alternate: JSON lines, CSV, a folder of Parquet files, views."""
    (tmp_path / "a.jsonl").write_text('{"id":1,"name":"ann"}\n{"id":2,"name":"bob"}\n')
    (tmp_path / "b.csv").write_text("id,name\n2,Bob\n3,cy\n")
    (tmp_path / "c").mkdir()
    for id, name in ((2, "Bob"), (3, "Cy")):
        names = pa.array([name], pa.string_view())
        pq.write_table(pa.table({"id": [id], "name": names}), tmp_path / "c" / f"{id}.parquet")
    ingest(tmp_path, "a.jsonl")
    ingest(tmp_path, "b.csv")
    ingest(tmp_path, "b.csv")
    ingest(tmp_path, "c")
    assert changes(tmp_path) == [
        (1, 1, "insert", "ann"),
        (1, 2, "insert", "bob"),
        (2, 1, "delete", "ann"),
        (2, 2, "update_postimage", "Bob"),
        (2, 2, "update_preimage", "bob"),
        (2, 3, "insert", "cy"),
        (3, 3, "update_postimage", "Cy"),
        (3, 3, "update_preimage", "cy"),
    ]


def test_a_column_of_csv_may_be_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,007\n")
    ingest(tmp_path, "a.csv", text=("name",))
    assert changes(tmp_path) == [(1, 1, "insert", "007")]


@pytest.mark.parametrize(
    ("name", "content", "given", "message"),
    [
        ("none.csv", None, {}, "none.csv: there is no such file"),
        ("a.dat", "id,name\n1,x\n", {}, "a.dat: choose one of csv, json, parquet with --format"),
        ("a.csv", "id,name\n1,x\n", {"format": "cvs"}, "--format cvs; did you mean csv"),
        (
            "a.csv",
            "id,name\n1,x\n",
            {"text": ("named",)},
            "--text: no column 'named'; did you mean",
        ),
        ("a.json", '{"id":1}\n', {"text": ("id",)}, "--text is for CSV files"),
        ("a.csv", "id,name\n1,x\n1,y\n", {}, "person.*1"),
        ("a.csv", "id,name\n1,x\n,y\n", {}, r"column id of row 1 .* is null"),
        ("a.csv", "id,name\n1,x\n2\n", {}, "a.csv: .*Expected 2 columns, got 1"),
        ("a.csv", "id,name\n1,x\n", {"key": ("no",)}, "no column 'no'"),
        ("a.csv", "id,name\n1,x\n", {"key": ()}, "name the columns of the primary key"),
        ("a.parquet", "no parquet", {}, "a.parquet"),
        ("a.csv", "id,ID\n1,x\n", {}, "differ by case only"),
    ],
)
def test_a_refused_snapshot_writes_nothing(
    tmp_path: Path, name: str, content: str | None, given: dict[str, Any], message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    (tmp_path / "log").mkdir()
    with pytest.raises(InvalidRequest, match=message):
        ingest(tmp_path, name, **given)
    assert not list_catalogs(tmp_path / "log")


@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    (program,) = blocks("ingest-tables.md", "Files with all rows", "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for note in ("the differences are version 1", "nothing differs from version 1"):
        done = subprocess.run(
            ["sh", "-e", "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert note in done.stderr
    rows = tailrace.log.read(tmp_path / "log", "shop", "person", shape="state").read_all()
    assert sorted(rows["zip"].to_pylist()) == ["01234", "98765"]
