"""The text that carries what a source lists as columns."""

from __future__ import annotations

from tailrace.schema import Origin
from tailrace_server.pipeline.input.column_listing import announced, listing


def test_a_listing_is_read_as_it_was_written() -> None:
    columns = [("id", "INTEGER", "json", False), ("made", None, "base64", True)]
    found = announced(listing(columns, ("id",), Origin.TABLE))
    assert (list(found.columns), found.key, found.origin) == (columns, ("id",), Origin.TABLE)


def test_a_text_without_an_origin_comes_from_a_schema_block() -> None:
    assert announced('[[["id","INTEGER","json",false]],["id"]]').origin is Origin.DEBEZIUM
