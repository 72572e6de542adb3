"""What goes to the tasks of a large batch, and what comes back from them.

tests/process/ingest/test_ingest.py compares the logs of large batches with those of small ones.
"""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.pipeline.catalog.newest_positions import NewestPositions
from tailrace_server.pipeline.input.change import SNAPSHOT
from tailrace_server.pipeline.transactions.grouping import Decision, Plan, Released
from tailrace_server.pipeline.transactions.large_batch import (
    lead_rows,
    matches,
    written_plan,
)
from tailrace_server.pipeline.transactions.tally import Cut, Tally
from tailrace_server.pipeline.transactions.tasks import PLANNED, RESULT, Layout, TaskSegment
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.segment.writer import SegmentReceipt


def receipt(path: str, transactions: int) -> SegmentReceipt:
    return SegmentReceipt(path, 1, 1, transactions, False, {}, (), ())


def results(*results: tuple[int, object]) -> pa.Table:
    rows = [{"task": task, "result": pickle.dumps(result)} for task, result in results]
    return pa.Table.from_pylist(rows, RESULT)


def test_segments_follow_the_order_of_the_tasks_and_versions_count_over_all_of_them() -> None:
    layout = Layout((0, 3), 5)
    pending = PendingSegment("p", 1, 1, 1)
    sighting = Sighting(1, "t", "a")
    plan = written_plan(
        results(
            (4, pending),
            (
                1,
                TaskSegment(receipt("b", 2), [sighting], [], {"t": True, "u": False}, {"t": False}),
            ),
            (0, TaskSegment(receipt("a", 3), [sighting], [], {"t": False}, {"t": True})),
        ),
        layout,
    )
    assert [segment.path for segment in plan.segments] == ["a", "b"]
    assert [s.version for s in plan.sightings] == [1, 4]
    assert plan.pending == [pending]
    assert (plan.updates, plan.removals) == ({"t": True, "u": False}, {"t": True})


def test_a_task_that_wrote_less_than_was_planned_is_noticed() -> None:
    with pytest.raises(AssertionError, match="2 transactions written of 3"):
        written_plan(results((0, TaskSegment(receipt("a", 2), [], [], {}, {}))), Layout((0,), 3))


def test_rows_find_their_version_by_transaction_and_snapshot_rows_by_number() -> None:
    split = f"{SNAPSHOT}f"
    cuts = [Cut(split, 0, 2, 10, "cut 0"), Cut(split, 2, 3, 10, "cut 1")]
    released = (Released(Tally("7", rows=1)), Released(Tally("cut 0", rows=2)))
    layout = Layout((0, 1), 2)
    found = matches(
        Decision(Plan(released, {}), NewestPositions({}), cuts=cuts), layout, {"7": 0, "cut 0": 1}
    )
    everything = -(2**63), 2**63 - 1
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (split, 0, 1, 10, "cut 0", 1, 1),
        (split, 2, 2, 10, "cut 1", None, None),
        ("7", *everything, 0, "7", 0, 0),
    ]


def test_each_transaction_has_a_row_that_sorts_before_its_changes() -> None:
    table = lead_rows([Released(Tally("7")), Released(Tally("8"))], Layout((0, 1), 2))
    assert table.column("kind").to_pylist() == [PLANNED, PLANNED]
    assert table.column("version").to_pylist() == [0, 1]
    assert table.column("task").to_pylist() == [0, 1]
