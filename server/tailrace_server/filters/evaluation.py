"""Evaluation of conditions on typed columns, also of rows with unknown values.

The result for a row is true, false or null, as in SQL. A comparison with NULL is null, and so is its ``NOT``.
``AND`` is false if one side is false, and ``OR`` is true if one side is true, even if the other side is null. A
row matches if the result is true.

Texts are ordered by code points. NaN equals itself and is greater than all numbers, as in PostgreSQL.

A value is *unknown* if a placeholder is in its place, if its column's type cannot hold it, or if the source
sent only the key of a removed row. (NULL is a known value.) The condition is then undecided, unless its result
is the same for every possible value. ``truth_of`` computes the lowest and the highest possible result of each
part, in the order false, NULL, true. AND takes the lower and OR the higher one of two results, so the two
bounds can be computed separately. NOT reverses the order::

    t = 'a'                  t is unknown         from false to true
    t = 'a' OR price > 4     and price is 5       from true to true: true
    NOT t IS NULL            t does not fit       from true to true: a value exists
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import MIN_ETINY, Decimal, InvalidOperation
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.filters.constants import WIDE, Border, Side
from tailrace_server.filters.tree import Family, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.typed.reader import UnknownValues

_PATTERN_MAX: Final = 1_000
"""The most letters of a LIKE pattern."""
_FITS_WIDE: Final = rf"^-?[0-9]{{1,{WIDE.precision - WIDE.scale}}}(?:\.[0-9]{{1,{WIDE.scale}}})?$"
"""Regular expression of the numbers without exponent that ``WIDE`` can hold."""
_FARTHEST, _NEAREST = Decimal("Infinity"), Decimal((0, (1,), MIN_ETINY))
_KERNELS: Final[dict[Operator, Callable[[Any, Any], Any]]] = {
    Operator.EQUAL: pc.equal,
    Operator.UNEQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_OR_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_OR_EQUAL: pc.greater_equal,
}


class Mask(Protocol):
    """Interface of a condition that is bound to columns."""

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return the result for each row of a batch of typed columns: true, false or null, as in SQL."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition that is bound to the columns of an entity type."""

    columns: tuple[Column, ...]
    """The columns that the condition needs; batches have them under these names."""
    mask: Mask
    """The whole condition."""
    granted: Mask | None = None
    """The part of the condition that comes from grants; None: no part does."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conditions joined by AND."""

    parts: tuple[Mask, ...]

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        return reduce(pc.and_kleene, (part.of(batch) for part in self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Conditions joined by OR."""

    parts: tuple[Mask, ...]

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        return reduce(pc.or_kleene, (part.of(batch) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Inverted:
    """A condition after NOT."""

    part: Mask

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        return pc.invert(self.part.of(batch))


@dataclass(frozen=True, slots=True)
class AskedColumn:
    """The column side of a condition on one column."""

    column: str
    kind: Family | None = None
    """For a column of JSON, the family of the values to compare; values of other families count as NULL."""

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column's values in a batch."""
        array = batch.column(self.column)
        if self.kind is None:
            return array
        # The values are JSON texts: their first character tells numbers, texts and other values apart.
        if self.kind is Family.NUMBER:
            return pc.if_else(pc.match_substring_regex(array, "^[-0-9]"), array, None)
        if self.kind is Family.BOOLEAN:
            words = pc.is_in(array, value_set=pa.array(["true", "false"]))
            return pc.if_else(words, pc.equal(array, "true"), None)
        # Parse only JSON texts: the parser would raise on a
        # number that no double can hold, alone or in a document.
        texts = (text if text and text[0] == '"' else "null" for text in array.to_pylist())
        return pa.array(orjson.loads(f"[{','.join(texts)}]"), pa.string())


@dataclass(frozen=True, slots=True)
class NotNull:
    """The condition IS NOT NULL."""

    asked: AskedColumn

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch; the result is never null."""
        return pc.is_valid(self.asked.of(batch))


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of a column with a value."""

    asked: AskedColumn
    operator: Operator
    border: Border | None
    """The value; None: NULL."""

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        array = self.asked.of(batch)
        if self.border is None:
            return pa.nulls(len(array), pa.bool_())
        if pa.types.is_string(array.type) and self.border.number is not None:
            return _digits_compared(array, self.operator, self.border)
        return _compared(array, self.operator, self.border)


@dataclass(frozen=True, slots=True)
class OneOf:
    """The condition IN."""

    asked: AskedColumn
    borders: tuple[Border | None, ...]
    """The values; None: NULL."""

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        array = self.asked.of(batch)
        is_digits = pa.types.is_string(array.type) and any(
            each is not None and each.number is not None for each in self.borders
        )
        if is_digits:
            found = _digits_among(array, {each.number for each in self.borders if each is not None})
        else:
            # Drop values that the column cannot have: they equal none of its values.
            values = [
                each.scalar for each in self.borders if each is not None and each.side is Side.AT
            ]
            wanted = pa.array(values, array.type)
            if pa.types.is_floating(array.type):
                # `is_in` compares hashes, and -0.0 has another hash than 0.0: adding 0.0 turns it into 0.0.
                array, wanted = pc.add(array, 0.0), pc.add(wanted, 0.0)
            among = pc.is_in(array, value_set=wanted)
            found = pc.if_else(pc.is_valid(array), among, None)
        # As in SQL, IN without a match is null instead of false if one of the values is NULL.
        return pc.if_else(found, True, None) if None in self.borders else found


@dataclass(frozen=True, slots=True)
class Matched:
    """The condition LIKE or ILIKE."""

    asked: AskedColumn
    pattern: str | None
    """The pattern as a regular expression; None: NULL."""
    ignores_case: bool
    """True for ILIKE."""

    def of(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Evaluate the condition on each row of a batch."""
        array = self.asked.of(batch)
        if self.pattern is None:
            return pa.nulls(len(array), pa.bool_())
        return pc.match_substring_regex(array, self.pattern, ignore_case=self.ignores_case)


Leaf = NotNull | Compared | OneOf | Matched
"""The conditions on a single column; all other conditions are composed of these."""


def pattern_of(text: str, escape: str) -> str:
    """Return the regular expression of a LIKE pattern.

    Raises:
        ValueError: The pattern is too long, or ends with its escape character.
    """
    if len(text) > _PATTERN_MAX:
        raise ValueError(f"a pattern may have at most {_PATTERN_MAX} characters")
    found = []
    letters = iter(text)
    for letter in letters:
        if letter == escape:
            letter = next(letters, "")
            if not letter:
                raise ValueError("the pattern ends with its escape character")
        elif letter in "%_":
            found.append(".*" if letter == "%" else ".")
            continue
        found.append(re.escape(letter) if letter.isascii() else letter)
    return f"(?s)^(?:{''.join(found)})$".replace("\\\0", "\\x00")


def _known(array: pa.Array, *, is_true: bool) -> pa.BooleanArray:
    """Return ``is_true`` for every value, and null for null."""
    return pc.if_else(pc.is_valid(array), pa.scalar(is_true), pa.scalar(None, pa.bool_()))


def _compared(array: pa.Array, operator: Operator, border: Border) -> pa.BooleanArray:
    """Compare values with a border of their type."""
    if operator is Operator.UNEQUAL:
        return pc.invert(_compared(array, Operator.EQUAL, border))
    if border.side in (Side.BELOW, Side.ABOVE):
        below = Operator.GREATER, Operator.GREATER_OR_EQUAL
        above = Operator.LESS, Operator.LESS_OR_EQUAL
        return _known(array, is_true=operator in (below if border.side is Side.BELOW else above))
    if border.side is Side.BEHIND:
        # The border is in the gap just above `scalar`: values up to `scalar` are less, all others are greater.
        if operator is Operator.EQUAL:
            return _known(array, is_true=False)
        is_less = operator in (Operator.LESS, Operator.LESS_OR_EQUAL)
        kernel = pc.less_equal if is_less else pc.greater
        return kernel(array, border.scalar)
    if pa.types.is_floating(array.type):
        return _floats_compared(array, operator, border)
    return _KERNELS[operator](array, border.scalar)


def _floats_compared(array: pa.Array, operator: Operator, border: Border) -> pa.BooleanArray:
    # Arrow's comparisons with NaN are false. Here NaN equals itself and is greater than all numbers.
    assert border.scalar is not None
    nan = pc.is_nan(array)
    if math.isnan(border.scalar.as_py()):
        match operator:
            case Operator.EQUAL | Operator.GREATER_OR_EQUAL:
                return nan
            case Operator.LESS:
                return pc.invert(nan)
            case _:
                return _known(array, is_true=operator is Operator.LESS_OR_EQUAL)
    found = _KERNELS[operator](array, border.scalar)
    if operator in (Operator.GREATER, Operator.GREATER_OR_EQUAL):
        return pc.or_(found, nan)
    return found


def _digits_compared(array: pa.StringArray, operator: Operator, border: Border) -> pa.BooleanArray:
    """Compare numbers that arrive as texts of digits."""
    # Arrow may only get numbers that it reads correctly. Above 76 digits it silently drops the upper bits, and
    # an exponent of -2147483647 makes it read outside of its memory. Python compares all other numbers.
    if pc.all(pc.match_substring_regex(array, _FITS_WIDE)).as_py() is not False:
        return _compared(array.cast(WIDE), operator, border)
    number = border.number
    assert number is not None
    compare = _PYTHON[operator]
    return _one_by_one(array, lambda each: compare(each, number))


def _digits_among(array: pa.StringArray, numbers: set[Decimal | None]) -> pa.BooleanArray:
    return _one_by_one(array, numbers.__contains__)


def _one_by_one(array: pa.StringArray, judge: Callable[[Decimal], bool]) -> pa.BooleanArray:
    found = [None if text is None else judge(_ordered(text)) for text in array.to_pylist()]
    return pa.array(found, pa.bool_())


def _ordered(text: str) -> Decimal:
    """Return a JSON number as a Decimal, for comparisons with the numbers of conditions only.

    A Decimal can have exponents of up to 18 digits. A number with a larger exponent becomes an infinity or the
    least number above zero, with its sign. Comparisons stay correct, because ``refuse_large`` bounds the
    numbers of conditions.
    """
    try:
        return Decimal(text)
    except InvalidOperation:
        significand, exponent = text.lower().split("e")
        number = Decimal(significand)
        if not number:
            return number
        return (_NEAREST if exponent[0] == "-" else _FARTHEST).copy_sign(number)


_PYTHON: Final[dict[Operator, Callable[[Decimal, Decimal], bool]]] = {
    Operator.EQUAL: Decimal.__eq__,
    Operator.UNEQUAL: Decimal.__ne__,
    Operator.LESS: Decimal.__lt__,
    Operator.LESS_OR_EQUAL: Decimal.__le__,
    Operator.GREATER: Decimal.__gt__,
    Operator.GREATER_OR_EQUAL: Decimal.__ge__,
}


class Truth(NamedTuple):
    """The results of a condition for some rows, as two masks of shape (rows,).

    If both are False, the condition is certainly false or null.
    """

    is_true: NDArray[np.bool_]
    """The condition is certainly true."""
    is_undecided: NDArray[np.bool_]
    """An unknown value decides whether the condition is true."""


def truth_of(
    mask: Mask, batch: pa.RecordBatch, unknown: Mapping[str, UnknownValues] | None = None
) -> Truth:
    """Evaluate a condition on the rows of a batch.

    Args:
        mask: The condition.
        batch: The columns that the condition needs; unknown values are null.
        unknown: Column → the rows whose value is unknown; None: all values are known.
    """
    if not unknown:
        is_true = _is_true(mask.of(batch))
        return Truth(is_true, np.zeros(len(is_true), np.bool_))
    # The condition is certainly true where even the lowest
    # result is true, and undecided where only the highest is.
    lowest, highest = _bounds(mask, batch, unknown)
    is_true = _is_true(lowest)
    return Truth(is_true, _is_true(highest) & ~is_true)


class _Bounds(NamedTuple):
    lowest: pa.BooleanArray
    highest: pa.BooleanArray


def _bounds(mask: Mask, batch: pa.RecordBatch, unknown: Mapping[str, UnknownValues]) -> _Bounds:
    """Return the lowest and the highest possible result of a condition for each row."""
    match mask:
        case AllOf(parts):
            return _joined([_bounds(part, batch, unknown) for part in parts], pc.and_kleene)
        case AnyOf(parts):
            return _joined([_bounds(part, batch, unknown) for part in parts], pc.or_kleene)
        case Inverted(part):
            lowest, highest = _bounds(part, batch, unknown)
            return _Bounds(pc.invert(highest), pc.invert(lowest))
        case NotNull() | Compared() | OneOf() | Matched():
            return _bounds_of_leaf(mask, batch, unknown)
        case _:
            raise TypeError(f"no condition: {mask!r}")


def _joined(parts: Sequence[_Bounds], kernel: Callable[[Any, Any], Any]) -> _Bounds:
    return _Bounds(
        reduce(kernel, (each.lowest for each in parts)),
        reduce(kernel, (each.highest for each in parts)),
    )


def _bounds_of_leaf(
    leaf: Leaf, batch: pa.RecordBatch, unknown: Mapping[str, UnknownValues]
) -> _Bounds:
    found = leaf.of(batch)
    values = unknown.get(leaf.asked.column)
    if values is None:
        return _Bounds(found, found)
    # A comparison with an unknown value may have any result. But IS NOT NULL is known if a value exists that
    # just does not fit the type.
    lowest = values.exists if isinstance(leaf, NotNull) else np.zeros(len(found), np.bool_)
    rows = pa.array(values.rows)
    return _Bounds(
        pc.if_else(rows, pa.array(lowest), found), pc.if_else(rows, pa.scalar(True), found)
    )


def _is_true(answers: pa.BooleanArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(answers, False).to_numpy(zero_copy_only=False)
    return found
