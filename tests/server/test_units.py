"""Amounts read from text and written as text, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.units import (
    Address,
    counted,
    duration,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
)


@given(st.integers(0, 2**62))
def test_bytes_are_written_in_a_form_that_is_read_back_equal(amount: int) -> None:
    assert parse_bytes(format_bytes(amount)) == amount


@given(st.integers(1, 10**9))
def test_seconds_are_written_in_a_form_that_is_read_back_equal(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("2kb", 2000), (7, 7)],
)
def test_amounts_of_bytes(text: object, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("500ms", 0.5), ("15m", 900), ("2h", 7200), (0.5, 0.5)]
)
def test_lengths_of_time(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 parsec", "1e3", True, None])
def test_what_is_no_amount_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="write an amount of bytes as"):
        parse_bytes(text)
    with pytest.raises(ValueError, match="write a length of time as"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7411", "[::1]:0", "db.example.org:65535"])
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "localhost", "::1:7411", "host:65536", "host:-1", ":80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Address.parse(text)


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
