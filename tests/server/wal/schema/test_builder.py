"""A schema built column by column.

Whole feeds are tested in `pipeline/test_schema_changes.py`, programs in `wal/test_transaction_writer.py`.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin, Schema
from tailrace_server.wal.schema.builder import Announced, SchemaBuilder
from tailrace_server.wal.schema.mapping import SchemaMapping

EMPTY = Schema(entity_types={})


def columns(builder: SchemaBuilder, entity_type: str = "product") -> list[tuple[str, str | None]]:
    return [(each.name, each.sql_type) for each in builder.schema().entity_types[entity_type]]


def column(builder: SchemaBuilder, name: str, entity_type: str = "product") -> Column:
    (found,) = (each for each in builder.schema().entity_types[entity_type] if each.name == name)
    return found


def test_columns_keep_the_order_and_the_ids_in_which_they_were_seen() -> None:
    builder = SchemaBuilder(EMPTY)
    builder.see("product", [("id", "BIGINT"), ("name", None)])
    builder.see("order", [("id", "BIGINT")])
    builder.see("product", [("price", "DECIMAL"), ("name", "VARCHAR")])
    assert columns(builder) == [("id", "BIGINT"), ("name", "VARCHAR"), ("price", "DECIMAL")]
    ids = [each.id for each in builder.schema().entity_types["product"]]
    assert (ids, column(builder, "id", "order").id) == ([1, 2, 4], 3)
    assert builder.in_order("product", ("price", "unknown", "id")) == ("id", "price", "unknown")


def test_ids_go_on_behind_those_of_the_schema_before() -> None:
    first = SchemaBuilder(EMPTY)
    first.see("product", [("id", "BIGINT"), ("name", "VARCHAR")])
    second = SchemaBuilder(first.schema())
    second.see("product", [("price", "DECIMAL")])
    assert [each.id for each in second.schema().entity_types["product"]] == [1, 2, 3]


def test_the_schema_is_the_same_object_until_something_is_new() -> None:
    builder = SchemaBuilder(EMPTY)
    builder.see("product", [("id", "BIGINT")])
    before = builder.schema()
    builder.see("product", [("id", "BIGINT"), ("id", None)])
    assert builder.schema() is before
    builder.see("product", [("id", "VARCHAR")])
    assert builder.schema() is not before
    assert before.entity_types["product"][0].sql_type == "BIGINT"


@pytest.mark.parametrize("order", list(permutations(["BIGINT", "DECIMAL", None])))
def test_an_inferred_type_is_widened_whatever_comes_first(order: tuple[str | None, ...]) -> None:
    builder = SchemaBuilder(EMPTY)
    for sql_type in order:
        builder.see("product", [("n", sql_type)])
    assert columns(builder) == [("n", "DECIMAL")]


def test_an_announced_type_is_not_widened_by_values_and_wins_over_an_inferred_one() -> None:
    builder = SchemaBuilder(EMPTY)
    builder.see("product", [("id", "BIGINT"), ("name", "VARCHAR")])
    builder.announce("product", Announced((("id", "INTEGER", "json", False),), key=("id",)))
    builder.see("product", [("id", "VARCHAR")])
    found = column(builder, "id")
    assert (found.sql_type, found.origin, found.key, found.nullable) == (
        "INTEGER",
        Origin.DEBEZIUM,
        1,
        False,
    )
    assert not column(builder, "name").dropped, "only what was announced before can be dropped"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("by_value", [False, True])
def test_a_dropped_column_that_is_added_again_is_another_one_unless_declared_the_same(
    by_value: bool, same: bool, restarted: bool
) -> None:
    """However often it comes and goes; the dropped ones keep their places and ids."""
    text = (
        f"[entity_types.product.columns]\nold = {{ same_when_added_again = {str(same).lower()} }}"
    )
    mapping = SchemaMapping.parse(text)
    builder = SchemaBuilder(EMPTY, mapping)
    both = (("id", "INTEGER", "json", False), ("old", "VARCHAR", "json", True))
    builder.announce("product", Announced(both))
    for _ in range(3):
        builder.announce("product", Announced(both[:1]))
        if restarted:
            builder = SchemaBuilder(builder.schema(), mapping)
        if by_value:
            builder.see("product", [("old", "VARCHAR")])
        builder.announce("product", Announced(both))
        builder.announce("product", Announced(both))
    found = builder.schema().entity_types["product"]
    named = [(each.name, each.id, each.dropped) for each in found]
    dropped = [] if same else [("old", id, True) for id in (2, 3, 4)]
    assert named == [("id", 1, False), *dropped, ("old", 2 + len(dropped), False)]


def test_an_announcement_of_what_reads_alike_changes_nothing_and_any_other_holds_from_now_on() -> (
    None
):
    builder = SchemaBuilder(EMPTY)
    seen = []
    for stated in (
        ("INTEGER", "json"),
        ("BIGINT", "json"),
        ("SMALLINT", "json"),
        ("VARCHAR", "json"),
        ("BIGINT", "debezium.MicroTime"),
        ("BIGINT", "debezium.Time"),
        (None, "json"),
    ):
        builder.announce("product", Announced((("n", *stated, True),)))
        found = column(builder, "n")
        seen.append((found.sql_type, found.encoding))
    assert seen == [
        ("INTEGER", "json"),
        ("BIGINT", "json"),
        ("BIGINT", "json"),
        ("VARCHAR", "json"),
        ("BIGINT", "debezium.MicroTime"),
        ("BIGINT", "debezium.Time"),
        (None, "json"),
    ]
    assert found.id == 1


def test_late_columns_say_how_values_are_written_and_neither_drop_nor_restore() -> None:
    builder = SchemaBuilder(EMPTY)
    old = (("a", "INTEGER", "json", False), ("gone", "INTEGER", "json", False))
    new = (("a", "VARCHAR", "json", False), ("b", "INTEGER", "json", False))
    builder.announce("product", Announced(old))
    builder.announce("product", Announced(new))
    builder.announce("product", Announced(old), late=True)
    builder.see("product", [("gone", "BIGINT")])
    found = builder.schema().entity_types["product"]
    assert [(each.name, each.sql_type, each.dropped) for each in found] == [
        ("a", "INTEGER", False),
        ("gone", "INTEGER", True),
        ("b", "INTEGER", False),
    ]


MAPPING = SchemaMapping.parse(
    """
    [entity_types.product]
    renamed_from = "item"
    key = ["id"]
    columns.price = { type = "DECIMAL(6,2)", renamed_from = "cost" }
    columns.legacy = { dropped = true }
    """
)


def test_a_mapping_renames_entity_type_and_column_which_keep_their_place_and_id() -> None:
    first = SchemaBuilder(EMPTY)
    first.see("item", [("id", "BIGINT"), ("cost", "DECIMAL"), ("legacy", None)])
    builder = SchemaBuilder(first.schema(), MAPPING)
    builder.see("product", [("id", "BIGINT")])
    assert list(builder.schema().entity_types) == ["product"]
    assert columns(builder)[1] == ("cost", "DECIMAL"), "renamed when its new name is seen"
    builder.see("product", [("price", "BIGINT"), ("legacy", "VARCHAR")])
    price = column(builder, "price")
    assert (price.id, price.sql_type, price.origin) == (2, "DECIMAL(6,2)", Origin.DECLARED)
    assert column(builder, "id").key == 1
    assert column(builder, "legacy").dropped, "values of it do not restore it"


def test_a_declared_type_is_not_changed_by_values_or_by_the_source() -> None:
    builder = SchemaBuilder(EMPTY, MAPPING)
    builder.see("product", [("price", "VARCHAR")])
    builder.announce("product", Announced((("price", "DOUBLE", "json", False),)))
    assert columns(builder) == [("price", "DECIMAL(6,2)")]


@pytest.mark.parametrize("stated", [None, ("VARCHAR", "json"), ("DECIMAL", "decimal.bytes(4)")])
def test_a_declaration_takes_the_place_of_any_other_type(stated: tuple[str, str] | None) -> None:
    first = SchemaBuilder(EMPTY)
    first.see("product", [("price", "VARCHAR")])
    if stated is not None:
        first.announce("product", Announced((("price", *stated, False),)))
    builder = SchemaBuilder(first.schema(), MAPPING)
    builder.see("product")
    found = column(builder, "price")
    assert (found.sql_type, found.encoding, found.origin) == (
        "DECIMAL(6,2)",
        "json",
        Origin.DECLARED,
    )


def test_a_type_that_is_declared_no_more_gives_way_to_what_the_source_announces() -> None:
    first = SchemaBuilder(EMPTY, MAPPING)
    first.see("product", [("price", "DECIMAL")])
    builder = SchemaBuilder(first.schema())
    builder.announce("product", Announced((("price", "DECIMAL(8,2)", "json", True),)))
    assert column(builder, "price").sql_type == "DECIMAL(8,2)"
    builder.announce("product", Announced((("price", "DOUBLE", "json", True),)))
    found = column(builder, "price")
    assert (found.sql_type, found.origin) == ("DOUBLE", Origin.DEBEZIUM)


def test_a_mapping_that_names_what_is_not_there_is_refused_by_name() -> None:
    builder = SchemaBuilder(EMPTY, MAPPING)
    builder.see("product", [("price", "DECIMAL")])
    with pytest.raises(InvalidRequest, match="product has no column id, it has price"):
        builder.check_declared("product")
    builder.see("product", [("id", "BIGINT")])
    builder.check_declared("product")
    builder.check_declared("order")
