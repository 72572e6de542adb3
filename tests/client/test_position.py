"""Positions as values. Positions as starts, on every transport: tests/conformance/test_order.py."""

from __future__ import annotations

from tailrace import END, Position
from tailrace.transport.grpc_status import position


def test_positions_are_ordered_by_version_then_index() -> None:
    given = [Position(2, 0), Position(1, END), Position(1, 0), Position(1, 5)]
    assert sorted(given) == [Position(1, 0), Position(1, 5), Position(1, END), Position(2, 0)]


def test_before_a_lead_is_the_end_of_the_version_before() -> None:
    assert Position(7, 3).preceding() == Position(7, 2)
    assert Position(7, 0).preceding() == Position(6, END)


def test_the_text_of_a_position_reads_back_equal() -> None:
    for each in (Position(7), Position(7, 3), Position(7, END)):
        assert position(str(each)) == each
