"""The type that holds all that a column has been."""

from __future__ import annotations

import pytest

from tailrace_server.wal.schema.common_type import common_type
from tailrace_server.wal.schema.restating import Stated, restated_or_shown

TEXT: Stated = ("VARCHAR", "json")
INTEGER: Stated = ("INTEGER", "json")
BIGINT: Stated = ("BIGINT", "json")
REAL: Stated = ("REAL", "json")
DOUBLE: Stated = ("DOUBLE", "json")
DECIMAL: Stated = ("DECIMAL", "json")
JSON: Stated = ("JSON", "json")
DIGITS: Stated = ("DECIMAL", "decimal.string")
VARIABLE: Stated = ("DECIMAL", "debezium.VariableScaleDecimal")
YEAR: Stated = ("INTEGER", "debezium.Year")
ENUM: Stated = ("VARCHAR", "debezium.Enum")
BYTES: Stated = ("VARBINARY", "base64")
MILLIS: Stated = ("TIMESTAMP", "debezium.Timestamp")
CONNECT: Stated = ("TIMESTAMP", "connect.Timestamp")
MICROS: Stated = ("TIMESTAMP", "debezium.MicroTimestamp")
NANOS: Stated = ("TIMESTAMP", "debezium.NanoTimestamp")
TIME: Stated = ("TIME", "debezium.Time")
NANO_TIME: Stated = ("TIME", "debezium.NanoTime")
DATE: Stated = ("DATE", "debezium.Date")
UNKNOWN: Stated = (None, "json")


def money(precision: int, scale: int) -> Stated:
    return f"DECIMAL({precision},{scale})", f"decimal.bytes({scale})"


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([UNKNOWN], UNKNOWN),
        ([INTEGER, UNKNOWN], INTEGER),
        ([BIGINT, INTEGER], BIGINT),
        ([INTEGER, TEXT], TEXT),
        ([TEXT, INTEGER], TEXT),
        ([("VARCHAR(20)", "json"), ("UUID", "json")], TEXT),
        ([TEXT, ENUM], ENUM),
        ([INTEGER, ENUM], TEXT),
        ([("BOOLEAN", "json"), INTEGER], TEXT),
        ([TEXT, BYTES], TEXT),
        ([("VARCHAR", "base64"), BYTES], BYTES),
        ([INTEGER, JSON, TEXT], JSON),
        ([money(12, 4), money(10, 2)], ("DECIMAL(12,4)", "json")),
        ([money(10, 2), money(12, 4)], money(12, 4)),
        ([money(10, 0), money(6, 6)], ("DECIMAL(16,6)", "json")),
        ([BIGINT, money(10, 2)], ("DECIMAL(21,2)", "json")),
        ([YEAR, INTEGER], ("DECIMAL(10,0)", "json")),
        ([("DECIMAL(4,-2)", "json"), UNKNOWN], ("DECIMAL(4,-2)", "json")),
        ([REAL, INTEGER], DOUBLE),
        ([REAL, BIGINT], DIGITS),
        ([money(10, 2), DOUBLE], DIGITS),
        ([money(10, 2), VARIABLE], DIGITS),
        ([BIGINT, DECIMAL], DECIMAL),
        ([DIGITS, DECIMAL], DIGITS),
        ([MICROS, MILLIS], MICROS),
        ([MICROS, CONNECT, MILLIS], MICROS),
        ([MILLIS, CONNECT], CONNECT),
        ([MILLIS, NANOS], TEXT),
        ([TIME, NANO_TIME], NANO_TIME),
        ([DATE, MICROS], TEXT),
        ([MICROS, BIGINT], TEXT),
    ],
)
def test_the_type_of_a_history_holds_all_of_it(history: list[Stated], found: Stated) -> None:
    assert common_type(history) == found


@pytest.mark.parametrize(
    ("value", "written", "shown"),
    [
        (b"true", ("BOOLEAN", "json"), b'"true"'),
        (b"5.0", DOUBLE, b'"5"'),
        (b'"AAH/"', BYTES, b'"AAH/"'),
        (b"-1", DATE, b'"1969-12-31"'),
        (b"-1", MILLIS, b'"1969-12-31T23:59:59.999000"'),
        (b"1", NANOS, b'"1970-01-01T00:00:00.000000001"'),
        (b"-1800000", TIME, b'"-00:30:00"'),
        (b"94500000250000", NANO_TIME, b'"26:15:00.000250"'),
        (b'{"a": 1}', JSON, b'"{\\"a\\": 1}"'),
        (b'"__debezium_unavailable_value"', MILLIS, b'"__debezium_unavailable_value"'),
    ],
)
def test_a_text_shows_what_has_no_text_of_its_own(
    value: bytes, written: Stated, shown: bytes
) -> None:
    assert restated_or_shown(value, written, TEXT) == shown
    assert restated_or_shown(b"1", MICROS, MILLIS) is None
