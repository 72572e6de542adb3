"""Counts and durations as a person reads them."""

from __future__ import annotations

import pytest

from tailrace_server.wording import counted, duration


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((0, "line"), "0 lines"),
        ((1, "line"), "1 line"),
        ((1_200, "line"), "1,200 lines"),
        ((2, "entry", "entries"), "2 entries"),
    ],
)
def test_one_is_not_many(given: tuple[int, str], text: str) -> None:
    assert counted(*given) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (119.9, "119.9 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
        (172_800, "2 days"),
        (33_390_689.7, "386 days"),
    ],
)
def test_a_duration_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
