"""Schema blocks as listings of columns; test_schema_changes.py follows them into the log's schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.schema import Origin
from tailrace_server.pipeline.input.column_listing import announced
from tailrace_server.pipeline.sources.debezium.column_types import Announcements


def block(*fields: dict[str, Any], image: str = "after") -> bytes:
    columns = {"field": image, "type": "struct", "fields": list(fields)}
    return json.dumps({"type": "struct", "fields": [columns]}).encode()


def listed(field: dict[str, Any]) -> tuple[str, str | None, str, bool]:
    text = Announcements().of("t", block({"field": "c", **field}), (), None)
    assert text is not None
    [column] = announced(text).columns
    return column


@pytest.mark.parametrize(
    ("field", "sql_type", "encoding"),
    [
        ({"type": "int32"}, "INTEGER", "json"),
        ({"type": "bytes"}, "VARBINARY", "base64"),
        ({"type": "struct"}, "JSON", "json"),
        ({"type": "int32", "name": "io.debezium.time.Date"}, "DATE", "debezium.Date"),
        (
            {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
            "TIMESTAMP",
            "connect.Timestamp",
        ),
        ({"type": "string", "name": "com.example.Own"}, "VARCHAR", "json"),
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
            "DECIMAL(10,2)",
            "decimal.bytes(2)",
        ),
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "-2", "connect.decimal.precision": "5"},
            },
            "DECIMAL",
            "decimal.bytes(-2)",
        ),
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "two"},
            },
            None,
            "json",
        ),
    ],
)
def test_types_are_those_of_sql(field: dict[str, Any], sql_type: str | None, encoding: str) -> None:
    assert listed(field) == ("c", sql_type, encoding, False)
    assert listed({**field, "optional": True})[3] is True


def test_a_listing_is_said_once_in_a_transaction() -> None:
    announcements = Announcements()
    first, second = block({"field": "a", "type": "int32"}), block({"field": "b", "type": "int32"})
    said = [
        announcements.of(entity_type, text, ("id",), transaction) is not None
        for entity_type, text, transaction in [
            ("t", first, "7"),
            ("t", first, "7"),
            ("u", first, "7"),
            ("t", second, "7"),
            ("t", second, "8"),
            ("t", second, None),
        ]
    ]
    assert said == [True, False, True, True, True, True]


def test_the_key_and_the_origin_are_listed() -> None:
    text = Announcements().of("t", block({"field": "id", "type": "int32"}), ("id",), None)
    found = announced(text or "")
    assert (found.key, found.origin) == (("id",), Origin.DEBEZIUM)


@pytest.mark.parametrize("text", [b"null", b"17", b'{"type":"struct","fields":[]}', b"{"])
def test_what_lists_no_columns_says_nothing(text: bytes) -> None:
    assert Announcements().of("t", text, (), None) is None


def test_columns_of_the_image_before_will_do() -> None:
    text = Announcements().of("t", block({"field": "c", "type": "int64"}, image="before"), (), None)
    assert announced(text or "").columns == (("c", "BIGINT", "json", False),)
