"""Columns of entity types, told from images; listings of a source are in test_schema_changes.py."""

from __future__ import annotations

from tailrace.schema import Column, Origin, Schema
from tailrace_server.pipeline.catalog.columns import (
    FIXED,
    ColumnInference,
    Sighting,
    evolve,
    known_columns,
)
from tailrace_server.pipeline.input.column_listing import listing


def test_columns_are_numbered_as_they_are_first_seen() -> None:
    columns = ColumnInference({"t": {"id": FIXED}})
    columns.observe(0, "t", b'{"id":1}')
    columns.observe(1, "t", b'{"b":1,"id":1,"a":2}', ["gone"])
    columns.observe(2, "u", None)
    columns.observe(3, "u", b'{"x":1}')
    assert columns.sightings == [
        Sighting(1, "t", "b", "BIGINT"),
        Sighting(1, "t", "a", "BIGINT"),
        Sighting(1, "t", "gone"),
        Sighting(2, "u", None),
        Sighting(3, "u", "x", "BIGINT"),
    ]


def test_a_value_that_its_columns_type_does_not_hold_is_reported() -> None:
    columns = ColumnInference({"t": {"id": FIXED, "n": "BIGINT"}})
    for version, value in enumerate((b"1", b"null", b"1.5", b"2", b"-1e3", b'"x"', b"[]")):
        columns.observe(version, "t", b'{"id":%b,"n":%b}' % (value, value))
    assert columns.sightings == [
        Sighting(2, "t", "n", "DECIMAL"),
        Sighting(5, "t", "n", "VARCHAR"),
    ]
    (_, decimal), (_, json) = evolve(
        Schema(1, {"t": (Column("id"), Column("n", sql_type="BIGINT"))}), columns.sightings
    )
    assert [s.entity_types["t"][1].sql_type for s in (decimal, json)] == ["DECIMAL", "JSON"]


def test_schemas_grow_with_the_transaction_that_brings_a_column() -> None:
    start = Schema(3, {"t": (Column("id"),)})
    seen = [
        Sighting(1, "t", "b"),
        Sighting(1, "u", None),
        Sighting(4, "t", "b"),
        Sighting(4, "t", "c"),
    ]
    (first, one), (second, two) = evolve(start, seen)
    assert (first, one.id, known_columns(one)) == (1, 4, {"t": {"id": None, "b": None}, "u": {}})
    assert (second, two.id, known_columns(two)) == (
        4,
        5,
        {"t": {"id": None, "b": None, "c": None}, "u": {}},
    )
    assert evolve(two, seen) == []


def test_dropped_columns_and_untouched_types_are_reported_again() -> None:
    schema = Schema(1, {"t": (Column("id"), Column("gone", dropped=True)), "u": (Column("id"),)})
    assert known_columns(schema, {"u"}) == {"t": {"id": None}}


def test_a_listing_is_reported_once_as_long_as_it_does_not_change() -> None:
    columns = ColumnInference({})
    for version, text in enumerate(("a", "a", "b", "a")):
        columns.announce(version, "t", text)
    assert [(s.version, s.columns) for s in columns.sightings] == [(0, "a"), (2, "b"), (3, "a")]


def test_each_listing_begins_at_its_version_and_a_late_one_drops_nothing() -> None:
    def text(*columns: tuple[str, str]) -> str:
        return listing([(*each, "json", False) for each in columns], ("id",), Origin.DEBEZIUM)

    old, new = text(("id", "INTEGER"), ("a", "DATE")), text(("id", "VARCHAR"))
    schemas = evolve(
        Schema(0, {}),
        [
            Sighting(1, "t", None, None, old),
            Sighting(3, "t", None, None, new),
            Sighting(4, "t", None, None, old, late=True),
            Sighting(5, "t", None, None, new),
        ],
    )
    told = [(v, [(c.sql_type, c.dropped) for c in s.entity_types["t"]]) for v, s in schemas]
    assert told == [
        (1, [("INTEGER", False), ("DATE", False)]),
        (3, [("VARCHAR", False), ("DATE", True)]),
        (4, [("INTEGER", False), ("DATE", True)]),
        (5, [("VARCHAR", False), ("DATE", True)]),
    ]
