"""What holds for every test: fixtures of tests/support, and contract numbers taken from names.

`pytest -m contract` runs the proofs of docs/guarantees.md alone: a test whose name reads
``test_contract_13_…`` is marked ``contract(13)``; one that proves several lines names them all,
``test_contract_05_14_…``.

Generated tests have no time limit: how long an example takes says more about the machine than about us.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.contract import contract_numbers

settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

pytest_plugins = ["tests.support.fix_leftovers", "tests.support.fix_log"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the proofs of contract lines by their names."""
    for number in contract_numbers(item.name):
        item.add_marker(pytest.mark.contract(number))
