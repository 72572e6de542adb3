"""What comes back from the tasks of a large batch.

tests/process/ingest/test_ingest.py compares the logs of large batches with those of small ones.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.transactions.large_batch import written_plan
from tailrace_server.pipeline.transactions.pieces import Layout, PieceKind
from tailrace_server.pipeline.transactions.tasks import TaskSegment
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.segment.writer import SegmentReceipt


def segment(
    task: int, path: str, transactions: int, updates: dict[str, bool], removals: dict[str, bool]
) -> TaskSegment:
    receipt = SegmentReceipt(path, 1, 1, transactions, False, {}, (), ())
    return TaskSegment(task, receipt, [Sighting(1, "t", "a")], SetAside(), updates, removals)


def results(*results: object) -> list[tuple[int, bytes]]:
    return [(PieceKind.WRITTEN, pickle.dumps(result)) for result in results]


def test_segments_follow_the_order_of_the_tasks_and_versions_count_over_all_of_them() -> None:
    pending = PendingSegment("p", 1, 1, 1)
    plan = written_plan(
        results(
            Path("b"),
            pending,
            segment(1, "b", 2, {"t": True, "u": False}, {"t": False}),
            Path("a"),
            segment(0, "a", 3, {"t": False}, {"t": True}),
        ),
        Layout((0, 3), 5),
    )
    assert [segment.path for segment in plan.segments] == ["a", "b"]
    assert [s.version for s in plan.sightings] == [1, 4]
    assert (plan.pending, plan.parts) == ([pending], [Path("a"), Path("b")])
    assert (plan.updates, plan.removals) == ({"t": True, "u": False}, {"t": True})


def test_a_task_that_wrote_less_than_was_planned_is_noticed() -> None:
    with pytest.raises(AssertionError, match="2 transactions written of 3"):
        written_plan(results(segment(0, "a", 2, {}, {})), Layout((0,), 3))
