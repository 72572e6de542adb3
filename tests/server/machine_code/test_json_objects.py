"""The compiled check by itself: it may doubt a valid object, and never accepts anything else.

That it gives the answers of the parser is tested in `test_json_check.py`; how names are found, in
`pipeline/dataframe/test_known_names.py`.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.machine_code.loader import loops_made
from tailrace_server.wal.record.text_columns import addresses_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), VALUES, max_size=4)


def doubtful(*bodies: bytes | None, first: int = 0) -> int:
    array = pa.array(bodies, pa.binary())
    return loops_made().first_doubtful(*addresses_of(array), first, len(array))


@given(OBJECTS, st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (" ,\n", "\t: ")]))
def test_ordinary_objects_are_not_doubted(
    row: dict[str, object], indent: int | None, separators: tuple[str, str]
) -> None:
    text = json.dumps(row, indent=indent, separators=separators, ensure_ascii=False)
    assert doubtful(text.encode(), f"\r\n {text} ".encode()) == -1


@given(OBJECTS, st.data())
def test_an_object_that_is_cut_off_is_doubted(row: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(row, ensure_ascii=False).encode()
    assert doubtful(text[: data.draw(st.integers(0, len(text) - 1))]) == 0


@pytest.mark.parametrize(
    "body", [b'{"a":"bcdefgh', b'{"a', b'{"a":1', b'{"a":tr', b'{"a":"\\', b"{"]
)
def test_the_bytes_of_the_next_row_complete_nothing(body: bytes) -> None:
    """Texts are read in words of eight bytes, which must not reach into what lies behind."""
    rest = {b'{"a': b'":1}', b'{"a":1': b"}", b'{"a":tr': b"ue}", b"{": b"}"}.get(body, b'"}')
    assert doubtful(b"{}", body, rest) == 1


def test_what_the_parser_shall_tell_is_doubted_though_it_is_valid() -> None:
    assert doubtful(b'{"a":"\\ud83d\\ude00"}') == 0
    deep = b'{"a":[' * 31 + b"]}" * 31
    assert doubtful(deep) == -1
    assert doubtful(b'{"a":' + deep + b"}") == 0


def test_nulls_and_rows_out_of_range_are_passed_over() -> None:
    assert doubtful(None, b"{}", b"[]", None, b"1") == 2
    assert doubtful(None, b"{}", b"[]", None, b"1", first=3) == 4
    assert doubtful(b"1", b"{}", None, first=1) == -1
