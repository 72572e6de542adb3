"""Streams and writes below Spark: each row is in the log once, or an error says why not."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest, TailraceError, UnknownWriter
from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog, TaskCommit
from tailrace_server.pipeline.dataframe.datasource import StreamWriter, TaskMessage
from tailrace_server.pipeline.dataframe.input_rows import content_of, input_table
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.wal.catalog import drop_catalog, list_catalogs, open_writer
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import data


def rows(ids: list[str]) -> pa.RecordBatch:
    """Return an insert for each id."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "transaction_id": id,
                "operation": "upsert",
                "entity_type": "t",
                "primary_key": id,
                "after": '{"id":1}',
            }
            for id in ids
        ]
    )


def write(
    root: Path, ids: list[str], stream: str = "", **options: str
) -> tuple[OpenedCatalog, list[TaskCommit]]:
    """Do what Spark's tasks do, one for each row; return what the commit gets."""
    given = Options.of({"path": str(root / "shop"), **options})
    sink = OpenedCatalog.open(given, may_be_fenced=bool(stream))
    commits = [sink.write(iter([rows([id])]), uuid4().hex, stream) for id in ids] or [
        sink.write(iter([]), uuid4().hex, stream)
    ]
    return sink, commits


def commit_stream_of(sink: OpenedCatalog, commits: list[TaskCommit], number: int) -> None:
    """Commit what the tasks of a stream's batch wrote."""
    StreamWriter(sink.options, None).commit([TaskMessage(each) for each in commits], number)


def commit_stream(root: Path, ids: list[str], stream: str, number: int, **options: str) -> None:
    sink, commits = write(root, ids, stream, **options)
    commit_stream_of(sink, commits, number)


def commit_batch(root: Path, ids: list[str], stream: str = "", **options: str) -> None:
    sink, commits = write(root, ids, stream, **options)
    sink.commit(commits)


def held(root: Path) -> list[str]:
    return [record.primary_key or "" for record in data(root / "shop")]


