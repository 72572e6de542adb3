"""Values restated exactly, or not at all."""

from __future__ import annotations

import base64
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema import Column, Origin, Schema
from tailrace_server.wal.schema.restating import (
    Stated,
    first_stated,
    misread,
    read_as,
    restated,
    restated_image,
)

INTEGER: Stated = ("INTEGER", "json")
TEXT: Stated = ("VARCHAR", "json")
DOUBLE: Stated = ("DOUBLE", "json")


def money(scale: int) -> Stated:
    return f"DECIMAL(20,{scale})", f"decimal.bytes({scale})"


def counted(name: str) -> Stated:
    return "TIMESTAMP", f"debezium.{name}"


def unscaled(number: int) -> bytes:
    data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    return b'"%b"' % base64.b64encode(data)


@pytest.mark.parametrize(
    ("value", "written", "wanted", "found"),
    [
        (b"5", INTEGER, TEXT, b'"5"'),
        (b'"5"', TEXT, INTEGER, b"5"),
        (b'"05"', TEXT, INTEGER, None),
        (b'"five"', TEXT, INTEGER, None),
        (b"5", INTEGER, ("BIGINT", "json"), b"5"),
        (b"70000", INTEGER, ("SMALLINT", "json"), None),
        (b"5", INTEGER, DOUBLE, b"5"),
        (b"5.5", DOUBLE, INTEGER, None),
        (b"5", INTEGER, ("UUID", "json"), None),
        (b"5", INTEGER, money(2), unscaled(500)),
        (b"true", ("BOOLEAN", "json"), TEXT, None),
        (unscaled(500), money(2), money(4), unscaled(50_000)),
        (unscaled(-51_234), money(4), money(2), None),
        (unscaled(-51_200), money(4), money(2), unscaled(-512)),
        (unscaled(500), money(2), TEXT, b'"5.00"'),
        (unscaled(500), money(2), ("DECIMAL(10,2)", "decimal.string"), b'"5.00"'),
        (unscaled(500), money(2), ("DECIMAL(10,2)", "json"), b"5.00"),
        (b'""', money(2), money(4), None),
        (b'"NaN"', ("DECIMAL", "decimal.string"), money(2), None),
        (
            b'{"scale":2,"value":"AfQ="}',
            ("DECIMAL", "debezium.VariableScaleDecimal"),
            money(4),
            unscaled(50_000),
        ),
        (b"1700000000123", counted("Timestamp"), counted("MicroTimestamp"), b"1700000000123000"),
        (b"1700000000123456", counted("MicroTimestamp"), counted("Timestamp"), None),
        (b"-1000", counted("MicroTimestamp"), counted("Timestamp"), b"-1"),
        (b"5", ("TIME", "debezium.Time"), counted("Timestamp"), None),
        (b"19782", ("DATE", "debezium.Date"), TEXT, None),
        (b'"red"', ("VARCHAR", "debezium.Enum"), TEXT, b'"red"'),
        (b'"red"', TEXT, ("VARCHAR", "debezium.Enum"), b'"red"'),
        (b"5", INTEGER, ("JSON", "json"), b"5"),
        (b'"AfQ="', money(2), ("JSON", "json"), b'"AfQ="'),
        (b"5", ("JSON", "json"), money(2), None),
        (b'"__debezium_unavailable_value"', TEXT, INTEGER, b'"__debezium_unavailable_value"'),
        (b"1e99999999", DOUBLE, TEXT, None),
    ],
)
def test_a_value_is_restated_exactly_or_not_at_all(
    value: bytes, written: Stated, wanted: Stated, found: bytes | None
) -> None:
    assert restated(value, written, wanted) == found


@given(number=st.integers(-(10**15), 10**15), scale=st.integers(0, 6), more=st.integers(0, 6))
def test_a_number_of_more_digits_comes_back(number: int, scale: int, more: int) -> None:
    wider = restated(unscaled(number), money(scale), money(scale + more))
    assert wider is not None
    back = restated(wider, money(scale + more), money(scale))
    assert back is not None
    assert base64.b64decode(back[1:-1]) == base64.b64decode(unscaled(number)[1:-1])
    text = restated(unscaled(number), money(scale), TEXT)
    assert text is not None
    assert Decimal(text[1:-1].decode()) == Decimal(number).scaleb(-scale)


def test_an_image_is_restated_column_by_column() -> None:
    conversions = {
        "a": (INTEGER, TEXT),
        "b": (TEXT, INTEGER),
        "c": (INTEGER, TEXT),
        "d": (INTEGER, TEXT),
    }
    image, inexact = restated_image(b'{"id": 1.0, "a":5,"b":"x","c":null}', conversions)
    assert (image, inexact) == (b'{"id":1.0,"a":"5","b":"x","c":null}', ["b"])


def test_an_inferred_type_is_read_as_the_first_that_was_stated_if_its_json_may_be_that() -> None:
    inferred = Column("n", sql_type="BIGINT", id=7)
    text = Column("n", sql_type="VARCHAR", id=7)
    millis, micros = (
        Column("n", sql_type=kind, encoding=encoding, origin=Origin.DEBEZIUM, id=7)
        for kind, encoding in (counted("Timestamp"), counted("MicroTimestamp"))
    )
    schemas = [Schema(id, {"t": (each,)}) for id, each in enumerate((inferred, millis, micros))]
    stated = first_stated(schemas)[7]
    assert stated == millis
    assert read_as(inferred, stated) == millis
    assert read_as(micros, stated) == micros
    assert read_as(text, stated) == text
    assert read_as(inferred, None) == inferred


@pytest.mark.parametrize(
    ("written", "read", "wrong"),
    [
        ("debezium.Timestamp", "debezium.MicroTimestamp", True),
        ("debezium.Timestamp", "connect.Timestamp", False),
        ("decimal.bytes(2)", "decimal.bytes(4)", True),
        ("decimal.bytes(2)", "json", False),
        ("json", "debezium.Timestamp", False),
        ("debezium.Enum", "debezium.EnumSet", False),
    ],
)
def test_a_text_is_misread_where_nothing_shows_it(written: str, read: str, wrong: bool) -> None:
    assert misread(written, read) is wrong
