"""Criteria as values. Refusals: test_arguments.py; what they match: conformance/test_criteria.py."""

from __future__ import annotations

import pytest

from tailrace import Criteria
from tailrace.criteria import ContainerType, Operation, canonical


def test_two_spellings_of_one_criteria_are_equal() -> None:
    one = Criteria(
        entity_type=("b", "a", "b"),
        operation=(Operation.EXPIRE, Operation.UPSERT, Operation.UPSERT),
    )
    assert one == Criteria(entity_type=("a", "b"), operation=(Operation.UPSERT, Operation.EXPIRE))


def test_the_order_and_number_of_alternatives_make_no_other_publisher() -> None:
    a, b = Criteria(entity_type=("a",)), Criteria(entity_type=("b",))
    assert canonical([a, b]) == canonical([b, a, b])
    assert canonical([]) == canonical([Criteria()]) == (Criteria(),)


@pytest.mark.parametrize(
    ("criteria", "entities", "columns"),
    [
        (Criteria(), True, False),
        (Criteria(container_type=(ContainerType.CATALOG,)), True, False),
        (Criteria(container_name=("price",)), False, True),
        (Criteria(container_type=(ContainerType.PRICE,)), False, True),
        (Criteria(container_type=(ContainerType.PRICE, ContainerType.ENTITY)), True, True),
    ],
)
def test_a_criteria_asks_for_rows_for_columns_or_for_both(
    criteria: Criteria, entities: bool, columns: bool
) -> None:
    assert (criteria.wants_entities, criteria.wants_columns) == (entities, columns)
