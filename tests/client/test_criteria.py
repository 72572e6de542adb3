"""Criteria as values. Refusals: test_arguments.py; what they match: conformance/test_criteria.py."""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from tailrace import Criteria
from tailrace.criteria import ContainerType, Operation, canonical
from tailrace.criteria import parameter_text as condition_text
from tailrace.errors import InvalidRequest
from tailrace.sql.answer import parameter_text as sql_text


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
    with pytest.raises(ValueError, match="a number may have at most 1,000 digits"):
        sql_text(number)
    with pytest.raises(InvalidRequest, match="a number may have at most 1,000 digits"):
        condition_text(number)
    with pytest.raises(InvalidRequest, match="a number may have at most 1,000 digits"):
        Criteria(entity_type=("a",), where={"column": "x", "gt": number})
    assert sql_text(Decimal("1e999")) == f"1{'0' * 999}"


def test_a_parameter_of_sql_is_a_value_of_json_or_refused_with_what_to_do() -> None:
    uuid = UUID(int=1)
    assert sql_text([uuid, 1.5, None]) == f'["{uuid}",1.5,null]'
    for number in (float("nan"), Decimal("Infinity"), Decimal("NaN")):
        with pytest.raises(ValueError, match=r"give it as text, and cast it .* \$name::DOUBLE"):
            sql_text(number)
    for value in (b"a", timedelta(1), {"a": 1}, {1}):
        with pytest.raises(TypeError, match="is not a type of a parameter: give a number, a text"):
            sql_text(value)


class Colour(Enum):
    RED = 1


def test_a_parameter_of_a_condition_is_a_value_that_conditions_have_or_refused() -> None:
    """Nothing else becomes the text that Python shows of it."""
    uuid = UUID(int=1)
    texts: list[tuple[object, str]] = [
        (True, "true"),
        (1.5, "1.5"),
        (date(2024, 2, 29), "2024-02-29"),
        (uuid, str(uuid)),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (Decimal("sNaN"), "NaN"),
    ]
    for value, text in texts:
        assert condition_text(value) == text
        Criteria(entity_type=("a",), where={"column": "x", "eq": value})
    for value in (b"a", bytearray(b"a"), timedelta(1), {"a": 1}, [1], (1,), {1}, 1j, Colour.RED):
        with pytest.raises(
            InvalidRequest, match="is not a type of a parameter: give a number, a text"
        ):
            condition_text(value)
        with pytest.raises(InvalidRequest, match="where"):
            Criteria(entity_type=("a",), where={"column": "x", "eq": value})
    for half in ("\ud800", ["\ud800"]):
        with pytest.raises(ValueError, match="surrogates"):
            sql_text(half)


@pytest.mark.parametrize("key", [1, None, b"1", UUID(int=1)])
def test_a_key_that_is_no_text_is_named_by_its_type(key: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"texts; {type(key).__name__} is in it"):
        Criteria(primary_key=("1", key))
