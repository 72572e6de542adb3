"""Images as rows of Avro records: every type, and every value that has no place in one."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace.schema import Column
from tailrace_server.cdcv2 import AvroForm
from tailrace_server.export.row_form import RowForm, Unfit

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}

FITTING: list[tuple[str | None, str, Any, str, Any]] = [
    ("BOOLEAN", "json", "boolean", "true", True),
    ("SMALLINT", "json", "int", "-7", -7),
    ("INTEGER", "json", "int", "2147483647", 2**31 - 1),
    ("BIGINT", "json", "long", "-9223372036854775808", -(2**63)),
    ("REAL", "json", "double", "0.1", 0.1),
    ("DOUBLE", "json", "double", "3", 3.0),
    ("DOUBLE", "json", "double", "1e300", 1e300),
    ("DOUBLE", "json", "double", '"NaN"', math.nan),
    ("REAL", "json", "double", '"Infinity"', math.inf),
    ("DOUBLE", "json", "double", '"-Infinity"', -math.inf),
    ("DOUBLE", "json", "double", "1000000000000000000", 1e18),
    ("DECIMAL(6,2)", "json", DECIMAL, "12.5", (1250).to_bytes(2, "big")),
    ("DECIMAL(6,2)", "json", DECIMAL, "-0.01", b"\xff"),
    ("DECIMAL(6,2)", "json", DECIMAL, "-1.28", b"\x80"),
    ("DECIMAL(6,2)", "json", DECIMAL, "1.28", b"\x00\x80"),
    ("DECIMAL(6,2)", "json", DECIMAL, "9.9e3", (990_000).to_bytes(3, "big")),
    ("DECIMAL(6,2)", "json", DECIMAL, "0.500", b"\x32"),
    ("DECIMAL(6,2)", "decimal.bytes(2)", DECIMAL, '"BOI="', b"\x04\xe2"),
    ("DECIMAL(6,1)", "decimal.bytes(2)", DECIMAL | {"precision": 7}, '"BOI="', b"\x04\xe2"),
    ("DECIMAL", "json", "string", "1.10", "1.10"),
    (
        "DECIMAL",
        "json",
        "string",
        "123456789012345678901234567890",
        "123456789012345678901234567890",
    ),
    ("JSON", "json", "string", '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
    (None, "json", "string", "7", "7"),
    ("VARCHAR(9)", "json", "string", '"größe"', "größe"),
    ("UUID", "json", {"type": "string", "logicalType": "uuid"}, '"u"', "u"),
    ("VARBINARY", "base64", "bytes", '"AAH/"', b"\x00\x01\xff"),
    ("DATE", "json", "string", '"2026-01-02"', "2026-01-02"),
    ("DATE", "debezium.Date", {"type": "int", "logicalType": "date"}, "20000", 20_000),
    ("TIME", "debezium.Time", {"type": "int", "logicalType": "time-millis"}, "1", 1),
    ("TIME", "debezium.MicroTime", {"type": "long", "logicalType": "time-micros"}, "1", 1),
    ("TIMESTAMP", "connect.Timestamp", {"type": "long", "logicalType": "timestamp-millis"}, "1", 1),
    ("TIMESTAMP", "debezium.NanoTimestamp", "long", "17", 17),
    ("VARCHAR", "debezium.Enum", "string", '"on"', "on"),
    ("DECIMAL", "debezium.VariableScaleDecimal", "string", '{"scale":1}', '{"scale":1}'),
]


def form_of(sql_type: str | None, encoding: str = "json", **more: Any) -> RowForm:
    return RowForm([Column("x", sql_type=sql_type, encoding=encoding, id=1, **more)])


@pytest.mark.parametrize(("sql_type", "encoding", "avro", "text", "value"), FITTING)
def test_a_value_has_its_place_in_avro(
    sql_type: str | None, encoding: str, avro: Any, text: str, value: Any
) -> None:
    form = form_of(sql_type, encoding)
    [field] = form.avro_record()["fields"]
    assert field["type"] == ["null", avro]
    assert form.row(b'{"x":%s}' % text.encode(), form.columns) == (value,)
    assert form.row(b'{"x":null}', form.columns) == form.row(b"{}", form.columns) == (None,)
    AvroForm.of_data(form.avro_record()).encode([((value,), 1, 1)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("sql_type", "encoding", "text"),
    [
        ("BOOLEAN", "json", "1"),
        ("SMALLINT", "json", "1.0"),
        ("INTEGER", "json", "2147483648"),
        ("BIGINT", "json", "9223372036854775808"),
        ("BIGINT", "json", "123456789012345678901234567890"),
        ("BIGINT", "json", "true"),
        ("BIGINT", "json", '"7"'),
        ("DOUBLE", "json", '"7"'),
        ("DOUBLE", "json", '"nan"'),
        ("DOUBLE", "json", "9007199254740993"),
        ("DECIMAL(6,2)", "json", "12345.6"),
        ("DECIMAL(6,2)", "json", "0.001"),
        ("DECIMAL(6,2)", "json", "1e400000000"),
        ("DECIMAL(6,2)", "json", "1e-400000000"),
        ("DECIMAL(6,2)", "json", '"1.00"'),
        ("DECIMAL(6,2)", "decimal.bytes(2)", '"?"'),
        ("DECIMAL(6,2)", "decimal.bytes(2)", '""'),
        ("DOUBLE", "json", "1e400"),
        ("VARCHAR", "json", "7"),
        ("VARBINARY", "base64", '"%%%"'),
        ("DATE", "debezium.Date", '"2026-01-02"'),
        ("VARCHAR", "json", '"__debezium_unavailable_value"'),
        ("JSON", "json", '"__debezium_unavailable_value"'),
        ("DECIMAL(6,2)", "json", '"__debezium_unavailable_value"'),
    ],
)
def test_a_value_that_has_no_place_is_refused_with_its_column(
    sql_type: str, encoding: str, text: str
) -> None:
    form = form_of(sql_type, encoding)
    with pytest.raises(Unfit, match="column 'x': "):
        form.row(b'{"x":%s}' % text.encode(), form.columns)


def test_an_image_that_is_nested_too_deep_is_refused() -> None:
    image = b'{"x":%b%b}' % (b"[" * 100_000, b"]" * 100_000)
    for form in (form_of("VARCHAR"), form_of("JSON")):
        with pytest.raises(Unfit, match="ecursion"):
            form.row(image, form.columns)


def test_a_column_that_is_not_nullable_must_be_there() -> None:
    form = form_of("BIGINT", nullable=False)
    assert form.avro_record()["fields"][0]["type"] == "long"
    for image in (b"{}", b'{"x":null}'):
        with pytest.raises(Unfit, match="column 'x' is null or absent"):
            form.row(image, form.columns)


def test_a_column_is_the_same_under_its_earlier_name() -> None:
    form = form_of("BIGINT")
    assert form.row(b'{"y":7}', (Column("y", id=1),)) == (7,)
    with pytest.raises(Unfit, match="column 'z' is not in the stream's schema"):
        form.row(b'{"y":7,"z":null}', (Column("y", id=1), Column("z", id=2)))


def test_a_name_that_avro_does_not_allow_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="column 'unit price': Avro allows"):
        RowForm([Column("unit price", id=1)])


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9
    )
)
def test_decimals_are_their_unscaled_number(number: Any) -> None:
    form = form_of("DECIMAL(20,3)")
    [[value]] = [form.row(b'{"x":%s}' % str(number).encode(), form.columns)]
    assert isinstance(value, bytes)
    assert int.from_bytes(value, "big", signed=True) == number.scaleb(3)
    assert value == base64.b64decode(base64.b64encode(value))
