"""Days, times and moments: what is shown is what the source sent, or the column's error."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.api.graphql.moments import (
    counted_date,
    counted_time,
    counted_timestamp,
    written_date,
    written_time,
    written_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = datetime(1970, 1, 1)
UNITS = st.sampled_from([1, 1_000, 1_000_000])
"""Nanoseconds of the encodings that count."""
LONG = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-(10**15), 10**15)


def nanoseconds_of(fraction: str) -> int:
    """Return the nanoseconds of the digits behind a point."""
    return int(fraction.ljust(9, "0"))


@given(count=LONG | NEAR, unit=UNITS)
@example(9_223_372_036_825_200_000, 1_000)  # PostgreSQL's infinity as Debezium sends it
@example(-9_223_372_036_832_400_000, 1_000)
@example(1_709_213_820_250_000_999, 1)
@example(-1, 1)
@example(-62_135_596_800_000_000, 1_000)  # the first moment of the year 1
@example(-62_135_596_800_000_001, 1_000)
@example(253_402_300_800_000, 1_000_000)  # the first moment of the year 10000
def test_a_counted_timestamp_is_its_moment_or_beyond_the_years(count: int, unit: int) -> None:
    microsecond = timedelta(microseconds=1)
    first, last = (datetime.min - EPOCH) // microsecond, (datetime.max - EPOCH) // microsecond
    inside = first <= count * unit // 1_000 <= last
    try:
        shown = counted_timestamp(unit)(b"%d" % count).decode().strip('"')
    except ValueUnfit:
        assert not inside
        return
    whole, _, fraction = shown.partition(".")
    seconds = (datetime.fromisoformat(whole) - EPOCH) // timedelta(seconds=1)
    assert seconds * 10**9 + nanoseconds_of(fraction) == count * unit


@given(count=LONG | st.integers(-(10**13), 10**13), unit=UNITS)
@example(94_500_000_000, 1_000)
@example(86_400_000_000, 1_000)  # PostgreSQL's 24:00:00
@example(-1, 1)
@example(-3_020_399_000_000, 1_000)  # both ends of MySQL's TIME
@example(3_020_399_000_000, 1_000)
@example(3_020_400_000_000, 1_000)
def test_a_counted_time_is_its_hours_minutes_and_seconds(count: int, unit: int) -> None:
    """Hours do not wrap at midnight, and a time below zero has a sign."""
    try:
        shown = counted_time(unit)(b"%d" % count).decode().strip('"')
    except ValueUnfit:
        assert abs(count * unit) >= 839 * 3_600 * 10**9
        return
    whole, _, fraction = shown.removeprefix("-").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    assert minutes < 60
    assert seconds < 60
    found = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + nanoseconds_of(fraction)
    assert (-found if shown[0] == "-" else found) == count * unit


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (b"94500000000", b'"26:15:00"'),
        (b"-1800000000", b'"-00:30:00"'),
        (b"86400000000", b'"24:00:00"'),
        (b"-3020399000000", b'"-838:59:59"'),
    ],
)
def test_a_time_beyond_a_day_reads_as_mysql_writes_it(count: bytes, shown: bytes) -> None:
    assert counted_time(1_000)(count) == shown


@given(LONG | st.integers(-800_000, 3_000_000))
@example(-719_162)
@example(-719_163)  # the last day before the year 1
@example(2_932_896)
@example(2_932_897)
@example(-2_147_483_648)
def test_a_counted_date_is_its_day_or_beyond_the_years(days: int) -> None:
    try:
        shown = counted_date(b"%d" % days).decode().strip('"')
    except ValueUnfit:
        assert not -719_162 <= days <= 2_932_896
        return
    assert (date.fromisoformat(shown) - EPOCH.date()).days == days


@pytest.mark.parametrize("convert", [counted_date, counted_time(1), counted_timestamp(1)])
@pytest.mark.parametrize("raw", [b'"1"', b"1.0", b"1e3", b"true", b"{}", b"1" * 40, b'"infinity"'])
def test_what_is_no_count_is_refused(convert: Callable[[bytes], bytes], raw: bytes) -> None:
    with pytest.raises(ValueUnfit, match="cannot represent"):
        convert(raw)


@pytest.mark.parametrize(
    ("convert", "raw", "shown"),
    [
        (written_date, b'"2024-02-29"', None),
        (written_date, b'"2024\\u002d02-29"', b'"2024-02-29"'),
        (written_timestamp, b'"2024-02-29T13:37:00Z"', None),
        (written_timestamp, b'"2024-02-29T13:37:00.123456789+05:45"', None),
        (written_timestamp, b'"1883-11-18T12:03:58-04:56:02"', None),
        (written_timestamp, b'"2016-12-31T23:59:60Z"', None),
        (written_timestamp, b'"2024-02-29 13:37:00.25+00"', b'"2024-02-29T13:37:00.25+00"'),
        (written_time, b'"13:37:00.250000"', None),
        (written_time, b'"24:00:00Z"', None),
        (written_time, b'"13:37:00+15:59"', None),
        (written_time, b'"-838:59:59"', None),
    ],
)
def test_a_written_moment_stays_as_it_is(
    convert: Callable[[bytes], bytes], raw: bytes, shown: bytes | None
) -> None:
    assert convert(raw) == (shown or raw)


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (written_date, "infinity"),
        (written_date, "2024-02-30"),
        (written_date, "0000-01-01"),
        (written_date, "-0044-03-15"),
        (written_date, "+10000-01-01"),
        (written_date, "29/02/2024"),
        (written_timestamp, "-infinity"),
        (written_timestamp, "+294247-01-10T04:00:25.2Z"),
        (written_timestamp, "2024-02-29"),
        (written_timestamp, "2024-02-29T25:00:00"),
        (written_timestamp, "2024-02-29T24:00:01"),
        (written_timestamp, "2024-02-29T13:37:00 Europe/Prague"),
        (written_timestamp, "\N{ARABIC-INDIC DIGIT TWO}024-02-29T13:37:00"),
        (written_time, "839:00:00"),
        (written_time, "26:15:00+01:00"),
        (written_time, "13h37"),
    ],
)
def test_a_written_moment_in_another_form_is_refused(
    convert: Callable[[bytes], bytes], text: str
) -> None:
    with pytest.raises(ValueUnfit, match="cannot represent"):
        convert(f'"{text}"'.encode())


@pytest.mark.parametrize("convert", [written_date, written_timestamp, written_time])
@pytest.mark.parametrize("raw", [b"20240229", b'"\\ud800"', b"null"])
def test_what_is_no_text_is_refused(convert: Callable[[bytes], bytes], raw: bytes) -> None:
    with pytest.raises(ValueUnfit, match="cannot represent"):
        convert(raw)
