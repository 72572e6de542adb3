"""Types of columns: told, widened, held."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema import Column
from tailrace_server.typed.forms import Misfit, form_of
from tailrace_server.wal.schema import column_types
from tailrace_server.wal.schema.column_types import (
    TypeInference,
    fault_of,
    joined,
    may_become,
    type_of,
    widened,
)

INFERRED = (None, "BOOLEAN", "BIGINT", "DECIMAL", "VARCHAR", "JSON")
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)
_values = st.recursive(
    _scalars | st.text(), lambda inner: st.lists(inner, max_size=2), max_leaves=4
)


@given(st.dictionaries(st.text(max_size=3), _values, max_size=4))
def test_an_image_tells_the_types_of_its_values_once(image: dict[str, object]) -> None:
    """Whether it is parsed whole or value by value."""
    inference = TypeInference()
    text = json.dumps(image, ensure_ascii=False, allow_nan=False)
    found = dict(inference.unseen("t", text.encode()))
    assert found == {name: type_of(json.dumps(value).encode()) for name, value in image.items()}
    again = dict(inference.unseen("t", text.encode()))
    assert again in ({}, found)


@given(*[st.sampled_from(INFERRED)] * 3)
def test_widening_is_a_join(one: str | None, other: str | None, third: str | None) -> None:
    assert widened(one, other) == widened(other, one)
    assert widened(one, one) == one
    assert widened(widened(one, other), third) == widened(one, widened(other, third))


@pytest.mark.parametrize(
    ("sql_type", "encoding", "held", "not_held"),
    [
        ("SMALLINT", "json", ["0", "-32768"], ["32768", "1.0", '"1"', "true"]),
        ("BIGINT", "json", ["9223372036854775807"], ["9223372036854775808", "1e3"]),
        ("DECIMAL(4,2)", "json", ["99.99", "-0.10", "12", "1.500"], ["100", "0.001", '"1"']),
        ("DECIMAL(4,2)", "json", ["1e1", "0.99e2", "1200e-2", "0e9"], ["1e2", "1e-3", "1e400"]),
        ("DECIMAL(4,2)", "json", ["0.010e0"], ["1e99999999999999999999", "1e-2147483647"]),
        ("DECIMAL", "json", ["1e400", "0.1"], ['"1"', "[]"]),
        ("DOUBLE", "json", ["1.7e308", "1e-400", "9" * 308], ["1e309", "1e400", "1" * 310]),
        ("REAL", "json", ["3.4e38", "1e-400", "-" + "9" * 38], ["1e39", "1e400", "9" * 39]),
        ("DECIMAL(4,2)", "decimal.bytes(2)", ['"AfQ="'], ["1.5"]),
        ("DOUBLE", "json", ["1", "1e3", '"NaN"', '"-Infinity"'], ['"nan"', "NaN"]),
        ("BOOLEAN", "json", ["true", "false"], ["1"]),
        ("VARCHAR(2)", "json", ['"ab"', '"\\u00e9b"'], ['"abc"', "1"]),
        ("JSON", "json", ["1", "{}", "[]", '"a"'], []),
        ("DATE", "debezium.Date", ["19000"], ['"2020-01-01"']),
        ("TIMESTAMP WITH TIME ZONE", "debezium.ZonedTimestamp", ['"2020"'], ["1"]),
        ("DECIMAL", "debezium.VariableScaleDecimal", ['{"scale":1}'], ["1"]),
        ("VARCHAR", "json", ['"__debezium_unavailable_value"'], []),
        ("INTEGER", "json", ['"__debezium_unavailable_value"'], []),
    ],
)
def test_what_a_type_holds(
    sql_type: str, encoding: str, held: list[str], not_held: list[str]
) -> None:
    assert [fault_of(sql_type, encoding, value.encode()) for value in held] == [None] * len(held)
    assert all(fault_of(sql_type, encoding, value.encode()) for value in not_held)


@given(
    st.sampled_from(["SMALLINT", "BIGINT", "REAL", "DOUBLE"])
    | st.builds("DECIMAL({},{})".format, st.integers(4, 40), st.integers(0, 4)),
    st.from_regex(
        r"-?(0|[1-9]\d{0,45})(\.\d{1,6})?([eE][-+]?\d{1,3}|e-?2147483647|e\d{20})?",
        fullmatch=True,
    ),
)
def test_a_type_takes_the_numbers_that_its_readers_can_read(sql_type: str, value: str) -> None:
    """A number that is refused when it is written ends no reader."""
    taken = fault_of(sql_type, "json", value.encode()) is None
    try:
        form_of(Column("", sql_type=sql_type)).decode(value.encode())
    except Misfit:
        assert not taken
    else:
        assert taken


TYPES = [
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "REAL",
    "DECIMAL",
    "BOOLEAN",
    "VARCHAR",
    "JSON",
    "DATE",
    "UUID",
]
SIZED = st.builds("DECIMAL({},{})".format, st.integers(1, 6), st.integers(0, 6))
VALUES = st.one_of(
    st.from_regex(r"-?(0|[1-9]\d{0,20})(\.\d{1,6})?([eE]\d)?", fullmatch=True),
    st.text(max_size=4).map(lambda text: orjson.dumps(text).decode()),
    st.sampled_from(["true", "false", "{}", "[1]", '{"scale":1}', '"NaN"', '"\\u00e9"', '"\\""']),
    st.just('"__debezium_unavailable_value"'),
)


@given(
    st.sampled_from(TYPES) | SIZED | st.builds("VARCHAR({})".format, st.integers(1, 4)),
    st.sampled_from(["json", "base64", "decimal.string", "debezium.Date", "connect.Date"]),
    VALUES,
)
def test_what_is_usual_fits(sql_type: str, encoding: str, value: str) -> None:
    """The pattern of usual values saves a check, and never decides otherwise."""
    found = fault_of(sql_type, encoding, value.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_types, "_usual_values", lambda *_: re.compile(b"(?!)"))
        assert fault_of(sql_type, encoding, value.encode()) == found


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("INTEGER", "BIGINT", "BIGINT"),
        ("BIGINT", "SMALLINT", "BIGINT"),
        ("REAL", "DOUBLE", "DOUBLE"),
        ("INTEGER", "DOUBLE", None),
        ("VARCHAR(10)", "VARCHAR(20)", "VARCHAR(20)"),
        ("VARCHAR(10)", "VARCHAR", "VARCHAR"),
        ("DECIMAL(8,2)", "DECIMAL(10,2)", "DECIMAL(10,2)"),
        ("DECIMAL(8,2)", "DECIMAL(8,3)", None),
        ("DATE", "TIMESTAMP", None),
        (None, "DATE", None),
    ],
)
def test_which_of_two_types_reads_the_text_of_both(
    before: str | None, after: str, both: str | None
) -> None:
    found = joined((before, "json"), (after, "json"))
    assert (None if found is None else found[0]) == both
    assert joined(("BIGINT", "json"), ("BIGINT", "debezium.Time")) is None


@pytest.mark.parametrize("inferred", INFERRED)
def test_inferred_values_may_be_those_of_a_stated_type_if_their_json_is(
    inferred: str | None,
) -> None:
    assert may_become(inferred, "JSON", "json")
    assert may_become(inferred, "DATE", "debezium.Date") == (
        inferred in (None, "BIGINT", "DECIMAL")
    )
