"""What names a row: options, the message key in its layouts, declared columns; never a guess."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import CHANGE, QUARANTINED, Change, FileSplit
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.pipeline.shapes import decode, decoder, envelope, line, postgres

INSERT = envelope("c", postgres(1), after={"tenant": 3, "id": 7, "sku": "x"})
DELETE = envelope("d", postgres(1), before={"tenant": 3, "id": 7, "sku": "x"})
BY_KEY = {"product": ("tenant", "id")}


def one(message: dict[str, Any], **options: Any) -> Change:
    [change] = decode(message, **{"keys": {}, **options})
    return change


def refused(message: dict[str, Any], **options: Any) -> str:
    change = one(message, **options)
    assert change.kind == QUARANTINED
    assert change.reason is not None
    assert "\n" not in change.reason
    return change.reason


# Layouts of the message key.


@pytest.mark.parametrize("wrapper", ["value", "payload", "beside"])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({"id": 7}, "7"),
        ({"tenant": 3, "sku": "xä"}, '[3,"xä"]'),
        ('{"id":7}', "7"),
        ({"schema": {"type": "struct"}, "payload": {"id": 7}}, "7"),
        ({"schema": None, "payload": {"id": 7}}, "7"),
        ({"payload": {"id": 7}}, "7"),
        ('{"schema":{},"payload":{"id":7}}', "7"),
        ({"schema": {"type": "string"}, "payload": "sku-1"}, "sku-1"),
        ({"schema": "a", "payload": "b"}, '["a","b"]'),
        ({"payload": "b"}, "b"),
        ({"n": {"scale": 0, "value": "AQ=="}}, '{"scale":0,"value":"AQ=="}'),
        (7, "7"),
        ("7", "7"),
        ("sku-1", "sku-1"),
        ("{6F9619FF}", "{6F9619FF}"),
        ('"abc"', "abc"),
        ('"', '"'),
    ],
)
def test_a_key_is_used_in_every_layout_that_is_understood(
    wrapper: str, key: object, text: str
) -> None:
    message = {"key": key, **INSERT} if wrapper == "beside" else {"key": key, wrapper: INSERT}
    change = one(message)
    assert (change.kind, change.primary_key) == (CHANGE, text), change.reason


@pytest.mark.parametrize("wrapper", ["value", "payload"])
@pytest.mark.parametrize(
    ("key", "layout"),
    [
        ([3, 7], "an array"),
        (True, "a boolean"),
        ({}, "an object without columns"),
        ("{}", "an object without columns"),
        ({"id": {"int": 7}}, "in Avro's JSON"),
        ('{"id":{"long":7}}', "in Avro's JSON"),
        ("Struct{id=7}", "a Struct as StringConverter writes it"),
        ("\0\0\0\0\1\x0e", "binary, as with a schema registry"),
    ],
)
def test_a_key_that_is_not_understood_is_refused_with_its_layout_and_the_cure(
    wrapper: str, key: object, layout: str
) -> None:
    message = {"key": key, wrapper: INSERT}
    reason = refused(message, keys={"*": ("id",)})
    assert layout in reason
    assert "write keys with JsonConverter, or set the key columns: --key product=COL" in reason
    assert one(message, keys=BY_KEY).primary_key == "[3,7]"


@pytest.mark.parametrize(
    "key", [None, "null", {"schema": None, "payload": None}, '{"schema":null,"payload":null}']
)
def test_a_key_that_is_null_is_that_of_a_table_without_one(key: object) -> None:
    """So columns given for all tables do not name its rows."""
    message = {"key": key, "value": INSERT}
    reason = refused(message, keys={"*": ("id",)})
    assert (
        "the message key is null, as for a table without a primary key; set its key columns with --key "
        "product=COL" in reason
    )
    assert one(message, keys=BY_KEY).primary_key == "[3,7]"


def test_two_keys_of_one_line_must_agree() -> None:
    inner = {"key": {"id": 7}, "value": INSERT}
    assert one({"key": {"id": 7}, "payload": inner}).primary_key == "7"
    assert "two message keys that differ" in refused({"key": {"id": 8}, "payload": inner})


# Who wins.


def test_a_column_id_is_no_key_unless_somebody_says_so() -> None:
    """Rows 7 of tenants 3 and 4 would become one."""
    reason = refused(INSERT)
    assert "the line has no message key" in reason
    assert "set its key columns with --key product=COL,…" in reason
    assert one(INSERT, keys={"*": ("id",)}).primary_key == "7"


def test_the_operator_wins_over_the_message_and_the_message_over_what_is_declared() -> None:
    mapping = SchemaMapping.parse('[entity_types.product]\nkey = ["sku"]\n', "shop.toml")
    keyed = {"key": {"id": 7}, "value": INSERT}
    assert one(keyed, keys=BY_KEY, mapping=mapping).primary_key == "[3,7]"
    assert one(keyed, mapping=mapping).primary_key == "7"
    assert one(INSERT, mapping=mapping).primary_key == "x"
    assert one(INSERT, keys={"*": ("id",)}, mapping=mapping).primary_key == "x"


def test_the_key_of_a_table_is_not_taken_for_one_whose_name_ends_alike() -> None:
    keys = {"product": ("tenant", "id")}
    source = {**postgres(1), "schema": "public", "table": "product"}
    long = envelope("c", source, after=INSERT["after"])
    assert one(long, keys=keys, entity_type_from="schema.table").primary_key == "[3,7]"
    dotted = envelope("c", {**source, "table": "old.product"}, after=INSERT["after"])
    for form in ("table", "schema.table"):
        assert "no key" in refused(dotted, keys=keys, entity_type_from=form)


def test_a_removal_without_image_is_named_by_the_message_key() -> None:
    gone = envelope("d", postgres(1))
    told = {"key": {"id": 7, "tenant": 3}, "value": gone}
    assert one(told).primary_key == "[7,3]"
    assert one(told, keys=BY_KEY).primary_key == "[3,7]"
    assert one({"key": 7, "value": gone}, keys={"product": ("id",)}).primary_key == "7"
    reason = refused({"key": {"id": 7}, "value": gone}, keys=BY_KEY)
    assert reason == "no key: the image has no column tenant, id"


def test_a_message_key_of_another_row_is_refused() -> None:
    reason = refused({"key": {"tenant": 3, "id": 8}, "value": INSERT})
    assert "the message key has id = 8, but the image has id = 7" in reason
    assert "to use the image's key: --key product=tenant,id" in reason
    assert refused({"key": {"id": 8}, "value": DELETE})


def test_a_message_key_wins_over_a_masked_column() -> None:
    masked = envelope("u", postgres(1), before={"sku": "***"}, after={"sku": "***"})
    assert one({"key": {"sku": "x"}, "value": masked}).primary_key == "x"


@pytest.mark.parametrize("key", [{"id": 1}, {"id": 2}])
def test_a_moved_row_is_noticed_whichever_key_the_message_has(key: dict[str, int]) -> None:
    moved = envelope("u", postgres(1), before={"id": 1, "n": 1}, after={"id": 2, "n": 1})
    change = one({"key": key, "value": moved})
    assert (change.old_key, change.primary_key) == ("1", "2")


def test_a_message_key_that_is_neither_the_old_nor_the_new_one_is_refused() -> None:
    moved = envelope("u", postgres(1), before={"sku": "a"}, after={"sku": "b"})
    reason = refused({"key": {"sku": "c"}, "value": moved})
    assert (
        "the message key c is neither the key before the change, a, nor the key after it, b"
        in reason
    )
    assert one({"key": {"sku": "c"}, "value": moved}, keys={"product": ("sku",)}).old_key == "a"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (envelope("c", postgres(1), after={"sku": 1}), "no key: the image has no column id"),
        (envelope("c", postgres(1), after={"id": None}), "a key column is null: id"),
        ({"key": {"id": None}, "value": INSERT}, "a key column is null: id"),
        (envelope("c", postgres(1)), "no image of the row after the change"),
    ],
)
def test_a_row_that_nothing_names_says_what_is_missing(
    message: dict[str, Any], reason: str
) -> None:
    assert refused(message, keys={"*": ("id",)}) == reason


@pytest.mark.parametrize("op", ["c", "u", "d"])
def test_an_image_that_has_a_member_twice_is_set_aside(op: str) -> None:
    """Readers would not agree on its value; programs that write rows are refused alike."""
    images = {"before": {"id": 1, "at": "12:00"}, "after": {"id": 1, "at": "12:01"}}
    message = line(envelope(op, postgres(1), **images)).replace(b'"at":', b'"id":1,"at":')
    feed = decoder()
    changes = [*feed.feed(FileSplit(""), [message]), *feed.finish()]
    assert changes[0].reason == "an image has member 'id' twice"


SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "7", "null", "{", '"'])
)
COLUMNS = st.dictionaries(
    st.sampled_from(["id", "tenant", "schema", "payload"]), SCALARS, max_size=3
)
KEYS = SCALARS | COLUMNS | st.lists(SCALARS, max_size=2)
WRAPPED = KEYS | st.builds(lambda key: {"schema": {"type": "struct"}, "payload": key}, KEYS)


@given(st.lists(WRAPPED | WRAPPED.map(json.dumps), min_size=2, max_size=2), st.booleans())
def test_rows_get_one_key_only_if_their_message_keys_say_the_same(
    keys: list[object], string: bool
) -> None:
    """Whatever the layout: one that is not understood is set aside, not taken for some other key."""
    row = envelope("c", postgres(1), after={"name": "x"})
    changes = [one({"key": key, "value": row}) for key in keys]
    if all(change.kind == CHANGE for change in changes):
        texts = [change.primary_key for change in changes]
        assert (texts[0] == texts[1]) == (_said(keys[0]) == _said(keys[1])), (keys, texts)


def _said(key: object) -> str:
    """Return what a key says: the text of its only value, or that of all of them."""
    while isinstance(key, str) or (
        isinstance(key, dict)
        and key.keys() == {"schema", "payload"}
        and isinstance(key["schema"], dict | None)
    ):
        if isinstance(key, dict):
            key = key["payload"]
            continue
        try:
            key = json.loads(key)
        except json.JSONDecodeError:
            return str(key)
    values = [*key.values()] if isinstance(key, dict) else [key]
    return str(values[0]) if len(values) == 1 else json.dumps(values, separators=(",", ":"))
