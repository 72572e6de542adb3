"""Rows with Spark's ``_metadata`` are ordered by their files, however Spark laid these out."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
from tailrace_server.pipeline.dataframe.datasource import StreamWriter, TaskMessage
from tailrace_server.pipeline.dataframe.write_options import Options
from tests.process.ingest.reading import data

if TYPE_CHECKING:
    from pathlib import Path

METADATA = pa.struct(
    [
        ("file_path", pa.string()),
        ("file_block_start", pa.int64()),
        ("file_modification_time", pa.timestamp("us", "UTC")),
    ]
)
_TEXTS = ("transaction_id", "operation", "entity_type", "primary_key", "after")
SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("_metadata", METADATA)])
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def rows(file: tuple[int, str, int], count: int = 3) -> list[dict[str, object]]:
    """Return the rows of a block: time in µs, path, and start."""
    time, path, block = file
    metadata = {
        "file_path": path,
        "file_block_start": block,
        "file_modification_time": FIRST + timedelta(microseconds=time),
    }
    return [
        {
            "transaction_id": f"{time}{path}{block}-{line}",
            "operation": "upsert",
            "entity_type": "t",
            "primary_key": f"{time}{path}{block}-{line}",
            "after": '{"id":1}',
            "_metadata": metadata,
        }
        for line in range(count)
    ]


def commit(root: Path, tasks: list[list[dict[str, object]]]) -> None:
    sink = OpenedCatalog.open(Options.of({"path": str(root / "shop")}), may_be_fenced=True)
    commits = [
        TaskMessage(
            sink.write(iter(pa.Table.from_pylist(task, SCHEMA).to_batches(4)), uuid4().hex, "q")
        )
        for task in tasks
    ]
    StreamWriter(sink.options, None).commit([*commits], 0)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_taken_by_time_name_and_place(tmp_path: Path, seed: int) -> None:
    files = [(1, "b", 0), (2, "a", 0), (2, "a", 100), (2, "b", 0), (3, "a", 0)]
    shuffled = random.Random(seed).sample(files, len(files))
    cut = seed % len(files)
    tasks = [
        [row for file in part for row in rows(file)] for part in (shuffled[:cut], shuffled[cut:])
    ]
    commit(tmp_path, tasks)
    wanted = [row["primary_key"] for file in files for row in rows(file)]
    assert [record.primary_key for record in data(tmp_path / "shop")] == wanted


@pytest.mark.parametrize("apart", ["tasks", "rows"])
def test_rows_of_a_block_that_a_shuffle_has_spread_are_refused(tmp_path: Path, apart: str) -> None:
    one, other = rows((1, "a", 0)), rows((2, "b", 0))
    tasks = [one[:1] + other, one[1:]] if apart == "tasks" else [one[:1] + other + one[1:]]
    with pytest.raises(InvalidRequest, match="are not consecutive"):
        commit(tmp_path, tasks)
    assert not data(tmp_path / "shop")
