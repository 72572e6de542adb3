"""Images as typed columns: every type and encoding, what does not fit, and images of several schemas."""

from __future__ import annotations

import base64
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.schema import Column, Origin
from tailrace_server.typed.misfits import OnMisfit, ValueMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.record.unavailable import PLACEHOLDER


def scaled(number: int) -> str:
    """Return Debezium's JSON text of an unscaled number."""
    data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    return f'"{base64.b64encode(data).decode()}"'


FITTING: list[tuple[str | None, str, pa.DataType, str, Any]] = [
    ("BOOLEAN", "json", pa.bool_(), "true", True),
    ("SMALLINT", "json", pa.int16(), "-32768", -32_768),
    ("INTEGER", "json", pa.int32(), "2147483647", 2**31 - 1),
    ("BIGINT", "json", pa.int64(), "-9223372036854775808", -(2**63)),
    ("BIGINT", "json", pa.int64(), "9007199254740993", 2**53 + 1),
    ("BIGINT", "json", pa.int64(), "-0", 0),
    ("REAL", "json", pa.float32(), "0.1", float(np.float32(0.1))),
    ("DOUBLE", "json", pa.float64(), "1e300", 1e300),
    ("DOUBLE", "json", pa.float64(), '"-Infinity"', -math.inf),
    ("DECIMAL(6,2)", "json", pa.decimal128(6, 2), "-0.010", Decimal("-0.01")),
    ("DECIMAL(6,2)", "json", pa.decimal128(6, 2), "9.9e3", Decimal("9900.00")),
    ("DECIMAL(6,2)", "json", pa.decimal128(6, 2), "0e99999999999", Decimal("0.00")),
    (
        "DECIMAL(38,2)",
        "json",
        pa.decimal128(38, 2),
        "123456789012345678901234567890123456.78",
        Decimal("123456789012345678901234567890123456.78"),
    ),
    ("DECIMAL(76)", "json", pa.decimal256(76, 0), "9" * 76, Decimal("9" * 76)),
    ("DECIMAL(77)", "json", pa.string(), "9" * 77, "9" * 77),
    ("DECIMAL(6,2)", "decimal.string", pa.decimal128(6, 2), '"17.5"', Decimal("17.50")),
    ("DECIMAL(6,2)", "decimal.bytes(2)", pa.decimal128(6, 2), scaled(-1234), Decimal("-12.34")),
    ("DECIMAL(6,1)", "decimal.bytes(2)", pa.decimal128(7, 2), scaled(1234), Decimal("12.34")),
    ("DECIMAL(6)", "decimal.bytes(-3)", pa.decimal128(6, 0), scaled(-12), Decimal(-12_000)),
    ("DECIMAL", "decimal.bytes(2)", pa.string(), scaled(1234), "12.34"),
    ("DECIMAL", "json", pa.string(), "1.10", "1.10"),
    ("DECIMAL", "decimal.string", pa.string(), '"1.10"', "1.10"),
    (
        "DECIMAL",
        "debezium.VariableScaleDecimal",
        pa.string(),
        f'{{"scale":3,"value":{scaled(1234)}}}',
        "1.234",
    ),
    ("VARCHAR(9)", "json", pa.string(), '"gr\\u00f6\\u00dfe \\"\\n\\ud83d\\ude00"', 'größe "\n😀'),
    ("UUID", "debezium.Uuid", pa.string(), '"u"', "u"),
    ("VARCHAR", "debezium.Enum", pa.string(), '"on"', "on"),
    ("VARBINARY", "base64", pa.binary(), '"AAH/"', b"\x00\x01\xff"),
    ("VARBINARY", "base64", pa.binary(), '"\\u0041AH\\/"', b"\x00\x01\xff"),
    ("VARBINARY", "debezium.Bits", pa.binary(), '"AQ=="', b"\x01"),
    ("DATE", "json", pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
    ("DATE", "debezium.Date", pa.date32(), "-719162", date(1, 1, 1)),
    ("DATE", "connect.Date", pa.date32(), "2932896", date(9999, 12, 31)),
    ("TIME", "json", pa.time64("us"), '"23:59:59.999999000"', time(23, 59, 59, 999_999)),
    ("TIME", "debezium.Time", pa.time32("ms"), "86399999", time(23, 59, 59, 999_000)),
    ("TIME", "debezium.MicroTime", pa.time64("us"), "1", time(0, 0, 0, 1)),
    ("TIME", "debezium.NanoTime", pa.time64("ns"), "1000", time(0, 0, 0, 1)),
    (
        *("TIMESTAMP", "json", pa.timestamp("us"), '"2024-02-29 13:37:00.25"'),
        datetime(2024, 2, 29, 13, 37, 0, 250_000),
    ),
    (
        "TIMESTAMP",
        "debezium.Timestamp",
        pa.timestamp("ms"),
        "-1",
        datetime(1969, 12, 31, 23, 59, 59, 999_000),
    ),
    ("TIMESTAMP", "connect.Timestamp", pa.timestamp("ms"), "0", datetime(1970, 1, 1)),
    (
        *("TIMESTAMP", "debezium.MicroTimestamp", pa.timestamp("us"), "253402300799999999"),
        datetime(9999, 12, 31, 23, 59, 59, 999_999),
    ),
    (
        "TIMESTAMP",
        "debezium.NanoTimestamp",
        pa.timestamp("ns"),
        "1000",
        datetime(1970, 1, 1, 0, 0, 0, 1),
    ),
    (
        *(
            "TIMESTAMP WITH TIME ZONE",
            "json",
            pa.timestamp("us", "UTC"),
            '"2024-03-01T01:00:00+01:30"',
        ),
        datetime(2024, 2, 29, 23, 30, tzinfo=UTC),
    ),
    (
        *("TIMESTAMP WITH TIME ZONE", "debezium.ZonedTimestamp", pa.timestamp("us", "UTC")),
        *('"2024-02-29T23:30:00.5Z"', datetime(2024, 2, 29, 23, 30, 0, 500_000, UTC)),
    ),
    ("TIME WITH TIME ZONE", "debezium.ZonedTime", pa.string(), '"23:30:00Z"', "23:30:00Z"),
    ("INTEGER", "debezium.Year", pa.int32(), "2024", 2024),
    ("BIGINT", "debezium.MicroDuration", pa.int64(), "-5", -5),
    ("VARCHAR", "debezium.Interval", pa.string(), '"P1D"', "P1D"),
    ("JSON", "json", pa.string(), '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
    ("JSON", "debezium.Json", pa.string(), '"{\\"a\\":1}"', '{"a":1}'),
    ("JSON", "debezium.Date", pa.string(), "7", "7"),
    (None, "json", pa.string(), '"7"', '"7"'),
]

UNFIT: list[tuple[str, str, str, str]] = [
    ("BOOLEAN", "json", "1", "it is neither true nor false"),
    ("SMALLINT", "json", "32768", "it is out of range"),
    ("INTEGER", "json", "1.0", "it is not a whole number"),
    ("INTEGER", "json", '"1"', "it is not a number"),
    ("BIGINT", "json", "9223372036854775808", "it is out of range"),
    ("BIGINT", "json", "1" * 9_000, "it is out of range"),
    ("REAL", "json", "1e39", "it is out of range"),
    ("DOUBLE", "json", "-1e400", "it is out of range"),
    ("DOUBLE", "json", '"nan"', "it is not a number"),
    ("DECIMAL(6,2)", "json", "10000", "it has more digits"),
    ("DECIMAL(6,2)", "json", "0.001", "it has more digits"),
    ("DECIMAL(6,2)", "json", "1e999999999", "it has more digits"),
    ("DECIMAL(6,2)", "json", "1e99999999999999999999", "it has more digits"),
    ("DECIMAL(6,2)", "json", '"1"', "it is not a number"),
    ("DECIMAL(6,2)", "decimal.string", '"NaN"', "it is not a number"),
    ("DECIMAL(6,2)", "decimal.bytes(2)", scaled(1_000_000), "it has more digits"),
    ("DECIMAL(6,2)", "decimal.bytes(2)", '""', "bytes must be 1 to 1785"),
    ("DECIMAL(6,2)", "decimal.bytes(2)", "12", "it is not in the encoding's form"),
    ("VARCHAR", "json", "1", "it is not a text"),
    ("VARBINARY", "base64", '"AA"', "it is not base64"),
    ("DATE", "json", '"2023-02-29"', "this day does not exist"),
    ("DATE", "debezium.Date", "2932897", "years must be 0001 to 9999"),
    ("TIME", "json", '"24:00:00"', "a time of day must be before 24:00"),
    ("TIME", "debezium.MicroTime", "86400000000", "a time of day must be before 24:00"),
    ("TIMESTAMP", "json", '"2024-02-29T13:37:00.0000001"', "it has parts of a microsecond"),
    ("TIMESTAMP", "json", '"2024-02-29T13:37:00Z"', "it has a time zone"),
    ("TIMESTAMP", "json", '"+294247-01-10T04:00:00Z"', "years must be 0001 to 9999"),
    ("TIMESTAMP", "debezium.MicroTimestamp", "9223372036825200000", "years must be 0001 to 9999"),
    ("TIMESTAMP WITH TIME ZONE", "json", '"2024-02-29T13:37:00"', "it has no time zone"),
    (
        "TIMESTAMP WITH TIME ZONE",
        "json",
        '"9999-12-31T23:59:59-01:00"',
        "years must be 0001 to 9999",
    ),
]


def images(*texts: str | None) -> pa.BinaryArray:
    """Return images as a log has them."""
    return pa.array([None if text is None else text.encode() for text in texts], pa.binary())


@pytest.mark.parametrize(("sql_type", "encoding", "kind", "text", "value"), FITTING)
def test_a_value_of_every_type_and_encoding_comes_exactly(
    sql_type: str | None, encoding: str, kind: pa.DataType, text: str, value: object
) -> None:
    """The Arrow type is the one that docs/schemas.md states."""
    columns = [Column("a", sql_type=sql_type, encoding=encoding)]
    found = ColumnReader(columns).read(images(f'{{"a": {text} , "b":1}}', '{"a":null}'), columns)
    assert found.batch.schema.field("a").type == kind
    assert found.batch.column("a").to_pylist() == [value, None]


@pytest.mark.parametrize(("sql_type", "encoding", "text", "reason"), UNFIT)
def test_a_value_that_a_type_cannot_hold_is_named_or_null(
    sql_type: str, encoding: str, text: str, reason: str
) -> None:
    """By choice of the caller; what is told says column, row and reason."""
    columns = [Column("a", sql_type=sql_type, encoding=encoding)]
    given = images('{"a":null}', f'{{"a":{text}}}', f'{{"a":{text}}}')
    with pytest.raises(ValueMisfit) as raised:
        ColumnReader(columns).read(given, columns)
    misfit = raised.value.misfit
    assert (misfit.column, misfit.row) == ("a", 1)
    assert reason in misfit.reason
    assert f"column 'a', row 1: {text[:20]}" in str(raised.value)

    found = ColumnReader(columns, on_misfit=OnMisfit.NULL).read(given, columns)
    assert found.batch.column("a").null_count == 3
    assert found.present["a"].to_pylist() == [True, True, True]
    assert [(each.row, each.count) for each in found.misfits] == [(1, 2)]


def test_nan_stays_one() -> None:
    """NaN equals nothing, so it is asked for by itself."""
    columns = [Column("a", sql_type="DOUBLE")]
    found = ColumnReader(columns).read(images('{"a":"NaN"}'), columns)
    assert math.isnan(found.batch.column("a")[0].as_py())


def test_what_is_absent_is_told_from_null_and_from_what_was_not_sent() -> None:
    """A member that is absent, a null, Debezium's placeholder, and an image that is none."""
    columns = [Column("a", sql_type="VARCHAR"), Column("b", sql_type="INTEGER")]
    given = images(
        '{"b":1}', '{"a":null,"b":2}', f'{{"a":"{PLACEHOLDER}","b":3}}', '{"a":"else","b":4}', None
    )
    found = ColumnReader(columns, placeholders=("else",)).read(given, columns)
    assert found.batch.to_pydict() == {"a": [None] * 5, "b": [1, 2, 3, 4, None]}
    assert found.present["a"].to_pylist() == [False, True, False, False, False]
    assert found.present["b"].to_pylist() == [True, True, True, True, False]


def test_of_a_member_that_comes_twice_the_last_counts() -> None:
    """Whatever way its name is written."""
    columns = [Column("price", sql_type="INTEGER")]
    given = images('{"price":1,"x":0,"price":2}', '{"price":1,"pr\\u0069ce":3}')
    assert ColumnReader(columns).read(given, columns).batch.column(0).to_pylist() == [2, 3]


def test_what_else_an_image_has_is_told_if_asked_for() -> None:
    """As a JSON object, its values as the source wrote them."""
    columns = [Column("a", sql_type="INTEGER")]
    reader = ColumnReader(columns, others=True)
    found = reader.read(images('{"a":1}', '{"x" : 1.50,"a":2,"ö":"\\n"}', None), columns)
    assert found.others is not None
    assert found.others.to_pylist() == [None, '{"x":1.50,"ö":"\\n"}', None]


def test_images_of_several_schemas_come_as_one_type() -> None:
    """Renamed columns are followed by their id; values are restated where that is exact."""
    now = [
        Column("cost", sql_type="DECIMAL(12,4)", id=1, origin=Origin.DECLARED),
        Column("made", sql_type="TIMESTAMP", encoding="debezium.MicroTimestamp", id=2),
    ]
    before = [
        Column("price", sql_type="DECIMAL(10,2)", encoding="decimal.bytes(2)", id=1),
        Column("made", sql_type="TIMESTAMP", encoding="debezium.Timestamp", id=2),
    ]
    first = [Column("cost", sql_type="VARCHAR", id=3)]
    given = images(
        '{"cost":"1.5","made":2000}',
        f'{{"price":{scaled(150)},"made":2}}',
        '{"cost":"of another column"}',
        f'{{"price":{scaled(151)},"made":null}}',
    )
    reader = ColumnReader(now, on_misfit=OnMisfit.NULL)
    found = reader.read_mixed(given, [now, before, first], np.array([0, 1, 2, 1]))
    assert found.batch.column("cost").to_pylist() == [
        *(None, Decimal("1.5000"), None, Decimal("1.5100"))
    ]
    assert found.batch.column("made").to_pylist() == [
        *(datetime(1970, 1, 1, 0, 0, 0, 2_000), datetime(1970, 1, 1, 0, 0, 0, 2_000), None, None)
    ]
    assert found.present["cost"].to_pylist() == [True, True, False, True]
    assert [(each.column, each.row) for each in found.misfits] == [("cost", 0)]


def test_what_cannot_be_restated_is_a_misfit_of_its_row() -> None:
    """It is told where it stands among all images."""
    now, before = (
        [Column("a", sql_type="INTEGER", id=1, origin=Origin.DECLARED)],
        [Column("a", sql_type="VARCHAR", id=1, origin=Origin.DECLARED)],
    )
    given = images('{"a":1}', '{"a":"2"}', '{"a":"x"}')
    which = np.array([0, 1, 1])
    with pytest.raises(
        ValueMisfit, match=r"'a', row 2: \"x\" is no INTEGER: it was written as VARCHAR"
    ):
        ColumnReader(now).read_mixed(given, [now, before], which)
    found = ColumnReader(now, on_misfit=OnMisfit.NULL).read_mixed(given, [now, before], which)
    assert found.batch.column("a").to_pylist() == [1, 2, None]


def test_no_images_are_no_rows() -> None:
    """With the schema nevertheless."""
    columns = [Column("a", sql_type="INTEGER")]
    found = ColumnReader(columns).read_mixed(images(), [columns], np.array([], np.int64))
    assert (found.batch.num_rows, found.batch.schema.names) == (0, ["a"])


def test_an_image_that_is_no_object_is_an_error() -> None:
    """It says which."""
    columns = [Column("a", sql_type="INTEGER")]
    with pytest.raises(ValueError, match="image 1 is not a JSON object"):
        ColumnReader(columns).read(images('{"a":1}', "[1]"), columns)
