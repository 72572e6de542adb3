"""Steps of a large batch without Spark. `test_seeding` has the fold, tests/process/ingest all on Spark."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.cdcv2.pieces import Kind
from tailrace_server.pipeline.cdcv2.steps import Deduplicate, UpdateTimes, ranges_of
from tailrace_server.pipeline.cdcv2.times import COUNTS, INTERVALS
from tailrace_server.pipeline.cdcv2.updates import updates_table
from tailrace_server.pipeline.input.change import batch_of
from tailrace_server.pipeline.spark.pieces import decoded, encoded

if TYPE_CHECKING:
    from pathlib import Path


def updates(*rows: tuple[bytes, int, int, int]) -> pa.RecordBatch:
    """Return updates as (data, time, diff, place)."""
    data, *numbers = zip(*rows, strict=True)
    columns = (np.array(each, np.int64) for each in numbers)
    return updates_table(pa.array(data, pa.large_binary()), *columns)


def test_of_a_contradiction_the_message_heard_first_stands_however_pieces_land(
    tmp_path: Path,
) -> None:
    step = Deduplicate(tmp_path, (), 0, 1)
    early, late = updates((b"a", 1, 1, 10)), updates((b"a", 1, 2, 20), (b"b", 1, 1, 21))
    for landed in ((early, late), (late, early)):
        pieces: dict[int, list[bytes]] = {Kind.NEW_UPDATES: [encoded(each) for each in landed]}
        found = {kind: piece for _, kind, piece in step.rows(0, pieces)}
        result = pickle.loads(found[Kind.DEDUPLICATED])
        assert (result.duplicates, result.conflicts) == (0, 1)
        assert [side["message"] for side in result.conflict] == [10, 20]
        assert decoded(found[Kind.OPEN_UPDATES]).column("diff").to_pylist() == [1, 1]
        assert decoded(found[Kind.RECEIVED]).to_pylist() == [{"time": 1, "count": 2, "message": 21}]
        assert Kind.SEED in found


def test_a_share_of_times_finds_what_is_missing_and_the_first_tells_the_coverage(
    tmp_path: Path,
) -> None:
    for share, coverage in ((0, [(0, 9)]), (1, None)):
        step = UpdateTimes(tmp_path, (), (), 0, 2, False)
        pieces: dict[int, list[bytes]] = {
            Kind.COVERED: [encoded(batch_of([(0, 9, 1)], INTERVALS))],
            Kind.ANNOUNCED: [encoded(batch_of([(4, 2, 1), (5, 1, 1)], COUNTS))],
            Kind.RECEIVED: [
                encoded(batch_of([(4, 1, 2)], COUNTS)),
                encoded(batch_of([(4, 1, 3)], COUNTS)),
            ],
            Kind.PART_READ: [b"for the driver"],
        }
        found = {kind: (to, piece) for to, kind, piece in step.rows(share, pieces)}
        result = pickle.loads(found[Kind.TIMES_UPDATED][1])
        assert (result.lowest, result.contradiction, result.coverage) == (5, None, coverage)
        assert found[Kind.OPEN_TIMES][0] == share
        assert found[Kind.PART_READ] == (0, b"for the driver")


def test_ranges_have_about_as_many_updates_each_and_no_time_is_parted() -> None:
    assert ranges_of([(time, 1) for time in range(100)], 4) == (25, 50, 75)
    assert ranges_of([(5, 1000), (6, 1)], 4) == (6, 7)
    assert ranges_of([], 4) == ()
