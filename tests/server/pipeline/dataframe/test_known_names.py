"""Names in JSON objects, found without a parse of each row, against a parse of each row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.machine_code.loader import loops_made
from tailrace_server.pipeline.dataframe.new_columns import KnownNames, rows_with_unknown_names
from tests.support.compiled_loops import loops_used

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = st.text(st.sampled_from('ab#"\\:ü x\n'), max_size=20) | st.sampled_from(
    ["id", "name", "shipping_address", "billing__address", "12345678", "1234567", "#id"]
)
VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('ab":\\{} ,ü'), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(st.none() | st.dictionaries(NAMES, VALUES, max_size=5), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Make the loops; without them all rows are parsed."""
    loops_made()


def written(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def unknown(
    rows: Sequence[str | None], known: set[str], groups: list[int] | None = None
) -> list[int]:
    names = KnownNames()
    for name in known:
        names.add(0, written(name))
    groups = groups or [0] * len(rows)
    array = pa.array([None, *rows], pa.string()).cast(pa.binary())[1:]
    found = rows_with_unknown_names(array, np.array(groups, np.int64), names)
    return [int(row) for row in found]


@given(
    ROWS, st.sets(NAMES, max_size=8), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])
)
def test_no_row_with_an_unknown_name_is_passed_over(
    rows: list[dict[str, object] | None], known: set[str], separators: tuple[str, str]
) -> None:
    texts = [
        None if row is None else json.dumps(row, ensure_ascii=False, separators=separators)
        for row in rows
    ]
    for compiled in (False, True):
        with loops_used(compiled):
            found = unknown(texts, known)
        for place, row in enumerate(rows):
            if row is not None and row.keys() - known:
                assert place in found


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "a_rather_long_name", "1234567", "12345678"]), st.integers()
        )
    )
)
def test_rows_of_known_names_are_not_parsed(rows: list[dict[str, int]]) -> None:
    known = {"id", "a_rather_long_name", "1234567", "12345678"}
    assert unknown([json.dumps(row) for row in rows], known) == []


@pytest.mark.parametrize(
    "row",
    [
        r'{"id":"{\"colour\": \"blau\"}"}',
        '{"id":"12:30:05"}',
        '{"id":"x\\\\","name":1}',
        '{"id":"#","name":"a"}',
        "{}",
    ],
)
def test_texts_that_look_like_names_cost_nothing(row: str) -> None:
    assert unknown([row, row], {"id", "name"}) == []


def test_a_name_is_known_in_its_group_only() -> None:
    assert unknown(['{"id":1}', '{"id":1}', '{"id":1}'], {"id"}, [0, 1, 0]) == [1]


def test_names_that_share_their_end_are_told_apart() -> None:
    rows = ['{"shipping_address":1}', '{"billing__address":1}', '{"address":1}']
    assert unknown(rows, {"shipping_address"}) == [1, 2]


def test_many_names_fit() -> None:
    known = {f"column_{n}" for n in range(3_000)}
    rows = [json.dumps(dict.fromkeys(known)), '{"column_3000":1}']
    assert unknown(rows, known) == [1]


def test_names_of_nested_objects_are_not_looked_up() -> None:
    rows = ['{"id":{"name":[{"id":",\\"}"}]},"name":[1,{"x":2}]}', '{"id":[],"x":1}']
    assert unknown(rows, {"id", "name"}) == [1]


@pytest.mark.parametrize("length", range(1, 26))
def test_names_of_every_length_are_told_apart_by_their_first_byte(length: int) -> None:
    known, other = "a" + "n" * (length - 1), "b" + "n" * (length - 1)
    assert unknown([f'{{"{known}":1}}', f'{{"{other}":1}}', f'{{"x{known}":1}}'], {known}) == [1, 2]
