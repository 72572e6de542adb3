"""Counts of rows without a key: exact up to 64 bits, refused beyond, and never made into rows all at once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import LogCorrupted, LogError
from tailrace_server.wal.base.counts import added_counts, summed_counts
from tailrace_server.wal.base.making import make_base
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.state_rows import StateRows
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tests.server.sql.test_query import ask
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from pathlib import Path

MOST = 2**63 - 1
NUMBERS = st.integers(-(2**63), MOST) | st.sampled_from([MOST, -MOST, -(2**63), 1, -1])


def row(diff: int | str, key: str = "1") -> Mutation:
    """Return a record of the table of the tests, which has no key."""
    image = b'{"row":"%b"}' % key.encode()
    return Mutation("item", image.decode(), after=image, change=b'{"diff":%b}' % str(diff).encode())


def counts(root: Path, version: int | None = None) -> list[int]:
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        at = log.view.published if version is None else version
        parts = [*table_state(log.view, reader, "item", at).parts()]
    return [count for part in parts for count in part.counts.tolist()]


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=4))
@example([[MOST, 1]])
@example([[1], [MOST, MOST, -MOST, -MOST, 5]])
def test_a_sum_of_counts_is_exact_or_refused(groups: list[list[int]]) -> None:
    diffs = np.array([each for group in groups for each in group], np.int64)
    starts = np.cumsum([0, *map(len, groups[:-1])])
    keys = pa.array([str(each) for each in range(len(groups))])
    sums = [*map(sum, groups)]
    if all(-(2**63) <= each <= MOST for each in sums):
        assert summed_counts(keys, diffs, starts).tolist() == sums
    else:
        with pytest.raises(LogError, match="64 bits"):
            summed_counts(keys, diffs, starts)
    one, other = np.array([groups[0][0]], np.int64), np.array([groups[-1][-1]], np.int64)
    total = groups[0][0] + groups[-1][-1]
    if -(2**63) <= total <= MOST:
        assert added_counts(keys, one, other).tolist() == [total]
    else:
        with pytest.raises(LogError, match="64 bits"):
            added_counts(keys, one, other)


def test_a_table_whose_counts_go_beyond_64_bits_is_refused_until_they_come_back(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop") as log:
        for diff in (MOST, 1, -5):
            log.append([row(diff), row(1, "other")])
            log.commit()
    assert sorted(counts(log_root, 1)) == [1, MOST]
    with pytest.raises(LogError, match=r'"row":"1".* add up to 9223372036854775808, .*64 bits'):
        counts(log_root, 2)
    assert sorted(counts(log_root, 3)) == [3, MOST - 4]
    # The same over a base.
    make_base(open_catalog(log_root, "shop").path, 0, 1)
    with pytest.raises(LogError, match="64 bits"):
        counts(log_root, 2)
    assert sorted(counts(log_root, 3)) == [3, MOST - 4]


@pytest.mark.parametrize("number", [str(2**63), str(2**64), "1e400", "1.5", "9" * 5_000])
def test_a_count_that_writers_did_not_refuse_is_named_with_its_record(
    log_root: Path, number: str
) -> None:
    with OlderWriter.open(log_root, "shop") as writer:
        writer.append([row(1)])
        writer.append([row(1, "other"), row(number)])
        writer.commit()
    assert counts(log_root, 1) == [1]
    with pytest.raises(LogCorrupted, match=f"record 2:2 counts rows by {number[:30]}"):
        counts(log_root)


def state_rows(times: list[int], widths: list[int]) -> StateRows:
    size = len(times)
    return StateRows(
        np.arange(size, dtype=np.uint64),
        pa.array([str(each) for each in range(size)]),
        np.arange(size),
        np.zeros(size, np.int32),
        np.array(times, np.int64),
        pa.array([b"x" * each for each in widths[:size]], pa.binary()),
    )


@given(
    st.lists(st.integers(-2, 12), min_size=1, max_size=8),
    st.lists(st.integers(1, 9), min_size=8, max_size=8),
    st.integers(1, 7),
    st.integers(1, 40),
)
def test_rows_come_as_often_as_they_exist_in_parts_that_are_bounded(
    times: list[int], widths: list[int], rows_max: int, bytes_max: int
) -> None:
    rows = state_rows(times, widths)
    parts = [*rows.repeated(rows_max, bytes_max)]
    expected = [str(at) for at, count in enumerate(times) for _ in range(count)]
    assert [key for part in parts for key in part.primary_keys.to_pylist()] == expected
    if {*times} != {1}:
        for part in parts:
            assert 0 < len(part) <= rows_max
            assert len(part) == 1 or part.images.nbytes <= bytes_max + part.images.buffers()[1].size


def test_a_row_that_exists_without_number_takes_the_memory_of_a_part(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as log:
        log.append([row(MOST), row(MOST, "other"), row(-1, "gone")])
    opened = open_catalog(log_root, "shop")
    with BatchReader(opened.path) as reader:
        (rows,) = table_state(opened.view, reader, "item", 1).parts()
    assert [len(part) for part in islice(rows.repeated(1_000, 1 << 20), 3)] == [1_000] * 3
    assert len(ask(log_root, "SELECT row FROM item LIMIT 20000")) == 20_000
