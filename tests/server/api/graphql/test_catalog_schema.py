"""A schema as a value: what a later one shares with it, and what is left of one that nobody uses."""

from __future__ import annotations

import gc

from tailrace.schema import Column, Origin, Schema
from tailrace_server.api.graphql.schema import build
from tests.support.living import without_collector

ENTITY_TYPES = 20
COLUMNS = 10


def log_schema(more: str) -> Schema:
    """Return a schema of so many entity types, with a column more in the first."""
    names = {
        f"type_{number}": [f"c{place}" for place in range(COLUMNS)]
        for number in range(ENTITY_TYPES)
    }
    names["type_0"].append(more)
    return Schema(
        entity_types={
            name: tuple(
                Column(column, origin=Origin.DECLARED, id=(number << 20) + place)
                for place, column in enumerate(columns, 1)
            )
            for number, (name, columns) in enumerate(names.items())
        }
    )


def test_types_of_rows_that_have_not_changed_are_shared() -> None:
    before = build(log_schema("x"))
    after = build(log_schema("y"), (), before)
    differ = {name for name in after.types if after.types[name] is not before.types[name]}
    assert differ == {"Type0Change"}
    assert "y" in after.rows["Type0Change"].fields
    assert "y" not in before.rows["Type0Change"].fields


def test_a_schema_that_nobody_uses_is_taken_apart_and_its_successor_is_whole() -> None:
    """Without the collector: of tens of thousands of objects next to none is left."""
    first = build(log_schema("x"))
    with without_collector("graphql"):
        before = len(gc.get_objects())
        second = build(log_schema("y"), (), first)
        made = len(gc.get_objects()) - before
        del first
        third = build(log_schema("z"), (), second)
        del second
        left = len(gc.get_objects()) - before
    assert left < made / 5
    assert "z" in third.strawberry.as_str()
