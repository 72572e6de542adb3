"""The documented schema is taken in any spelling, and nothing else is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.cdcv2 import AvroForm, SchemaDiffers
from tests.server.cdcv2.documented import SCHEMA, data_of, schema

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_documented_schema_is_taken_as_text_and_parsed() -> None:
    assert AvroForm.of(SCHEMA).schema == AvroForm.of(schema()).schema
    assert AvroForm.of(SCHEMA.encode()).fields == ("id", "price")
    assert AvroForm.of(SCHEMA).text == SCHEMA
    assert AvroForm.of_data(data_of(schema())).schema == AvroForm.of(SCHEMA).schema


def test_what_does_not_change_the_bytes_may_differ() -> None:
    changed = schema()
    update, progress = changed[0]["items"], changed[1]
    update["doc"] = "one change"
    update["name"], update["namespace"] = "com.materialize.cdc.update", ""
    data_of(changed).update(namespace="com.materialize.cdc", aliases=["row"])
    update["fields"][1] = {"name": "time", "type": {"type": "long"}, "order": "ignore"}
    update["fields"][2]["type"] = {"type": "long", "logicalType": "timestamp-micros"}
    progress["fields"][0]["default"] = []
    assert AvroForm.of(changed).schema == AvroForm.of(SCHEMA).schema


CHANGES: list[tuple[Callable[[Any], Any], str, str]] = [
    (lambda s: s[:1], "[1]", "expected record com.materialize.cdc.progress, found nothing"),
    (lambda s: s[0], "", "expected 2 branches, found an array of record"),
    (lambda s: s[1:], "[0]", "found record com.materialize.cdc.progress"),
    (lambda s: s[::-1], "[0]", "expected an array of record"),
    (lambda s: [*s, "null"], "[2]", "expected nothing, found null"),
    (lambda s: "long", "", "found long"),
    (lambda s: 7, "", "expected a valid Avro schema"),
    (lambda s: {"a": 1}, "", "expected a valid Avro schema"),
    (
        lambda s: s[0]["items"].update(name="change"),
        "[0].items.name",
        "found com.materialize.cdc.change",
    ),
    (lambda s: s[0]["items"].pop("namespace"), "[0].items.name", "found update"),
    (
        lambda s: s[0]["items"]["fields"][0].update(type="string"),
        "[0].items.fields[0].type",
        "a record",
    ),
    (
        lambda s: s[0]["items"]["fields"][1].update(type="int"),
        "[0].items.fields[1].type",
        "found int",
    ),
    (
        lambda s: s[0]["items"]["fields"][1].update(name="ts"),
        "[0].items.fields[1].name",
        "found ts",
    ),
    (
        lambda s: s[0]["items"]["fields"].pop(),
        "[0].items.fields[2]",
        "field diff of long, found nothing",
    ),
    (
        lambda s: s[1]["fields"][0].update(type="long"),
        "[1].fields[0].type",
        "an array of long, found long",
    ),
    (lambda s: s[1]["fields"].pop(), "[1].fields[2]", "field counts"),
    (
        lambda s: data_of(s)["fields"][0].update(type="lnog"),
        "[0].items.fields[0].type",
        "valid Avro",
    ),
    (lambda s: data_of(s)["fields"][0].pop("type"), "[0].items.fields[0].type", "valid Avro"),
    (
        lambda s: data_of(s)["fields"][0].update(type={"type": "enum", "name": "e"}),
        "[0].items.fields[0].type",
        "valid Avro",
    ),
    (
        lambda s: data_of(s)["fields"][1]["type"].append("int"),
        "[0].items.fields[0].type",
        "a union of null, int, int",
    ),
    (
        lambda s: data_of(s)["fields"][1]["type"].append(["long"]),
        "[0].items.fields[0].type",
        "a union of null, int",
    ),
    (
        lambda s: data_of(s)["fields"][0].update(
            type={"type": "record", "name": "progress", "fields": []}
        ),
        "[0].items.fields[0].type",
        "found com.materialize.cdc.progress, for another type too",
    ),
]


@pytest.mark.parametrize(("change", "place", "text"), CHANGES)
def test_another_schema_is_refused_with_the_place_where_it_differs(
    change: Callable[[Any], Any], place: str, text: str
) -> None:
    changed = schema()
    result = change(changed)
    # What changes the schema in place returns what it took away.
    wrong = changed if changed != schema() else result
    with pytest.raises(SchemaDiffers) as caught:
        AvroForm.of(json.dumps(wrong))
    assert caught.value.place == place
    assert text in str(caught.value)
    assert caught.value.figures()["place"] == place


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "none", "fields": []},
        {"type": "record", "name": "nulls", "fields": [{"name": "a", "type": "null"}]},
        {"type": "array", "items": "null"},
    ],
    ids=["null", "no fields", "only nulls", "within"],
)
def test_an_array_of_what_takes_no_bytes_is_refused(items: Any) -> None:
    """Three bytes would announce 2^62 of them."""
    array = {"type": "array", "items": items}
    with pytest.raises(SchemaDiffers, match="expected arrays of what takes bytes"):
        AvroForm.of_data(
            {"type": "record", "name": "data", "fields": [{"name": "a", "type": array}]}
        )


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(SchemaDiffers, match="expected JSON"):
        AvroForm.of("{")
    with pytest.raises(SchemaDiffers, match="expected JSON"):
        AvroForm.of(b"\xff\xfe")
