"""A field's scope narrows criteria. On a real server: transports/test_operations.py."""

from __future__ import annotations

import pytest

from tailrace.criteria import Area, Content, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.api.graphql.arguments import Scope, plain, wish_of
from tailrace_server.api.graphql.types import CriteriaInput

PRODUCTS = Scope(Area.DATA, "product")


def test_criteria_are_put_inside_the_scope() -> None:
    assert PRODUCTS.narrowed(None) == [{"area": "DATA", "entityType": ["product"]}]
    assert Scope().narrowed(None) == []
    given = [CriteriaInput(operation=[Operation.REMOVE])]
    (narrowed,) = PRODUCTS.narrowed(given)
    assert narrowed == {"operation": ["REMOVE"], "area": "DATA", "entityType": ["product"]}


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        (CriteriaInput(area=Area.SCHEMA), r"criteria\[1\]\.area: .* only changes of area DATA"),
        (
            CriteriaInput(entity_type=["order"]),
            r"criteria\[1\]\.entityType: .* only changes of 'product'",
        ),
    ],
)
def test_criteria_outside_the_scope_are_refused_by_their_place(
    criteria: CriteriaInput, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        PRODUCTS.narrowed([CriteriaInput(), criteria])


def test_arguments_become_what_the_engine_is_asked() -> None:
    arguments = {"criteria": None, "sinceVersion": 3, "signals": True}
    wish = wish_of(arguments, PRODUCTS, frozenset({"after"}), criteria_max=10)
    (criteria,) = wish.criteria
    assert (criteria.area, criteria.entity_type) == (Area.DATA, ("product",))
    assert wish.content == Content.AFTER
    assert wish.start is not None


def test_null_is_left_out_and_enums_are_names() -> None:
    given = CriteriaInput(area=Area.DATA, primary_key=["1"])
    assert plain([given, {"a": None, "b": Operation.UPSERT}]) == [
        {"area": "DATA", "primaryKey": ["1"]},
        {"b": Operation.UPSERT.name},
    ]
