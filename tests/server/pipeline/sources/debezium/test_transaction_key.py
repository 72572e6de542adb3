"""Keys of transaction ids. Which ids are cut: test_source.py beside this."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.pipeline.sources.debezium.names import transaction_key

numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers, numbers)
@settings(max_examples=20)
def test_rows_of_a_transaction_share_its_key_whatever_their_places(
    transaction: int, one: int, other: int
) -> None:
    keys = {transaction_key(f"{transaction}:{place}") for place in (one, other)}
    assert keys == {str(transaction)}


@pytest.mark.parametrize(
    "transaction_id", ["", "7:", ":7", "7:8:9", "7:8\n", "-7:8", " 7:8", "7:8 ", "0x7:8"]
)
def test_what_is_not_wholly_of_the_form_is_taken_as_it_is(transaction_id: str) -> None:
    assert transaction_key(transaction_id) == transaction_id
