"""Values of a filter, among the values of the column that they are compared with.

A column of whole numbers has no 100.5, and yet ``stock > 100.5`` says something. So a value becomes a *border*:
a value of the column, or the gap behind one, or what lies below or above all of them. Nothing is rounded, but
for REAL and DOUBLE, whose values are the nearest to what is written, as the column's own are.
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
"""Twice the digits of the longest number that ``refuse_large`` lets through."""
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of a unit."""
WIDE: Final = pa.decimal256(76, 30)
"""Holds most numbers that come as their digits."""


class Side(Enum):
    """The value of a border."""

    AT = "at"
    """It is a value of the column."""
    BEHIND = "behind"
    """It is the gap behind a value of the column."""
    BELOW = "below"
    """It is below all values of the column."""
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class Border:
    """A value among those of a column."""

    side: Side
    scalar: pa.Scalar | None = None
    """The value that it is, or is right behind; None below and above all."""
    number: Decimal | None = None
    """The text as written, for numbers."""


class WrongValue(ValueError):
    """A value cannot be compared with a column; says why."""


def family_of(form: Form) -> Family | None:
    """Return which values a column compares with; None: with none."""
    kind = form.type
    if form.is_json or form.notation is Notation.BYTES:
        return None  # of JSON the value that it is compared with says it
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
    """Return a value of a column's family among its values.

    Raises:
        WrongValue: The text is no such value.
    """
    match family_of(form):
        case Family.NUMBER:
            return _number(text, form.type)
        case Family.BOOLEAN:
            if text not in ("true", "false"):
                raise WrongValue("a truth is TRUE or FALSE")
            return Border(Side.AT, pa.scalar(text == "true"))
        case Family.TEXT:
            return Border(Side.AT, pa.scalar(text))
        case family:
            assert family is not None
            return _moment(text, family, form.type)


def _number(text: str, kind: pa.DataType) -> Border:
    # Python reads more than SQL as a number: digits of other scripts, and an underscore between digits.
    if "_" in text or not text.isascii():
        raise WrongValue(f"{_shown(text)} is no number")
    if pa.types.is_floating(kind):
        return _float(text, kind)
    try:
        number = Decimal(text.strip())
    except ArithmeticError:
        raise WrongValue(f"{_shown(text)} is no number") from None
    if not number.is_finite():
        raise WrongValue(f"{_shown(text)} is no number that this column can have")
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
    """Return where a number is among those of a scale."""
    units = number.scaleb(scale, _ENOUGH)
    floor = int(units.to_integral_value(ROUND_FLOOR, _ENOUGH))
    if floor < bounds[0]:
        return Border(Side.BELOW, number=number)
    if floor > bounds[1] or (floor == bounds[1] and units != floor):
        return Border(Side.ABOVE, number=number)
    value = floor if pa.types.is_integer(kind) else Decimal(floor).scaleb(-scale, _ENOUGH)
    side = Side.AT if units == floor else Side.BEHIND
    return Border(side, pa.scalar(value, kind), number)


def _float(text: str, kind: pa.DataType) -> Border:
    special = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}
    if (found := special.get(text.strip().lower())) is not None:
        return Border(Side.AT, pa.scalar(found, kind))
    try:
        Decimal(text.strip())
        scalar = pa.scalar(text.strip()).cast(kind)
    except (ArithmeticError, pa.ArrowInvalid):
        raise WrongValue(f"{_shown(text)} is no number") from None
    if math.isinf(scalar.as_py()):
        raise WrongValue(f"{_shown(text)} is beyond the numbers of this column")
    return Border(Side.AT, scalar)


def _moment(text: str, family: Family, kind: pa.DataType) -> Border:
    """Return a day, a time or a moment among those of a unit."""
    if family in (Family.TIMESTAMP, Family.INSTANT) and len(text) == len("2024-02-29"):
        text += "T00:00:00" if family is Family.TIMESTAMP else "T00:00:00Z"
    sql_type = {Family.INSTANT: "TIMESTAMP WITH TIME ZONE"}.get(family, family.name)
    try:
        count = form_of(Column("", sql_type=sql_type)).decode(json.dumps(text).encode())
    except Misfit as error:
        raise WrongValue(f"{_shown(text)} is no {family.value}: {error}") from None
    if family is Family.DATE:
        return Border(Side.AT, pa.scalar(count, kind))
    if kind.unit == "ns":
        count *= 1_000
        if not -(1 << 63) <= count < 1 << 63:
            return Border(Side.BELOW if count < 0 else Side.ABOVE)
        return Border(Side.AT, pa.scalar(count, kind))
    floor, rest = divmod(count, _MICROS[kind.unit])
    return Border(Side.BEHIND if rest else Side.AT, pa.scalar(floor, kind))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
