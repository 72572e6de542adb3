"""How values are written, and what is refused, with a text that says what to write instead."""

from __future__ import annotations

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.wal.sequences.settings import setting

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("max_lookback", "7d", 7 * DAY, "7d"),
        ("max_lookback", "36h", DAY * 3 // 2, "36h"),
        ("max_lookback", "10m", 600_000_000, "10m"),
        ("max_bytes", "200GiB", 200 << 30, "200GiB"),
        ("max_bytes", "1.5 TiB", 3 << 39, "1536GiB"),
    ],
)
def test_values_have_units_and_are_shown_as_they_are_written(
    name: str, text: str, value: int, shown: str
) -> None:
    kind = setting(name, of_type=False)
    assert kind.parsed(text) == value
    assert kind.shown(value) == shown


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("max_lookback", "7", "the unit is missing; write it as in 7d"),
        ("max_lookback", "-7", "the unit is missing; write it as in 7d"),
        ("max_lookback", "", "the unit is missing"),
        ("max_lookback", "-7d", "must not be negative; use tailrace catalog unset"),
        ("max_lookback", "7 days", "write a length of time as 10, 10s"),
        ("max_lookback", "7GiB", "write a length of time as"),
        (
            "max_lookback",
            "9m",
            "must be at least 10m, the time for which removed files are retained",
        ),
        ("max_lookback", "0s", "at least 10m"),
        (
            "max_lookback",
            "99999d",
            "must be at most 36500d; use tailrace catalog unset for no bound",
        ),
        ("max_bytes", "1000000000", "the unit is missing; write it as in 200GiB"),
        ("max_bytes", "7d", "write an amount of bytes as"),
        ("max_bytes", "63MiB", "at least 64MiB, the largest size of one file of records"),
        ("max_bytes", "-1GiB", "must not be negative"),
        ("max_bytes", "9999999TiB", "at most 1048576TiB"),
    ],
)
def test_values_that_mean_nothing_or_no_good_are_refused(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        setting(name, of_type=False).parsed(text)
    assert f"{name}={text}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_lookbak", r"no setting 'max_lookbak'; did you mean max_lookback\?"),
        ("Max_Bite", r"no setting 'Max_Bite'; did you mean max_bytes\?"),
        ("zzz", "no setting 'zzz'; known: max_bytes, max_lookback"),
    ],
)
def test_unknown_names_are_told_with_the_nearest_or_all(name: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        setting(name, of_type=False)
