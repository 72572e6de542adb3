"""Positions as values. Positions as starts, on every transport: tests/conformance/test_order.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import END, Position
from tailrace.position import MAX_VERSION, position_in
from tailrace.transport.grpc_status import position


def test_positions_are_ordered_by_version_then_index() -> None:
    unsorted = [Position(2, 0), Position(1, END), Position(1, 0), Position(1, 5)]
    assert sorted(unsorted) == [Position(1, 0), Position(1, 5), Position(1, END), Position(2, 0)]


def test_before_a_lead_is_the_end_of_the_version_before() -> None:
    assert Position(7, 3).preceding() == Position(7, 2)
    assert Position(7, 0).preceding() == Position(6, END)


def test_the_text_of_a_position_reads_back_equal() -> None:
    for each in (Position(7), Position(7, 3), Position(7, END)):
        assert position(str(each)) == each


@given(
    st.integers(0, MAX_VERSION),
    st.none() | st.integers(0, END),
)
def test_a_written_position_is_read_back(version: int, index: int | None) -> None:
    text = str(version) if index is None else f"{version}:{index}"
    assert position_in(text) == Position(version, index or 0)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1:", ":1", "1:2:3", " 1", "٣", str(MAX_VERSION + 1), f"1:{END + 1}"]
)
def test_other_texts_write_no_position(text: str) -> None:
    assert position_in(text) is None
