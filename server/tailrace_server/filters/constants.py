"""Values in conditions, converted to borders between the values of the column that they are compared with.

A column of whole numbers cannot have the value 100.5, yet ``stock > 100.5`` is meaningful. So a value becomes a
*border*: a value of the column, the gap after a value, or a place below or above all values. Nothing is
rounded, except for REAL and DOUBLE: there the nearest value is used, as for the values of the column.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from enum import Enum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.conditions import refuse_large
from tailrace.schema import Column
from tailrace_server.filters.tree import Family
from tailrace_server.machine_code.loops.codes import Notation
from tailrace_server.typed.forms import Misfit, form_of

if TYPE_CHECKING:
    from tailrace_server.typed.forms import Form

_ENOUGH: Final = Context(prec=2_000)
"""Context whose precision is twice the digits of the longest number that ``refuse_large`` accepts."""
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Unit of time → its length in microseconds."""
WIDE: Final = pa.decimal256(76, 30)
"""Type for numbers that arrive as texts of digits; most such numbers fit it."""


class Side(Enum):
    """The place of a border relative to the values that a column can have."""

    AT = "at"
    """The border is a value of the column."""
    BEHIND = "behind"
    """The border is in the gap between a value of the column and the next greater one."""
    BELOW = "below"
    """The border is below all values of the column."""
    ABOVE = "above"
    """The border is above all values of the column."""


@dataclass(frozen=True, slots=True)
class Border:
    """A value of a condition, as a place among the values that a column can have."""

    side: Side
    scalar: pa.Scalar | None = None
    """The column's value at the border (AT) or just below it (BEHIND); None for BELOW and ABOVE."""
    number: Decimal | None = None
    """The exact value as it was written, if it is a number; None for other types, and for REAL and DOUBLE."""


class WrongValue(ValueError):
    """A value cannot be compared with a column; the message has the reason."""


def family_of(form: Form) -> Family | None:
    """Return the family of values that a column can be compared with; None for JSON and binary columns."""
    kind = form.type
    if form.is_json or form.notation is Notation.BYTES:
        return None  # for JSON, the other side of the comparison decides
    if pa.types.is_boolean(kind):
        return Family.BOOLEAN
    if pa.types.is_string(kind):
        return Family.TEXT if form.notation is Notation.TEXT else Family.NUMBER
    if pa.types.is_date(kind):
        return Family.DATE
    if pa.types.is_time(kind):
        return Family.TIME
    if pa.types.is_timestamp(kind):
        return Family.TIMESTAMP if kind.tz is None else Family.INSTANT
    return Family.NUMBER


def border_of(text: str, form: Form) -> Border:
    """Convert the text of a value to a border between the values of a column.

    Raises:
        WrongValue: The text is not a value of the column's family.
    """
    match family_of(form):
        case Family.NUMBER:
            return _number(text, form.type)
        case Family.BOOLEAN:
            if text not in ("true", "false"):
                raise WrongValue("a Boolean value is TRUE or FALSE")
            return Border(Side.AT, pa.scalar(text == "true"))
        case Family.TEXT:
            return Border(Side.AT, pa.scalar(text))
        case family:
            assert family is not None
            return _moment(text, family, form.type)


def _number(text: str, kind: pa.DataType) -> Border:
    # Python reads more than SQL as a number: digits of other scripts, and an underscore between digits.
    if "_" in text or not text.isascii():
        raise WrongValue(f"{_shown(text)} is not a number")
    if pa.types.is_floating(kind):
        return _float(text, kind)
    try:
        number = Decimal(text.strip())
    except ArithmeticError:
        raise WrongValue(f"{_shown(text)} is not a number") from None
    if not number.is_finite():
        raise WrongValue(f"{_shown(text)} is not a number that this column can have")
    try:
        refuse_large(number)
    except ValueError as error:
        raise WrongValue(str(error)) from None
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        bounds = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return _among(number, 0, bounds, kind)
    wide = WIDE if pa.types.is_string(kind) else kind
    greatest = 10**wide.precision - 1
    return _among(number, wide.scale, (-greatest, greatest), wide)


def _among(number: Decimal, scale: int, bounds: tuple[int, int], kind: pa.DataType) -> Border:
    """Return the border of a number.

    Args:
        number: The number.
        scale: Digits after the decimal point of the column's values.
        bounds: The least and the greatest value of the column, in units of the last digit.
        kind: The type of the column.
    """
    # Count in units of the column's last digit: then floor and remainder say where the number is.
    units = number.scaleb(scale, _ENOUGH)
    floor = int(units.to_integral_value(ROUND_FLOOR, _ENOUGH))
    if floor < bounds[0]:
        return Border(Side.BELOW, number=number)
    # The gap after the greatest value of the column is above all its values.
    if floor > bounds[1] or (floor == bounds[1] and units != floor):
        return Border(Side.ABOVE, number=number)
    value = floor if pa.types.is_integer(kind) else Decimal(floor).scaleb(-scale, _ENOUGH)
    side = Side.AT if units == floor else Side.BEHIND
    return Border(side, pa.scalar(value, kind), number)


def _float(text: str, kind: pa.DataType) -> Border:
    # Arrow converts the text directly to the column's type, as
    # it does for the column: a REAL must not be rounded twice.
    special = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}
    if (found := special.get(text.strip().lower())) is not None:
        return Border(Side.AT, pa.scalar(found, kind))
    try:
        Decimal(text.strip())
        scalar = pa.scalar(text.strip()).cast(kind)
    except (ArithmeticError, pa.ArrowInvalid):
        raise WrongValue(f"{_shown(text)} is not a number") from None
    if math.isinf(scalar.as_py()):
        raise WrongValue(f"{_shown(text)} exceeds the range of this column")
    return Border(Side.AT, scalar)


def _moment(text: str, family: Family, kind: pa.DataType) -> Border:
    """Return the border of a date, time or timestamp, in the unit of the column's type."""
    # A date alone means midnight.
    if family in (Family.TIMESTAMP, Family.INSTANT) and len(text) == len("2024-02-29"):
        text += "T00:00:00" if family is Family.TIMESTAMP else "T00:00:00Z"
    sql_type = {Family.INSTANT: "TIMESTAMP WITH TIME ZONE"}.get(family, family.name)
    try:
        count = form_of(Column("", sql_type=sql_type)).decode(json.dumps(text).encode())
    except Misfit as error:
        raise WrongValue(f"{_shown(text)} is no {family.value}: {error}") from None
    if family is Family.DATE:
        return Border(Side.AT, pa.scalar(count, kind))
    # Values of conditions have microseconds. In nanoseconds they may exceed 64 bits.
    if kind.unit == "ns":
        count *= 1_000
        if not -(1 << 63) <= count < 1 << 63:
            return Border(Side.BELOW if count < 0 else Side.ABOVE)
        return Border(Side.AT, pa.scalar(count, kind))
    # In a unit of seconds or milliseconds the value may be in a gap.
    floor, rest = divmod(count, _MICROS[kind.unit])
    return Border(Side.BEHIND if rest else Side.AT, pa.scalar(floor, kind))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
