"""What a schema says of columns that were once called otherwise."""

from __future__ import annotations

from tailrace import Column, Schema


def test_former_names_follow_a_column_through_renames_of_it_and_of_its_entity_type() -> None:
    first = Schema(1, {"item": (Column("a", id=1), Column("b", id=2))})
    second = Schema(2, {"item": (Column("c", id=1), Column("b", id=2))})
    now = Schema(3, {"product": (Column("d", id=1), Column("b", id=2))})
    assert now.former_names("product", [first, second]) == {1: ("c", "a"), 2: ()}
    assert now.former_names("item", [first, second]) == {}


def test_a_name_that_two_columns_have_had_is_nobodys_former_name() -> None:
    first = Schema(1, {"item": (Column("a", id=1),), "other": (Column("a", id=9),)})
    now = Schema(
        2, {"item": (Column("b", id=1), Column("a", id=2)), "other": first.entity_types["other"]}
    )
    assert now.former_names("item", [first]) == {1: (), 2: ()}
    assert now.former_names("other", [first]) == {9: ()}
