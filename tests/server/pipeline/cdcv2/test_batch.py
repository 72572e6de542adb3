"""What the driver makes of a large batch. tests/process/ingest/test_cdcv2.py runs the frames themselves."""

from __future__ import annotations

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.cdcv2.batch import parts_by_task, raise_first
from tailrace_server.pipeline.cdcv2.files import FilePart
from tailrace_server.pipeline.cdcv2.folding import KeyConflict
from tailrace_server.pipeline.cdcv2.pieces import Kind


def test_tasks_read_about_as_many_bytes_each_and_every_part_once() -> None:
    parts = [FilePart("f", n, 0, size, size) for n, size in enumerate((9, 1, 5, 4, 3, 2))]
    found = parts_by_task(parts, 3)
    assert sorted(part for task in found for part in task) == sorted(parts)
    assert sorted(sum(part.stop for part in task) for task in found) == [7, 8, 9]
    assert parts_by_task(parts[:2], 8) == [[parts[0]], [parts[1]]]
    assert parts_by_task([], 8) == [[]]


def test_other_errors_go_before_conflicts_of_keys_and_those_by_their_time() -> None:
    conflicts = [KeyConflict(9, "a", "later"), KeyConflict(2, "z", "first")]
    with pytest.raises(KeyConflict, match="first"):
        raise_first({Kind.FAILURE: conflicts})
    with pytest.raises(InvalidRequest):
        raise_first({Kind.FAILURE: [*conflicts, InvalidRequest("another schema")]})
    raise_first({})
