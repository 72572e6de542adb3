"""Images are cut and put together by bytes; whole transactions are in transactions/test_consolidate.py."""

from __future__ import annotations

import json

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.images import (
    completed,
    difference,
    key_text,
    members,
    projection,
)

FORMS = (
    b'"__debezium_unavailable_value"',
    b'"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="',
    b'"5f5f646562657a69756d5f756e617661696c61626c655f76616c7565"',
    b'["__debezium_unavailable_value"]',
    orjson.dumps([*b"__debezium_unavailable_value"]),
    b'{"__debezium_unavailable_value":"__debezium_unavailable_value"}',
)

_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5))
_ROWS = st.dictionaries(st.text(max_size=5), _VALUES, max_size=5)


@given(_ROWS)
def test_an_image_is_put_together_from_its_members(row: dict[str, object]) -> None:
    image = json.dumps(row).encode()
    again = projection(members(image), list(row))
    assert json.loads(again) == row
    assert members(again) == members(image)


@given(_ROWS, _ROWS)
def test_the_difference_names_what_differs(
    before: dict[str, object], after: dict[str, object]
) -> None:
    old_row, new_row = (members(json.dumps(row).encode()) for row in (before, after))
    found = difference(old_row, new_row)
    absent = object()

    def differs(name: str) -> bool:
        old, new = before.get(name, absent), after.get(name, absent)
        return type(old) is not type(new) or old != new

    assert set(found) == {name for name in {*before, *after} if differs(name)}


def test_digits_are_kept_as_they_were_written() -> None:
    image = b'{"a": 1.50, "b": 1e2}'
    assert projection(members(image), ["b", "a", "c"]) == b'{"b":1e2,"a":1.50,"c":null}'


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        ([b"1"], "1"),
        ([b'"x\\u00e9"'], "xé"),
        ([b'"a"', b"1.0"], '["a",1.0]'),
        ([b"null"], None),
        ([b"1", b"null"], None),
        ([], None),
    ],
)
def test_the_text_of_a_key(texts: list[bytes], key: str | None) -> None:
    assert key_text(texts) == key


@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_was_not_sent_is_taken_from_the_earlier_image(form: bytes) -> None:
    sent = b'{"id":1,"doc":%b}' % form
    assert completed(sent, b'{"id":1,"doc":"long"}') == b'{"id":1,"doc":"long"}'
    assert completed(sent, b'{"id":1}') is sent
    assert completed(sent, None) is sent
    assert difference(members(b'{"id":1,"doc":"long"}'), members(sent)) == []


def test_what_is_no_object_has_no_members() -> None:
    with pytest.raises(msgspec.DecodeError):
        members(b"[1]")
