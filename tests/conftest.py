"""What holds for every test: fixtures of tests/support, and contract numbers taken from names.

`pytest -m contract` runs the proofs of docs/guarantees.md alone: a test whose name reads
``test_contract_13_…`` is marked ``contract(13)``; one that proves several lines names them all,
``test_contract_05_14_…``.
"""

from __future__ import annotations

import pytest

from tests.support.contract import contract_numbers

pytest_plugins = ["tests.support.fix_leftovers", "tests.support.fix_log"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the proofs of contract lines by their names."""
    for number in contract_numbers(item.name):
        item.add_marker(pytest.mark.contract(number))
