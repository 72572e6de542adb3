"""Images are cut and put together by bytes; whole transactions are in transactions/test_consolidate.py."""

from __future__ import annotations

import json

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.images import completed, difference, members, projection
from tailrace_server.wal.record.keys import key_text

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


_KEYS = st.lists(st.integers(-2, 2) | st.text('1",[] é', max_size=3), min_size=1, max_size=3)


@given(_KEYS, _KEYS)
def test_two_keys_of_one_table_have_one_text_only_if_they_are_equal(
    one: list[object], other: list[object]
) -> None:
    """A table has one number of key columns, and a column one type, as far as its values show it."""
    one_type = [type(value) for value in one] == [type(value) for value in other]
    if len(one) == len(other) and (one_type or len(one) > 1):
        texts = [
            # Escapes differ from connector to connector, and say nothing.
            key_text([json.dumps(value, ensure_ascii=ascii).encode() for value in key])
            for key, ascii in ((one, True), (other, False))
        ]
        assert (texts[0] == texts[1]) == (one == other)


def test_a_key_column_that_is_altered_to_text_keeps_the_keys_of_its_rows() -> None:
    assert key_text([b"17"]) == key_text([b'"17"'])


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
