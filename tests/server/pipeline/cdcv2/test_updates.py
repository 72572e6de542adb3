"""Updates as tables: hashed and deduplicated, compiled and plainly, and shared out."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.cdcv2.updates import (
    UPDATES,
    before,
    distinct,
    hashes,
    joined,
    place,
    place_of,
    share_out,
    since,
    slots,
    updates_table,
)
from tests.support.compiled_loops import loops_used


def test_hashes_and_duplicates_are_told_alike() -> None:
    rng = random.Random(3)
    data = pa.array([rng.randbytes(rng.randrange(30)) for _ in range(500)] * 2, pa.large_binary())
    times = np.array([rng.randrange(3) for _ in range(1000)], np.int64)
    diffs = np.array([rng.choice([1, 1, 1, 2]) for _ in range(1000)], np.int64)
    found = []
    for compiled in (False, True):
        with loops_used(compiled):
            rows = updates_table(data, times, diffs, np.arange(1000))
            for keep in (False, True):
                once = distinct(rows, both=keep)
                found.append((once.updates, once.duplicates, once.conflicts, once.conflict))
    assert found[:2] == found[2:]
    assert found[0][2] > 0
    pieces = share_out(rows, rows.column("hash").to_numpy(), 5)
    assert sum(piece.num_rows for _, piece in pieces) == 1000
    for share, piece in pieces:
        assert (slots(piece.column("hash").to_numpy()) % 5 == share).all()


def test_slices_are_hashed_as_what_they_hold() -> None:
    data = pa.array([b"abc", b"", b"0123456789", b"abc"], pa.large_binary())
    times = np.array([1, 1, 1, 1], np.int64)
    for compiled in (False, True):
        with loops_used(compiled):
            whole = hashes(data, times)
            assert whole[0] == whole[3]
            assert (hashes(data.slice(1, 3), times[:3]) == whole[1:]).all()
            assert len(hashes(data.slice(0, 0), times[:0])) == 0
    assert joined([], UPDATES).num_rows == 0


def test_places_are_numbers_that_keep_file_and_byte() -> None:
    assert place(place_of(3, 12345)) == (3, 12345)
    assert place_of(3, 2**40 - 1) < place_of(4, 0)


def test_before_and_since_part_rows_at_a_time_and_the_end_of_time_is_above_all() -> None:
    numbers = np.arange(4)
    data = pa.array([b"a"] * 4, pa.large_binary())
    rows = updates_table(data, numbers, numbers + 1, numbers)
    for time, below in ((0, 0), (2, 2), (9, 4), (None, 4)):
        assert before(rows, time).num_rows == below
        assert since(rows, time).num_rows == 4 - below
