"""Compiled code and Python read the same columns: values, what is present, and what does not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.schema import Column
from tailrace_server.machine_code.loader import loops, loops_made
from tailrace_server.typed.forms import form_of
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.typed.values import Members, ValueReader
from tailrace_server.wal.record.unavailable import DEFAULT, PLACEHOLDER
from tests.server.typed.test_reader import FITTING, UNFIT

if TYPE_CHECKING:
    from tailrace_server.typed.values import ColumnValues

LOOPS = loops_made()
COLUMNS = [
    Column("a", sql_type=sql_type, encoding=encoding)
    for sql_type, encoding in dict.fromkeys(
        [each[:2] for each in FITTING] + [each[:2] for each in UNFIT]
    )
]
KNOWN = [each[3] for each in FITTING] + [each[2] for each in UNFIT]

digits = st.text("0123456789", min_size=1, max_size=22)
numbers = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        digits.map(lambda each: each.lstrip("0") or "0"),
        st.one_of(st.just(""), digits.map(".{}".format)),
        st.sampled_from(["", "", "e2", "E-1", "e+30"]),
    ),
)
moments = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["2024-02-29", "1900-02-29", "0000-01-01", "9999-12-31", "2023-04-31"]),
        st.sampled_from(["T", " ", ""]),
        st.sampled_from(["", "00:00:00", "23:59:59", "24:00:00", "13:60:00", "12:30", "1:2:3"]),
        st.sampled_from(["", ".5", ".", ".123456", ".1234567", ".123000000"]),
        st.sampled_from(["", "Z", "+01:30", "-23:59", "+24:00", "+01", "z"]),
    ),
)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
base64s = st.text("AQgw+/=\\", max_size=16)
texts = st.one_of(
    *(st.builds(json.dumps, each) for each in (plain, moments, base64s, numbers)),
    st.builds(lambda each: json.dumps(each, ensure_ascii=False), plain),
)
values = st.one_of(
    st.sampled_from(KNOWN),
    numbers,
    texts,
    st.sampled_from(["true", "false", "null", "[]", '{"x": [1, "]"]}', "1 ", f'"{PLACEHOLDER}"']),
)
members = st.tuples(
    st.sampled_from(["a", "a", "b", "c", "", "\\u0061", "aa", "ä"]),
    st.sampled_from(["", " ", "\n"]),
    values,
)
objects = st.lists(members, max_size=5).map(
    lambda found: (
        "{" + ",".join(f'"{name}"{space}:{space}{value}' for name, space, value in found) + "}"
    )
)
images = st.lists(st.one_of(st.none(), objects), max_size=6)


def read(column: Column, given: pa.BinaryArray, *, by_code: bool) -> ColumnValues:
    """Return the values of a column."""
    reader = ValueReader(form_of(column), DEFAULT)
    output = reader.output(given, 1) if by_code else None
    outputs = [] if output is None else [output]
    found = Members(given, ["b", column.name, "ä"], LOOPS if by_code else None, outputs)
    return reader.read(found, 1, output)


def same(one: pa.Array, other: pa.Array) -> bool:
    """Return whether arrays are equal, with NaN equal to NaN, and valid."""
    one.validate(full=True)
    return one.type == other.type and repr(one.to_pylist()) == repr(other.to_pylist())


def as_array(texts: list[str | None]) -> pa.BinaryArray:
    """Return images, in an array that does not begin with its buffer."""
    given = [None if text is None else text.encode() for text in texts]
    return pa.array([b'{"a":1}', *given], pa.binary()).slice(1)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda each: f"{each.sql_type} {each.encoding}")
def test_every_known_value_is_read_alike_in_every_column(column: Column) -> None:
    """Whatever it is written for."""
    given = as_array([f'{{"b":0,"a":{value}}}' for value in KNOWN])
    one, other = (read(column, given, by_code=by_code) for by_code in (True, False))
    assert same(one.array, other.array)
    assert one.present == other.present
    assert [*one.misfits] == [*other.misfits]


@given(st.sampled_from(COLUMNS), images)
@example(Column("a", sql_type="VARCHAR"), ['{"a":"' + "x" * (1 << 20) + '"}', '{"a":"\\n"}'])
@example(Column("a", sql_type="DECIMAL(38,2)"), ['{"a":' + "1" * (1 << 20) + "}"])
@example(Column("a", sql_type="JSON"), ['{"a":' + "[" * 70 + "]" * 70 + "}"])
@example(Column("a", sql_type="DOUBLE"), ['{"a":1e400,"a":"Infinity"}', '{"a":1e400}'])
def test_whatever_images_hold_is_read_alike(column: Column, texts: list[str | None]) -> None:
    """Names with escapes, members that come twice, values of any size and kind, spaces, nulls."""
    # Compiled code compares images with the images before them, and reads bytes after a value if there are any.
    given = as_array([*texts, *texts, '{"b":0,"a":null}' + " " * 40])
    one, other = (read(column, given, by_code=by_code) for by_code in (True, False))
    assert same(one.array, other.array)
    assert one.present == other.present
    assert [*one.misfits] == [*other.misfits]


@given(images)
def test_what_else_is_in_an_image_is_told_alike(texts: list[str | None]) -> None:
    """Names that were not asked for, however they are written."""
    given = as_array(texts)
    one, other = (Members(given, ["a", "ä"], loops).others() for loops in (LOOPS, None))
    assert one.equals(other)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":1}x', '{"a":1,}', '{"a" 1}', '{"a":01}', "{1}"]
)
def test_what_is_no_object_is_an_error_of_both(text: str) -> None:
    """Which says the row."""
    given = as_array(['{"a":1}', text])
    for machine in (LOOPS, None):
        with pytest.raises(ValueError, match="image 1 is not a JSON object"):
            Members(given, ["a"], machine)


def test_many_images_are_read_by_compiled_code_and_few_without() -> None:
    """It is loaded once there are many, and the answers are the same."""
    columns = [Column("a", sql_type="BIGINT"), Column("b", sql_type="VARCHAR")]
    given = as_array([f'{{"a":{row},"b":"{row}"}}' for row in range(1_000)])
    reader = ColumnReader(columns)
    found = reader.read(given, columns)
    assert loops(1) is not None
    assert found.batch.to_pydict() == {"a": [*range(1_000)], "b": [*map(str, range(1_000))]}
