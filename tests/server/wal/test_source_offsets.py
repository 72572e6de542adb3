"""Offsets of partitions as source positions: the log takes each offset once, and no gap is silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.wal.source_offsets import OffsetRange, gaps, offsets_after, refuse_offsets


def taken(
    batches: list[tuple[int, int]], streams: list[str]
) -> tuple[list[int], dict[str, int | str]]:
    """Return the offsets that the log takes of batches, each of a stream, and its positions."""
    positions: dict[str, int | str] = {}
    found: list[int] = []
    for (first, last), stream in zip(batches, streams, strict=True):
        each = OffsetRange("orders", 3, first, last)
        refuse_offsets([each], positions, stream, accept_gaps=False)
        found += range(max(first, each.next_in(positions) or first), last + 1)
        positions |= offsets_after([each], positions, stream)
    return found, positions


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=4))
def test_streams_that_begin_again_in_other_batches_take_every_offset_once(
    runs: list[list[int]],
) -> None:
    batches: list[tuple[int, int]] = []
    streams: list[str] = []
    for number, sizes in enumerate(runs):
        first = 10
        for size in sizes:
            batches.append((first, first + size - 1))
            streams.append(str(number))
            first += size
    found, positions = taken(batches, streams)
    assert found == list(range(10, max(last for _, last in batches) + 1))
    assert str(positions["offset:orders/3"]).startswith(f"{found[-1] + 1}:")


def test_a_gap_is_refused_with_its_offsets_and_a_partition_that_is_new_has_none() -> None:
    positions: dict[str, int | str] = {"offset:orders/3": "7:a"}
    ranges = [OffsetRange("orders", 3, 9, 12), OffsetRange("orders", 4, 9, 12)]
    with pytest.raises(InvalidRequest, match=r"7 to 8 of orders/3\. .*accept_gaps"):
        refuse_offsets(ranges, positions, "b", accept_gaps=False)
    refuse_offsets(ranges, positions, "b", accept_gaps=True)
    assert gaps(ranges, positions) == ["7 to 8 of orders/3"]
    assert offsets_after(ranges, positions, "b") == {
        "offset:orders/3": "13:b",
        "offset:orders/4": "13:b",
    }


def test_a_long_list_of_gaps_is_cut() -> None:
    positions: dict[str, int | str] = {f"offset:t/{n}": "1:a" for n in range(8)}
    ranges = [OffsetRange("t", number, 2, 2) for number in range(8)]
    with pytest.raises(InvalidRequest, match=r"of t/4 and of 3 more partitions\."):
        refuse_offsets(ranges, positions, "a", accept_gaps=False)


def test_a_stream_that_goes_back_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="offset 10 of orders/3 after offset 12"):
        taken([(10, 12), (10, 11)], ["a", "a"])