class Stream:
    """A program of Spark with one source of rows and a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[str] = []
        """All rows of the source so far."""
        self.begin()

    def begin(self) -> None:
        """Begin a checkpoint."""
        self.query = str(uuid4())
        self.plan: list[int] = []
        """For each planned batch the end of its rows."""
        self.done = 0
        """Batches that Spark has noted as committed."""

    def batch(self) -> list[str]:
        if self.done == len(self.plan):
            self.plan.append(len(self.rows))
        start = self.plan[self.done - 1] if self.done else 0
        return self.rows[start : self.plan[self.done]]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["stream", "stream", "killed", "write", "number", "lose", "save", "restore"]
        ),
        st.integers(0, 1),
        st.integers(1, 2),
    ),
    min_size=4,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_any_order_of_streams_writes_and_checkpoints_takes_each_row_once_or_is_an_error(
    steps: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        streams = [Stream("a"), Stream("b")]
        copies: dict[int, tuple[str, list[int], int]] = {}
        written: set[str] = set()
        for step, (kind, place, count) in enumerate(steps):
            stream = streams[place]
            if kind == "lose":
                stream.begin()
            elif kind == "save":
                copies[place] = (stream.query, list(stream.plan), stream.done)
            elif kind == "restore" and place in copies:
                stream.query, plan, stream.done = copies[place]
                stream.plan = list(plan)
            with suppress(UnknownWriter, InvalidRequest):
                if kind in ("stream", "killed"):
                    stream.rows += [f"{stream.name}-{step}-{n}" for n in range(count)]
                    ids = stream.batch()
                    commit_stream(root, ids, stream.query, stream.done)
                    stream.done += kind == "stream"
                    written.update(ids)
                elif kind in ("write", "number"):
                    ids = [f"w-{step}-{n}" for n in range(count)]
                    commit_batch(root, ids, **({"batch": str(count)} if kind == "number" else {}))
                    written.update(ids)
        if (root / "shop").exists():
            assert sorted(held(root)) == sorted(written)


def test_a_stream_continues_beside_writes_of_its_writer(tmp_path: Path) -> None:
    commit_stream(tmp_path, ["1"], "q", 0)
    commit_batch(tmp_path, ["100"])
    commit_stream(tmp_path, ["2"], "q", 1)
    commit_batch(tmp_path, ["101"], batch="1")
    commit_stream(tmp_path, ["3"], "q", 2)
    assert held(tmp_path) == ["1", "100", "2", "101", "3"]


@pytest.mark.parametrize("again", [["1", "3"], ["1"], ["1", "2", "3"], []])
def test_a_repeat_with_other_rows_is_refused(tmp_path: Path, again: list[str]) -> None:
    commit_stream(tmp_path, ["1", "2"], "q", 0)
    commit_stream(tmp_path, ["2", "1"], "q", 0)
    with pytest.raises(InvalidRequest, match="other content"):
        commit_stream(tmp_path, again, "q", 0)
    assert held(tmp_path) == ["1", "2"]


def test_batches_that_the_log_lacks_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownWriter, match="has no batch"):
        commit_stream(tmp_path, ["1"], "q", 3)
    commit_stream(tmp_path, ["1"], "q", 3, take_over="true")
    with pytest.raises(UnknownWriter, match="batches up to 3"):
        commit_stream(tmp_path, ["2"], "q", 5)
    assert held(tmp_path) == ["1"]


def test_a_checkpoint_that_another_has_taken_over_from_stays_fenced(tmp_path: Path) -> None:
    commit_stream(tmp_path, ["1"], "old", 0)
    with pytest.raises(UnknownWriter, match="new or was lost"):
        commit_stream(tmp_path, ["1"], "new", 0)
    commit_stream(tmp_path, ["2"], "new", 0, take_over="true")
    for options in ({}, {"take_over": "true"}):
        with pytest.raises(UnknownWriter, match="has taken over"):
            commit_stream(tmp_path, ["3"], "old", 1, **options)
    assert held(tmp_path) == ["1", "2"]


def test_a_refused_checkpoint_that_can_be_read_does_not_fence_the_one_that_lives(
    tmp_path: Path,
) -> None:
    sink, commits = write(tmp_path, ["1"], "old")
    commit_stream_of(sink, commits, 0)
    sink, commits = write(tmp_path, ["2"], "old")
    query = str(uuid4())
    (tmp_path / "metadata").write_text(f'{{"id":"{query}"}}')
    with pytest.raises(UnknownWriter):
        write(tmp_path, ["1"], query, checkpointLocation=str(tmp_path))
    commit_stream_of(sink, commits, 1)
    assert held(tmp_path) == ["1", "2"]


@pytest.mark.parametrize(
    ("number", "refusal"), [(3, None), (2, "without a checksum"), (0, "take_over")]
)
def test_a_stream_of_an_older_tailrace_continues_with_the_number_after_its_last(
    tmp_path: Path, number: int, refusal: str | None
) -> None:
    """Its entries have Spark's ids as batch ids, and no notes."""
    with open_writer(tmp_path, "shop", writer="spark") as older:
        for id in range(3):
            older.commit(batch_id=id, publish=True)
    commit_batch(tmp_path, ["1"])
    if refusal is None:
        commit_stream(tmp_path, ["2"], "q", number)
        commit_stream(tmp_path, ["3"], "q", number + 1)
        assert held(tmp_path) == ["1", "2", "3"]
        return
    with pytest.raises(TailraceError, match=refusal):
        commit_stream(tmp_path, ["2"], "q", number)
    commit_stream(tmp_path, ["2"], "q", number, take_over="true")
    assert held(tmp_path) == ["1", "2"]
    assert CommitLog.open(tmp_path / "shop").state.source_positions["batch-ids:spark"] == 2


