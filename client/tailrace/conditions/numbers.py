"""The size of numbers that requests may have: one bound for every transport, parameter and condition.

``1e200000000`` is eleven bytes, and 200 million digits once it is written out.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Final

_DIGITS_MAX: Final = 1_000
"""Digits of a number, with the zeros of its exponent."""
_ABOVE: Final = 10**_DIGITS_MAX
_TOO_MANY: Final = f"a number has {_DIGITS_MAX:,} digits at most, zeros of its exponent included"


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
        raise ValueError(_TOO_MANY)


def decimal_of(text: str) -> Decimal:
    """Return a JSON number of any length as a Decimal.

    Raises:
        ValueError: Its exponent has more than 18 digits.
    """
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(_TOO_MANY) from None


def number_of(text: str) -> int | Decimal:
    """Return the number of a JSON text; one with a point or an exponent is a Decimal.

    Raises:
        ValueError: It has more digits.
    """
    is_whole = text.removeprefix("-").isdigit()
    if is_whole and len(text) > 1 + _DIGITS_MAX:
        raise ValueError(_TOO_MANY)
    number = int(text) if is_whole else decimal_of(text)
    refuse_large(number)
    return number


def number_text(number: float | Decimal) -> str:
    """Return the text of a number as a condition reads it.

    Raises:
        ValueError: It has more digits.
    """
    if isinstance(number, int | Decimal):
        refuse_large(number)
    if isinstance(number, Decimal) and number.is_nan():
        return "NaN"
    if math.isfinite(number):
        return str(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
