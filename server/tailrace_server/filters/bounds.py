"""How large a condition may be, whatever form it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.filters.errors import ConditionRefused, refused

if TYPE_CHECKING:
    from tailrace_server.filters.tree import Place

_BYTES_MAX: Final = 64 << 10
"""Bytes of a filter's text, or of its message."""
_TERMS_MAX: Final = 10_000
"""Columns and values that a filter names."""
_DEPTH_MAX: Final = 64
"""Conditions within conditions."""


class TermCount:
    """Counts the columns and values of one condition."""

    def __init__(self) -> None:
        """Begin with none."""
        self._terms = 0

    def count(self, place: Place) -> None:
        """Count one.

        Raises:
            ConditionRefused: It is one too many.
        """
        self._terms += 1
        if self._terms > _TERMS_MAX:
            raise refused(place, f"a filter has {_TERMS_MAX} columns and values at most")


def refuse_long(size: int) -> None:
    """Refuse a condition of so many bytes, if they are too many.

    Raises:
        ConditionRefused: They are.
    """
    if size > _BYTES_MAX:
        raise ConditionRefused(f"where: the condition is longer than {_BYTES_MAX} bytes")


def refuse_deep(depth: int) -> None:
    """Refuse a condition that lies within so many others, if they are too many.

    Raises:
        ConditionRefused: They are.
    """
    if depth > _DEPTH_MAX:
        raise too_deep()


def too_deep() -> ConditionRefused:
    """Return that conditions lie too deep within others."""
    return ConditionRefused(f"where: conditions lie within others {_DEPTH_MAX} deep at most")
