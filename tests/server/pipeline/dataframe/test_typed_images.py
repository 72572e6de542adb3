"""Typed rows as images: read back, they equal the rows that were written, value by value and type by type."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Schema
from tailrace_server.pipeline.catalog.columns import Sighting, evolve
from tailrace_server.pipeline.dataframe.typed_images import images_of, key_texts
from tailrace_server.pipeline.dataframe.typed_rows import TypedForm
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.keys import key_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DAYS = st.dates()
MOMENTS = st.datetimes()
PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2, allow_nan=False),
    pa.decimal128(38, 18): st.decimals(-(10**19), 10**19, places=18, allow_nan=False),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): st.binary(max_size=9),
    pa.date32(): DAYS,
    pa.timestamp("us", "Europe/Berlin"): MOMENTS,
    pa.timestamp("us"): MOMENTS,
    pa.time64("ns"): st.times(),
    pa.duration("us"): st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
    pa.null(): st.none(),
}


def nested(kind: pa.DataType, values: st.SearchStrategy[Any]) -> list[Any]:
    """Return types that contain a type, each with the strategy of its values."""
    optional = st.none() | values
    return [
        (pa.list_(kind), st.lists(optional, max_size=3)),
        (
            pa.struct([("a b", kind), ('"', pa.string())]),
            st.fixed_dictionaries({"a b": optional, '"': st.none() | TEXTS}),
        ),
        (
            pa.map_(pa.string(), kind),
            st.dictionaries(TEXTS, optional, max_size=3).map(lambda found: [*found.items()]),
        ),
    ]


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """Return a table with columns of any type, which may be a slice of a longer one."""
    rows, fields, arrays = draw(st.integers(1, 5)), [], []
    for place in range(draw(st.integers(1, 4))):
        kind, values = draw(st.sampled_from([*PLAIN.items()]))
        for _ in range(draw(st.integers(0, 2))):
            kind, values = draw(st.sampled_from(nested(kind, values)))
        column = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        fields.append(pa.field(draw(TEXTS.filter(bool)) + str(place), kind))
        arrays.append(pa.array(column, kind))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return batch.slice(draw(st.integers(0, rows - 1)))


def columns_of_table(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the catalog's columns for a table whose first column is its key."""
    document = from_arrow_schema(schema).jsonValue()
    listing = TypedForm.of(document, "t", schema.names[:1]).listing
    (found,) = evolve(Schema(), [Sighting(0, "t", None, None, listing)])
    return found[1].columns("t")


def written(value: Any, kind: pa.DataType) -> Any:
    """Return what a value of a nested column is as JSON, with numbers in their own types."""
    types = pa.types
    if value is None or types.is_boolean(kind) or types.is_string(kind) or types.is_integer(kind):
        return value
    if types.is_floating(kind):
        return np.float32(value) if kind == pa.float32() else float(value)
    if types.is_list(kind):
        return [written(each, kind.value_type) for each in value]
    if types.is_map(kind):
        return {key: written(each, kind.item_type) for key, each in value}
    if types.is_struct(kind):
        return {each.name: written(value[each.name], each.type) for each in kind}
    return value


def assert_equal(got: Any, expected: Any) -> None:
    """Compare a parsed JSON value with the result of ``written``."""
    match expected:
        case list():
            assert len(got) == len(expected)
            for one, other in zip(got, expected, strict=True):
                assert_equal(one, other)
        case dict():
            assert list(got) == list(expected)
            for name, value in expected.items():
                assert_equal(got[name], value)
        case bool() | None | str() | int():
            assert got == expected
            assert type(got) is type(expected)
        case float() | np.floating():
            named = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
            number = type(expected)(named[got] if isinstance(got, str) else got)
            assert number == expected or (math.isnan(number) and math.isnan(expected))
        case Decimal():
            assert Decimal(got) == expected
        case timedelta():
            assert got == expected // timedelta(microseconds=1)
        case bytes():
            assert base64.b64decode(got, validate=True) == expected
        case datetime():
            assert datetime.fromisoformat(got) == expected
        case time() | date():
            assert type(expected).fromisoformat(got) == expected
        case _:
            raise AssertionError(type(expected))


@given(tables())
@settings(max_examples=60)
def test_images_read_back_equal_the_table(batch: pa.RecordBatch) -> None:
    columns = columns_of_table(batch.schema)
    images = images_of([*zip(batch.schema.names, batch.columns, strict=True)])
    found = ColumnReader(columns).read(images, columns).batch
    for column, given_column, field in zip(found.columns, batch.columns, batch.schema, strict=True):
        kind = field.type
        if pa.types.is_nested(kind):
            for text, value in zip(column.to_pylist(), given_column.to_pylist(), strict=True):
                parsed = None if text is None else json.loads(text, parse_float=Decimal)
                assert_equal(parsed, written(value, kind))
        elif pa.types.is_null(kind):
            assert column.null_count == len(column)
        elif pa.types.is_floating(kind):
            assert column.type == kind
            assert [*map(repr, column.to_pylist())] == [*map(repr, given_column.to_pylist())]
        else:
            expected = {pa.int8(): pa.int16(), pa.time64("ns"): pa.time64("us")}.get(kind, kind)
            expected = pa.string() if pa.types.is_large_string(kind) else expected
            expected = pa.timestamp("us", "UTC") if getattr(kind, "tz", None) else expected
            if pa.types.is_duration(kind):
                given_column, expected = given_column.cast(pa.int64()), pa.int64()
            assert column.type == expected
            assert column.to_pylist() == given_column.cast(expected).to_pylist()


@given(tables())
@settings(max_examples=60)
def test_a_key_has_the_text_that_its_image_gives(batch: pa.RecordBatch) -> None:
    """The text of a key does not depend on the way by which a row is written."""
    filled = [column for column in batch.columns if not column.null_count]
    if not filled:
        return
    names = [f"k{place}" for place in range(len(filled))]
    images = images_of([*zip(names, filled, strict=True)]).to_pylist()
    expected = [key_text([*decode_members(image).values()]) for image in images]
    assert key_texts(filled).to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"\xff"]).view(pa.string()), "column x: a text is not UTF-8"),
        (pa.array([1], pa.time64("ns")), "column x: .*exact to the microsecond"),
        (pa.array([1], pa.timestamp("ns")), "column x: .*exact to the microsecond"),
        (pa.array([[b"\xff"]]).cast(pa.list_(pa.binary())), None),
    ],
)
def test_a_value_without_a_form_is_refused(column: pa.Array, message: str | None) -> None:
    if message is None:
        assert images_of([("x", column)]).to_pylist() == [b'{"x":["/w=="]}']
        return
    with pytest.raises(InvalidRequest, match=message):
        images_of([("x", column)])
