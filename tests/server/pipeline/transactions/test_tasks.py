"""What tasks are given and give; tests/process/ingest/test_ingest.py has Spark run them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.input.change import CHANGE, SPLIT, Change, from_table, to_batch
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.pipeline.transactions.tally import Tally
from tailrace_server.pipeline.transactions.tasks import (
    PENDING_FILES,
    ROWS,
    Layout,
    TaskWriter,
    decode_plan,
    decoder_of,
    encode_plan,
    pending_reader,
)
from tests.server.pipeline.shapes import UNBOUND
from tests.server.pipeline.sources.pairs import Pairs


@given(st.lists(st.integers(0, 50_000), max_size=30), st.integers(1, 8))
def test_every_version_has_one_task_and_tasks_follow_the_versions(
    rows: list[int], cores: int
) -> None:
    layout = Layout.of(rows, cores)
    tasks = [layout.task(version) for version in range(len(rows))]
    assert tasks == sorted(tasks)
    assert layout.versions == len(rows)
    assert layout.tasks <= max(1, 2 * cores)
    assert set(tasks) == set(range(layout.tasks)) if rows else layout.tasks == 1
    assert [tasks.index(task) for task in sorted(set(tasks))] == list(layout.starts)[
        : len(set(tasks))
    ]


def test_a_few_rows_are_one_task() -> None:
    assert Layout.of([1] * 100, cores=8).tasks == 1
    assert Layout.of([20_000] * 8, cores=2).tasks == 4


def test_a_plan_gives_back_what_a_lead_needs() -> None:
    tally = Tally("7", "7:1", rows=3, quarantined=1, expected=5, timestamp=9, source="s", mark=b"1")
    assert decode_plan(encode_plan(Released(tally, 41))) == Released(tally, 41)


def test_lines_are_decoded_in_a_task(tmp_path: Path) -> None:
    settings = IngestSettings(input=tmp_path, log=tmp_path, catalog="shop", source=Pairs())
    rows = [
        {"value": value, "file": f"file:{tmp_path}/a", "block": 0, "modified_us": 1}
        for value in (b"1 a=x", b"1 b=y", b"")
    ]
    decode = decoder_of(pickle.loads(pickle.dumps(settings)), {("a", 0): 1}, UNBOUND)
    batches = pa.Table.from_pylist(rows, LINES_SCHEMA).to_batches(max_chunksize=2)
    changes = [change for batch in decode(batches) for change in from_table(batch)]
    assert [(c.kind, c.primary_key) for c in changes] == [(CHANGE, "b"), (SPLIT, None)]
    assert (changes[1].line, changes[1].number) == (3, 2)


def test_pending_rows_are_read_in_a_task_by_transaction(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    rows = [Change(CHANGE, b"%d" % n, key) for n, key in enumerate("aba")]
    file = write_pending(tmp_path / "segments" / "1" / "p.arrow", to_batch(rows))
    asked = {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "crc32c": file.crc32c,
        "keys": ["a"],
    }
    [given] = pa.Table.from_pylist([asked], PENDING_FILES).to_batches()
    [found] = pending_reader(tmp_path)([given])
    assert found.schema == ROWS
    assert found.column("place").to_pylist() == [b"0", b"2"]


def test_a_writer_of_tasks_pickles() -> None:
    writer = TaskWriter(Layout.of([1], 1), {}, Pairs(), None, Path("s.arrow"), Path("p.arrow"))
    assert pickle.loads(pickle.dumps(writer)) == writer
