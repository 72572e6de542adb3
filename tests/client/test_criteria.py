"""Criteria as values. Refusals: test_arguments.py; what they match: conformance/test_criteria.py."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tailrace import Criteria
from tailrace.criteria import ContainerType, Operation, canonical
from tailrace.criteria import parameter_text as condition_text
from tailrace.errors import InvalidRequest
from tailrace.sql.values import parameter_text as sql_text


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


@pytest.mark.parametrize(
    "number",
    [Decimal("1e200000000"), Decimal("-1e-1001"), 10**1_000, 10**5_000],
    ids=["exponent", "small", "digits", "many digits"],
)
def test_a_number_that_is_long_to_write_out_is_no_parameter(number: Decimal | int) -> None:
    with pytest.raises(ValueError, match="a number has 1,000 digits at most"):
        sql_text(number)
    with pytest.raises(InvalidRequest, match="a number has 1,000 digits at most"):
        condition_text(number)
    with pytest.raises(InvalidRequest, match="a number has 1,000 digits at most"):
        Criteria(entity_type=("a",), where={"column": "x", "gt": number})
    assert sql_text(Decimal("1e999")) == f"1{'0' * 999}"