def test_content_is_that_of_the_rows_in_any_order_and_names_each_field() -> None:
    row = {
        "transaction_id": "a",
        "operation": 1,
        "entity_type": "t",
        "primary_key": "1",
        "changed": ["x", "y"],
        "before": None,
        "after": b"{}",
    }
    others = [
        row | {name: value}
        for name, value in (
            ("transaction_id", None),
            ("operation", 2),
            ("primary_key", "2"),
            ("changed", None),
            ("changed", []),
            ("changed", ["xy"]),
            ("before", b"{}"),
            ("after", None),
        )
    ]
    schema = pa.schema(
        [(name, pa.string()) for name in ("transaction_id", "entity_type", "primary_key")]
        + [("operation", pa.int64()), ("changed", pa.list_(pa.string()))]
        + [(name, pa.binary()) for name in ("before", "after")]
    )

    def content(*given: dict[str, object]) -> object:
        batch = pa.RecordBatch.from_pylist(list(given), schema=schema)
        return content_of(input_table(batch).combine_chunks())

    assert content(row, *others) == content(*reversed(others), row)
    assert len({content(each) for each in (row, *others)}) == 1 + len(others)


def test_a_write_that_is_refused_leaves_no_catalog_that_it_made(tmp_path: Path) -> None:
    wrong = {**rows(["1"]).to_pylist()[0], "after": None}
    sink, _ = write(tmp_path, [])
    with pytest.raises(InvalidRequest, match="column after"):
        sink.write(iter([pa.RecordBatch.from_pylist([wrong])]), "task", None)
    sink.drop_unused()
    assert not list_catalogs(tmp_path)
    # A catalog that was there stays, and one that has rows or another writer by now.
    commit_batch(tmp_path, ["1"])
    sink, _ = write(tmp_path, ["2"])
    sink.drop_unused()
    assert held(tmp_path) == ["1"]
    drop_catalog(tmp_path, "shop")
    first, _ = write(tmp_path, ["1"])
    second, commits = write(tmp_path, ["2"])
    first.drop_unused()
    second.commit(commits)
    first.drop_unused()
    assert held(tmp_path) == ["2"]


def test_a_write_may_say_that_its_removals_are_whole(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "transaction_id": "1",
                "operation": "remove",
                "entity_type": "t",
                "primary_key": "1",
                "before": '{"id":1,"note":null}',
            }
        ]
    )
    for whole, note in (("false", None), ("true", "2-"), ("false", "2-2")):
        given = Options.of({"path": str(tmp_path / "shop"), "whole_removals": whole})
        sink = OpenedCatalog.open(given)
        sink.commit([sink.write(iter([batch]), uuid4().hex, "")])
        positions = CommitLog.open(tmp_path / "shop").state.source_positions
        assert positions.get("removed:t") == note


def test_rows_have_to_fit_the_columns_that_a_write_hands_over(tmp_path: Path) -> None:
    """Else a reader would stop at the value later; and so have the rows of writes that come after."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("price", "decimal(4,2)"))
    ]
    table = {"type": "struct", "fields": fields, "key": ["id"]}
    columns = {"columns": json.dumps({"t": table})}

    def commit(after: str, **options: str) -> None:
        sink = OpenedCatalog.open(Options.of({"path": str(tmp_path / "shop"), **options}))
        row = {**rows(["1"]).to_pylist()[0], "after": after}
        sink_commit = sink.write(iter([pa.RecordBatch.from_pylist([row])]), uuid4().hex, "")
        sink.commit([sink_commit])

    for options in (columns, {}):
        commit('{"id":1,"price":1.50}', **options)
        for after, message in (
            ('{"id":1,"price":"x"}', 'column after of .*: column price: "x" is not a number'),
            ('{"id":1,"price":123.4}', "has more digits"),
            ('{"id":2,"price":1}', r"its key \(id\) is '2', and primary_key is '1'"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                commit(after, **options)
    assert held(tmp_path) == ["1", "1"]
    with pytest.raises(InvalidRequest, match="key names 'ident', which is not one of"):
        Options.of({"path": "/l/s", "columns": json.dumps({"t": {**table, "key": ["ident"]}})})
