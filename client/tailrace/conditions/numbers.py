"""The size of numbers that requests may have: one bound for every transport, parameter and condition.

``1e200000000`` is eleven bytes, and 200 million digits once it is written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from decimal import Decimal

_DIGITS_MAX: Final = 1_000
"""Digits of a number, with the zeros of its exponent."""
_ABOVE: Final = 10**_DIGITS_MAX


def refuse_large(number: Decimal | int) -> None:
    """Refuse a number that is long to write out, without writing it out.

    Raises:
        ValueError: It has more digits.
    """
    if isinstance(number, int):
        fits = -_ABOVE < number < _ABOVE
    else:
        fits = not number.is_finite() or (
            len(number.as_tuple().digits) <= _DIGITS_MAX and abs(number.adjusted()) < _DIGITS_MAX
        )
    if not fits:
        raise ValueError(
            f"a number has {_DIGITS_MAX:,} digits at most, zeros of its exponent included"
        )
