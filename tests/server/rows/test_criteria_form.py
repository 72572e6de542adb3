"""Criteria as people read them."""

from __future__ import annotations

import pytest

from tailrace.criteria import Area, ContainerType, Criteria, Operation
from tailrace_server.rows.criteria_form import in_words

KEYS = tuple(str(number) for number in range(100_000))


@pytest.mark.parametrize(
    ("criteria", "words"),
    [
        ((), "everything"),
        ((Criteria(),), "everything"),
        ((Criteria(entity_type=("order", "product")),), "order or product"),
        (
            (Criteria(area=Area.DATA, operation=(Operation.UPSERT,), primary_key=("17",)),),
            "area DATA, UPSERT, key 17",
        ),
        (
            (Criteria(container_type=(ContainerType.PRICE,), container_name=("net",)),),
            "PRICE, column net",
        ),
        ((Criteria(primary_key=KEYS),), "key 0 or 1 or 10 or 99,997 more"),
        (
            tuple(Criteria(entity_type=(name,)) for name in "abcde"),
            "a; or b; or c; or 2 more",
        ),
        ((Criteria(entity_type=("x" * 500,)),), "x" * 39 + "…"),
    ],
)
def test_criteria_are_told_shortly(criteria: tuple[Criteria, ...], words: str) -> None:
    assert in_words(criteria) == words
