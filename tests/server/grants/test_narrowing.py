"""Effective criteria are what is asked for and granted, before anything of the log is matched."""

from __future__ import annotations

from tailrace.criteria import Area, Content, Criteria, canonical
from tailrace.schema import Column, Schema
from tailrace_server.grants.grant import Action, Allowance, Columns, Grant
from tailrace_server.grants.narrowing import narrowed
from tailrace_server.grants.schemas import granted_schema

ORDERS = Allowance(frozenset({"orders"}))
KEYED = Allowance(frozenset({"orders"}), frozenset({"7", "8"}))
ITEMS = Allowance(frozenset({"items"}))


def effective(asked: Criteria, *allowances: Allowance) -> set[Criteria]:
    found = narrowed(canonical([asked]), Content.HEADER, Grant(allowances), Action.SUBSCRIBE)
    return {each for each in found.criteria if each.area is Area.DATA or each.area is None}


def test_types_of_one_allowance_are_not_those_of_another() -> None:
    """Both are granted, each by one of them: neither comes by the other's keys."""
    found = effective(Criteria(entity_type=("items", "orders")), KEYED, ITEMS)
    assert found == {
        Criteria(entity_type=("items",)),
        Criteria(entity_type=("orders",), primary_key=("7", "8")),
    }


def test_keys_that_are_asked_for_are_those_of_each_allowance() -> None:
    other = Allowance(frozenset({"items"}), frozenset({"9"}))
    found = effective(Criteria(primary_key=("7", "9")), KEYED, other)
    assert found == {
        Criteria(entity_type=("orders",), primary_key=("7",)),
        Criteria(entity_type=("items",), primary_key=("9",)),
    }


def test_a_schema_has_the_columns_that_are_granted() -> None:
    columns = (Column("id"), Column("margin"))
    schema = Schema(1, {"orders": columns, "items": columns})
    hidden = Allowance(frozenset({"orders"}), columns=Columns(frozenset({"margin"})))
    found = granted_schema(schema, (hidden,)).entity_types
    assert {name: [each.name for each in listed] for name, listed in found.items()} == {
        "orders": ["id"]
    }
