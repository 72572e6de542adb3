"""A schema built column by column.

Whole feeds are tested in `pipeline/test_schema_changes.py`, programs in `wal/test_transaction_writer.py`.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin, Schema
from tailrace_server.wal.schema.builder import Announced, SchemaBuilder, SchemaConflict
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


def test_a_column_that_is_announced_no_more_is_dropped_until_it_comes_again() -> None:
    builder = SchemaBuilder(EMPTY)
    both = (("id", "INTEGER", "json", False), ("old", "VARCHAR", "json", True))
    builder.announce("product", Announced(both))
    builder.announce("product", Announced(both[:1]))
    assert column(builder, "old").dropped
    builder.see("product", [("old", "VARCHAR")])
    assert not column(builder, "old").dropped


def test_an_announcement_may_widen_and_not_contradict() -> None:
    builder = SchemaBuilder(EMPTY)
    for sql_type in ("INTEGER", "BIGINT", "SMALLINT"):
        builder.announce("product", Announced((("n", sql_type, "json", True),)))
    assert columns(builder) == [("n", "BIGINT")]
    with pytest.raises(SchemaConflict) as caught:
        builder.announce("product", Announced((("n", "VARCHAR", "json", True),)))
    assert caught.value.figures() == {
        "entity_type": "product",
        "column": "n",
        "before": "BIGINT (json)",
        "after": "VARCHAR (json)",
    }


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


def test_a_declaration_that_the_column_cannot_become_is_refused() -> None:
    first = SchemaBuilder(EMPTY)
    first.see("product", [("price", "VARCHAR")])
    with pytest.raises(InvalidRequest, match=r"price: DECIMAL\(6,2\) .* cannot hold .* VARCHAR"):
        SchemaBuilder(first.schema(), MAPPING).see("product")


def test_a_mapping_that_names_what_is_not_there_is_refused_by_name() -> None:
    builder = SchemaBuilder(EMPTY, MAPPING)
    builder.see("product", [("price", "DECIMAL")])
    with pytest.raises(InvalidRequest, match="product has no column id, it has price"):
        builder.check_declared("product")
    builder.see("product", [("id", "BIGINT")])
    builder.check_declared("product")
    builder.check_declared("order")
