"""Decoded values: each encoding's text, and what no text can say."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.schema import Column
from tailrace_server.wal.schema.decoding import Undecodable, decoding_of

EPOCH = datetime(1970, 1, 1)
MOMENTS = {
    1: "debezium.NanoTimestamp",
    1_000: "debezium.MicroTimestamp",
    1_000_000: "debezium.Timestamp",
}
"""Nanoseconds of a count → encoding."""
TIMES = {1: "debezium.NanoTime", 1_000: "debezium.MicroTime", 1_000_000: "debezium.Time"}
UNITS = st.sampled_from(sorted(MOMENTS))
LONG = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-(10**15), 10**15)


def decode(encoding: str, raw: bytes) -> bytes:
    decoding = decoding_of(Column("x", encoding=encoding))
    assert decoding is not None
    return decoding.decode(raw)


@pytest.mark.parametrize(
    ("encoding", "raw", "text"),
    [
        ("decimal.bytes(2)", '"LsY="', '"119.74"'),
        ("decimal.bytes(0)", '"/w=="', '"-1"'),
        ("decimal.bytes(-2)", '"Bw=="', '"700"'),
        ("debezium.VariableScaleDecimal", '{"scale":3,"value":"Bw=="}', '"0.007"'),
        ("debezium.Date", "19782", '"2024-02-29"'),
        ("debezium.Time", "49020250", '"13:37:00.250000"'),
        ("debezium.MicroTime", "-1800000000", '"-00:30:00"'),
        ("debezium.Timestamp", "1709213820250", '"2024-02-29T13:37:00.250000"'),
        ("debezium.NanoTimestamp", "1709213820000000001", '"2024-02-29T13:37:00.000000001"'),
        ("connect.Timestamp", "0", '"1970-01-01T00:00:00"'),
    ],
)
def test_a_value_becomes_a_text_that_says_what_it_is(encoding: str, raw: str, text: str) -> None:
    assert decode(encoding, raw.encode()) == text.encode()


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("decimal.bytes(2)", '"no base 64"'),
        ("decimal.bytes(2)", "7"),
        ("debezium.VariableScaleDecimal", '{"scale":99999,"value":"Bw=="}'),
        ("debezium.Date", "10000000"),
        ("debezium.MicroTimestamp", "9223372036825200000"),
        ("debezium.Time", '"13:37"'),
    ],
)
def test_what_has_no_such_text_is_undecodable(encoding: str, raw: str) -> None:
    with pytest.raises(Undecodable):
        decode(encoding, raw.encode())


@pytest.mark.parametrize("encoding", ["json", "decimal.string", "base64", "debezium.ZonedTime"])
def test_a_text_that_says_what_it_is_stays(encoding: str) -> None:
    assert decoding_of(Column("x", encoding=encoding)) is None


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
        shown = decode(MOMENTS[unit], b"%d" % count).decode().strip('"')
    except Undecodable:
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
        shown = decode(TIMES[unit], b"%d" % count).decode().strip('"')
    except Undecodable:
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
    assert decode("debezium.MicroTime", count) == shown


@given(LONG | st.integers(-800_000, 3_000_000))
@example(-719_162)
@example(-719_163)  # the last day before the year 1
@example(2_932_896)
@example(2_932_897)
@example(-2_147_483_648)
def test_a_counted_date_is_its_day_or_beyond_the_years(days: int) -> None:
    try:
        shown = decode("debezium.Date", b"%d" % days).decode().strip('"')
    except Undecodable:
        assert not -719_162 <= days <= 2_932_896
        return
    assert (date.fromisoformat(shown) - EPOCH.date()).days == days


@pytest.mark.parametrize(
    "encoding", ["debezium.Date", "debezium.NanoTime", "debezium.NanoTimestamp"]
)
@pytest.mark.parametrize("raw", [b'"1"', b"1.0", b"1e3", b"true", b"{}", b"1" * 40, b'"infinity"'])
def test_what_is_no_count_is_refused(encoding: str, raw: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(encoding, raw)
