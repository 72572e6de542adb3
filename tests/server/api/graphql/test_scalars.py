"""Values of columns: exact, or an error; and the names that columns and entity types are given."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest
from graphql import validate_schema
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema import Column, Schema
from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.api.graphql.names import field_names, made_of, type_names
from tailrace_server.api.graphql.scalars import Json, column_form
from tailrace_server.api.graphql.schema import build

EXACT = (
    ("BIGINT", "json", b"9223372036854775807", '"9223372036854775807"'),
    ("BIGINT", "json", b'"-9223372036854775808"', '"-9223372036854775808"'),
    ("INTEGER", "json", b"-2147483648", "-2147483648"),
    ("DECIMAL(38,2)", "json", b"12345678901234567890.10", '"12345678901234567890.10"'),
    ("DECIMAL", "decimal.string", b'"0.10"', '"0.10"'),
    ("DECIMAL(10,2)", "decimal.bytes(2)", b'"BNI="', '"12.34"'),
    ("DECIMAL(10,2)", "decimal.bytes(2)", b'"+y4="', '"-12.34"'),
    ("DECIMAL(10,2)", "decimal.bytes(2)", b'"AQ=="', '"0.01"'),
    ("DECIMAL", "debezium.VariableScaleDecimal", b'{"scale":3,"value":"BNI="}', '"1.234"'),
    ("DECIMAL(10,0)", "decimal.bytes(0)", b'"AQ=="', '"1"'),
    ("DECIMAL", "decimal.bytes(-2)", b'"+w=="', '"-500"'),
    ("DECIMAL", "decimal.bytes(-2)", b'"AA=="', '"0"'),
    ("DECIMAL", "debezium.VariableScaleDecimal", b'{"scale":-3,"value":"BNI="}', '"1234000"'),
    ("DECIMAL", "json", b"1e400", '"1e400"'),
    ("DOUBLE", "json", b"1.10", "1.10"),
    ("DOUBLE", "json", b"-0", "-0.0"),
    ("DOUBLE", "json", b"-0.0", "-0.0"),
    ("DOUBLE", "json", b"9007199254740992", "9007199254740992"),
    ("BOOLEAN", "json", b"true", "true"),
    ("VARCHAR(10)", "json", b'"\\u00e9"', '"\\u00e9"'),
    ("VARCHAR", "json", b'"\\ud83d\\ude00"', '"\\ud83d\\ude00"'),
    ("VARBINARY", "base64", b'"AQ=="', '"AQ=="'),
    ("VARBINARY", "debezium.Bits", b'"AwE="', '"AwE="'),
    ("BIGINT", "debezium.MicroDuration", b"-94500000000", '"-94500000000"'),
    ("INTEGER", "debezium.Year", b"0", "0"),
    ("VARCHAR", "debezium.Interval", b'"P1Y2M3DT4H5M6.78S"', '"P1Y2M3DT4H5M6.78S"'),
    ("DATE", "debezium.Date", b"19782", '"2024-02-29"'),
    ("DATE", "connect.Date", b"-1", '"1969-12-31"'),
    ("TIME", "debezium.MicroTime", b"49020250000", '"13:37:00.250000"'),
    ("TIMESTAMP", "debezium.MicroTimestamp", b"1709213820250000", '"2024-02-29T13:37:00.250000"'),
    ("TIMESTAMP", "debezium.Timestamp", b"1709213820250", '"2024-02-29T13:37:00.250000"'),
    (
        "TIMESTAMP WITH TIME ZONE",
        "debezium.ZonedTimestamp",
        b'"2024-02-29T13:37:00Z"',
        '"2024-02-29T13:37:00Z"',
    ),
    ("JSON", "json", b'{"a": 1e400}', '{"a": 1e400}'),
    (None, "json", b"12345678901234567890.10", "12345678901234567890.10"),
)


@pytest.mark.parametrize(("sql_type", "encoding", "raw", "expected"), EXACT)
def test_contract_46_a_value_keeps_its_digits(
    sql_type: str | None, encoding: str, raw: bytes, expected: str
) -> None:
    form = column_form(Column("c", sql_type=sql_type, encoding=encoding))
    assert form.text(raw).decode() == expected
    value = form.value(raw)
    if form.scalar is Json:
        assert bytes(value) == raw  # type: ignore[call-overload]
    else:
        assert value == msgspec.json.decode(expected)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"-9007199254740993", "-9007199254740992.0"),
        (b"1234567890123456800000", "1.2345678901234568e+21"),
    ],
)
def test_a_whole_number_that_no_double_holds_is_the_double_that_its_readers_have(
    raw: bytes, expected: str
) -> None:
    form = column_form(Column("c", sql_type="DOUBLE", encoding="json"))
    assert (form.text(raw).decode(), form.value(raw)) == (expected, float(raw))


@pytest.mark.parametrize(
    ("sql_type", "encoding", "raw"),
    [
        ("BIGINT", "json", b"9223372036854775808"),
        ("BIGINT", "json", b"1.5"),
        ("BIGINT", "json", b'"x"'),
        ("INTEGER", "json", b"2147483648"),
        ("INTEGER", "json", b'"1"'),
        ("DECIMAL", "json", b'"x"'),
        ("DECIMAL", "json", b"{}"),
        ("DECIMAL", "decimal.bytes(2)", b'"*"'),
        ("DECIMAL", "decimal.bytes(2)", b"1"),
        ("DECIMAL", "debezium.VariableScaleDecimal", b'{"scale":99999999,"value":"BNI="}'),
        ("DECIMAL", "debezium.VariableScaleDecimal", b'{"scale":1}'),
        ("DECIMAL", "debezium.VariableScaleDecimal", b'{"scale":-99999999,"value":"BNI="}'),
        ("DECIMAL", "decimal.bytes(2)", b'""'),
        ("DECIMAL", "decimal.bytes(2)", b'"BNI"'),
        ("DECIMAL", "decimal.bytes(2)", b'"%b"' % (b"AQEB" * 1_000)),
        ("DECIMAL", "decimal.string", b'"NaN"'),
        ("INTEGER", "json", b"9" * 5_000),
        ("DOUBLE", "json", b"9" * 5_000),
        ("DOUBLE", "json", b"1e999"),
        ("DOUBLE", "json", b'"NaN"'),
        ("BOOLEAN", "json", b"1"),
        ("VARCHAR", "json", b"1"),
        ("VARBINARY", "base64", b'"AQ="'),
        ("VARBINARY", "debezium.Bits", b'"A-_="'),
    ],
)
def test_a_value_that_does_not_fit_is_named(sql_type: str, encoding: str, raw: bytes) -> None:
    form = column_form(Column("c", sql_type=sql_type, encoding=encoding))
    for render in (form.text, form.value):
        with pytest.raises(ValueError, match="cannot represent") as raised:
            render(raw)
        assert len(str(raised.value)) < 100


_JSON_TEXTS = st.one_of(
    st.sampled_from([raw for *_, raw, _ in EXACT]),
    st.sampled_from([b'"infinity"', b'"NaN"', b"1e999", b'{"scale":1,"value":1}']),
    st.integers(-(2**80), 2**80).map(lambda number: b"%d" % number),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ).map(msgspec.json.encode),
)


@given(
    sql_type=st.sampled_from(["BOOLEAN", "INTEGER", "DOUBLE", *{str(each[0]) for each in EXACT}]),
    encoding=st.sampled_from([*sorted({each[1] for each in EXACT}), "decimal.bytes(9999)"]),
    raw=_JSON_TEXTS,
)
def test_any_value_in_any_form_is_a_value_or_the_error_of_its_field(
    sql_type: str, encoding: str, raw: bytes
) -> None:
    """Anything else that a form raised would cost the whole capture, for all its subscribers."""
    form = column_form(Column("c", sql_type=sql_type, encoding=encoding))
    if raw == b"null":
        return
    try:
        text = form.text(raw)
    except ValueUnfit as error:
        with pytest.raises(ValueUnfit, match=re.escape(str(error))):
            form.value(raw)
        return
    shown = form.value(raw)
    expected = json.loads(text)
    if form.scalar is Json:
        assert text == raw
    else:
        assert repr(shown) == repr(expected) or shown == expected


@given(
    unscaled=st.integers(-(2**200), 2**200),
    scale=st.integers(-50, 50),
    by_value=st.booleans(),
)
def test_a_decimal_of_any_scale_is_the_number_of_its_source(
    unscaled: int, scale: int, *, by_value: bool
) -> None:
    size = unscaled.bit_length() // 8 + 1
    data = b'"%b"' % base64.b64encode(unscaled.to_bytes(size, "big", signed=True))
    encoding = f"decimal.bytes({scale})"
    if by_value:
        encoding, data = "debezium.VariableScaleDecimal", b'{"scale":%d,"value":%b}' % (scale, data)
    shown = column_form(Column("c", sql_type="DECIMAL", encoding=encoding)).value(data)
    assert isinstance(shown, str)
    assert Fraction(shown) == Fraction(unscaled) / Fraction(10) ** scale


@pytest.mark.parametrize("sql_type", ["VARCHAR", "JSON", "BIGINT", None])
def test_what_the_source_did_not_send_is_no_value(sql_type: str | None) -> None:
    form = column_form(Column("c", sql_type=sql_type))
    assert form.text(b'"__debezium_unavailable_value"') == b"null"
    assert form.value(b'"__debezium_unavailable_value"') is None


def test_null_is_null_in_every_form() -> None:
    for sql_type, encoding, _, _ in EXACT:
        assert column_form(Column("c", sql_type=sql_type, encoding=encoding)).value(b"null") is None


def test_columns_keep_their_names_as_far_as_graphql_can_say_them() -> None:
    columns = [
        "id",
        "unit price",
        "unit_price",
        "unit-price",
        "1st",
        "__typename",
        "größe",
        "",
        "id ",
    ]
    assert field_names(columns) == {
        "id": "id",
        "unit_price": "unit price",
        "unit_price_2": "unit_price",
        "unit_price_3": "unit-price",
        "_1st": "1st",
        "_typename": "__typename",
        "gr__e": "größe",
        "_": "",
        "id_": "id ",
    }


def test_names_without_an_ascii_letter_are_told_apart_and_make_a_schema() -> None:
    """GraphQL keeps two leading underscores to itself; a schema with such a name is refused as a whole."""
    columns = ["id", "имя", "город", "名", "价", "_", "-", "__"]
    assert list(field_names(columns).values()) == columns
    described = tuple(Column(each, id=id) for id, each in enumerate(columns, 1))
    built = build(Schema(1, {"订单": described, "产品": described}))
    assert validate_schema(built.core) == []


def test_no_name_made_of_one_entity_type_is_that_of_another() -> None:
    entity_types = [
        "product",
        "Product",
        "productChange",
        "product_schema",
        "catalog",
        "123",
        "order line",
    ]
    stems = type_names(entity_types, ["Catalog", "CatalogChange", "Change"])
    assert list(stems.values()) == entity_types
    made = [name for stem in stems for name in made_of(stem)]
    assert len(made) == len(set(made))
    assert "OrderLine" in stems
    grown = type_names([*entity_types, "product 2"], ["Catalog", "CatalogChange", "Change"])
    assert list(grown)[: len(stems)] == list(stems)


def test_a_dropped_column_has_no_field_and_a_renamed_one_its_new_name() -> None:
    """Nothing else of the type changes."""
    columns = (Column("id", id=1), Column("cost", id=2), Column("note", id=3))
    later = (columns[0], replace(columns[1], name="price"), replace(columns[2], dropped=True))
    fields = [
        list(build(Schema(number, {"product": each})).rows["ProductChange"].fields)
        for number, each in enumerate((columns, later), 1)
    ]
    assert fields == [["id", "cost", "note"], ["id", "price"]]
