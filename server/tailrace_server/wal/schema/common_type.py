"""The type and encoding that hold all values of a column whose type has changed.

===================================================  =====================================================
types of the column                                  common type
===================================================  =====================================================
one that reads the values of all others              that one
any of them ``JSON`` in ``json``                     ``JSON``, as the source wrote each value
integers, decimals with digits                       ``DECIMAL(p,s)``: the most digits before and after the
                                                     point
SMALLINT, INTEGER, REAL, DOUBLE                      ``DOUBLE``
other numbers                                        ``DECIMAL`` in ``decimal.string``
counts of one kind                                   the finest unit; a text if nanoseconds since 1970 are
                                                     among other units, since 64 bits of them end in 2262
texts                                                the newest, if that holds any text; else ``VARCHAR``
anything else                                        ``VARCHAR`` with a readable text of the value
===================================================  =====================================================

If the newest type holds all values, it is the common type. `restating.restated_or_shown` converts the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.typed.column_values import SCALED, UNITS
from tailrace_server.wal.schema.column_types import DECIMAL, JSON, VARCHAR, joined, parts_of
from tailrace_server.wal.schema.restating import AS_TEXT, NUMERIC, TEXTS, base_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.wal.schema.restating import Stated

_ANY: Final[Stated] = (JSON, "json")
_TEXT: Final[Stated] = (VARCHAR, "json")
_DOUBLE: Final[Stated] = ("DOUBLE", "json")
_DIGITS: Final[Stated] = (DECIMAL, "decimal.string")
_WHOLE: Final = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}
"""Integer type → maximum number of digits."""
_FLOATS: Final = ("REAL", "DOUBLE")
_IN_A_DOUBLE: Final = (*_FLOATS, "SMALLINT", "INTEGER")
"""Types whose numbers a double holds exactly."""


def common_type(history: Sequence[Stated]) -> Stated:
    """Return the type and encoding that hold all values of a column.

    Args:
        history: Types and encodings of the column so far, newest last; at least one.
    """
    # A column without a known type has had only nulls.
    known = [each for each in history if each[0] is not None]
    if not known:
        return history[-1]
    newest = known[-1]
    one: Stated | None = known[0]
    for each in known[1:]:
        one = None if one is None else joined(one, each)
    if one is not None:
        return one
    if _ANY in known:
        return _ANY
    if all(map(_is_number, known)):
        return _number_type(known, newest)
    # With one encoding the texts mean the same; only the source's name for the type has changed.
    if newest[1] != "json" and all(each[1] == newest[1] for each in known):
        return newest
    counted = {UNITS[each[1]] for each in known if each[1] in UNITS}
    if counted and all(each[1] in UNITS for each in known):
        return _count_type(known, counted)
    return newest if newest in AS_TEXT and all(map(_is_text, known)) else _TEXT


def _is_number(stated: Stated) -> bool:
    sql_type, encoding = stated
    if encoding == "json":
        return base_of(sql_type) in NUMERIC
    others = ("decimal.string", "debezium.VariableScaleDecimal", "debezium.Year")
    return encoding in others or SCALED.fullmatch(encoding) is not None


def _is_text(stated: Stated) -> bool:
    sql_type, encoding = stated
    if encoding == "json":
        return base_of(sql_type) not in (*NUMERIC, "BOOLEAN", JSON)
    return encoding in TEXTS


def _number_type(known: Sequence[Stated], newest: Stated) -> Stated:
    fixed = [_digits_of(each) for each in known]
    digits = [each for each in fixed if each is not None]
    # All types have a bounded number of digits, so one DECIMAL holds all values exactly.
    if len(digits) == len(known):
        whole = max(whole for whole, _ in digits)
        scale = max(scale for _, scale in digits)
        last = digits[-1]
        if base_of(newest[0]) == DECIMAL and last == (whole, scale):
            return newest
        return f"DECIMAL({max(1, whole + scale)},{scale})", "json"
    bases = {base_of(sql_type) if encoding == "json" else "" for sql_type, encoding in known}
    if bases <= {*_IN_A_DOUBLE}:
        return _DOUBLE
    # Digits as written, also those of a decimal.string that is NaN.
    strings = any(encoding == "decimal.string" for _, encoding in known)
    return newest if newest == (DECIMAL, "json") and not strings else _DIGITS


def _digits_of(stated: Stated) -> tuple[int, int] | None:
    """Return the maximum number of digits before and after the point; None if they are unknown."""
    sql_type, encoding = stated
    if encoding == "debezium.Year":
        return _WHOLE["INTEGER"], 0
    base, precision, scale = parts_of(sql_type or "")
    if encoding == "json" and base in _WHOLE:
        return _WHOLE[base], 0
    scaled = SCALED.fullmatch(encoding)
    if base != DECIMAL or precision is None or not (scaled or encoding == "json"):
        return None
    digits = scale or 0 if scaled is None else int(scaled[1])
    return max(0, precision - (scale or 0)), max(0, digits)


def _count_type(known: Sequence[Stated], counted: set[tuple[str, int]]) -> Stated:
    # Days, times and moments have no common count.
    kinds = {kind for kind, _ in counted}
    finest = min(unit for _, unit in counted)
    if len(kinds) > 1 or (kinds == {"moment"} and finest == 1 and len(counted) > 1):
        return _TEXT
    return [each for each in known if UNITS[each[1]][1] == finest][-1]
