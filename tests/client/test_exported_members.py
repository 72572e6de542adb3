"""The public names are those that the package says, and no others."""

from __future__ import annotations

from types import ModuleType

import tailrace


def test_all_is_sorted_and_complete() -> None:
    exposed = {
        name
        for name, value in vars(tailrace).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert set(tailrace.__all__) == exposed
    assert len(set(tailrace.__all__)) == len(tailrace.__all__)


def test_every_public_class_says_what_it_is() -> None:
    for name in tailrace.__all__:
        value = getattr(tailrace, name)
        if isinstance(value, type):
            assert value.__doc__, name
