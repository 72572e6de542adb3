"""Named places where a test may kill, stop or fail a process.

Nothing happens at a place unless a test has armed it (``tests/support/failpoints.py``). Otherwise
``reach`` costs a look at an empty dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

armed: Final[dict[str, Callable[[], None]]] = {}
"""The action of each armed place, by the name of the place. Only tests write it."""


def reach(name: str) -> None:
    """Run the action of a place if the place is armed."""
    if armed and (act := armed.get(name)) is not None:
        act()
