"""Decoded values: each encoding's text, and what no text can say."""

from __future__ import annotations

import pytest

from tailrace.schema import Column
from tailrace_server.wal.schema.decoding import Undecodable, decoding_of


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
    decoding = decoding_of(Column("x", encoding=encoding))
    assert decoding is not None
    assert decoding.decode(raw.encode()) == text.encode()


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
    decoding = decoding_of(Column("x", encoding=encoding))
    assert decoding is not None
    with pytest.raises(Undecodable):
        decoding.decode(raw.encode())


@pytest.mark.parametrize("encoding", ["json", "decimal.string", "base64", "debezium.ZonedTime"])
def test_a_text_that_says_what_it_is_stays(encoding: str) -> None:
    assert decoding_of(Column("x", encoding=encoding)) is None
