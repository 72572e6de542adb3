"""The link between a test's name and the lines of docs/guarantees.md that it proves."""

from __future__ import annotations

import re

_NAME = re.compile(r"test_contract_((?:\d{2}_)+)")


def contract_numbers(name: str) -> tuple[int, ...]:
    """Return the contract lines that a test of this name proves, possibly none."""
    found = _NAME.match(name)
    return () if found is None else tuple(int(part) for part in found[1].split("_")[:-1])
