"""Which conditions on one table can be true of a batch at all, found by the values that the batch has.

A condition that is an equality, an ``IN`` or a range on one column, alone or joined by AND, is true only where
that part is. So it is found by it, and the others of its table are not looked at::

    tenant = 't17' AND price > 4     tenant: 't17'  ──▶ the values of `tenant` in the batch, each once
    price BETWEEN 2 AND 5            price: [2, 5]  ──▶ the values of `price` in the batch, sorted

All other conditions are judged on every batch of their table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.filters.constants import Side
from tailrace_server.filters.evaluation import AllOf, Compared, OneOf
from tailrace_server.filters.tree import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.capture.matching.row_condition import RowCondition
    from tailrace_server.capture.matching.typed_images import TypedImages
    from tailrace_server.filters.evaluation import Mask

_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1
_NOWHERE: Final = _HIGHEST, _LOWEST
"""A range without a value."""


class _LookedUp(NamedTuple):
    """What of a condition is looked up: values of a column, or a range of them."""

    column: Column
    values: tuple[pa.Scalar, ...] | None
    bounds: tuple[int, int]
    """The least and the greatest, inclusive, as whole numbers; only without values."""


class _ColumnPoints:
    """Conditions by the values of one column that they ask for."""

    def __init__(self) -> None:
        self.owners: dict[pa.Scalar, dict[RowCondition, None]] = {}
        self._values: tuple[pa.Array, list[pa.Scalar]] | None = None

    def add(self, condition: RowCondition, values: Sequence[pa.Scalar]) -> None:
        self._values = None
        for value in values:
            self.owners.setdefault(value, {})[condition] = None

    def remove(self, condition: RowCondition, values: Sequence[pa.Scalar]) -> None:
        self._values = None
        for value in dict.fromkeys(values):
            owners = self.owners[value]
            del owners[condition]
            if not owners:
                del self.owners[value]

    def found(self, array: pa.Array) -> Iterator[RowCondition]:
        """Yield those of which a value is there."""
        if self._values is None:
            listed = [*self.owners]
            self._values = pa.array([each.as_py() for each in listed], array.type), listed
        values, listed = self._values
        present = pc.is_in(values, value_set=pc.unique(array)).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(present).tolist():
            yield from self.owners[listed[place]]


class _ColumnRanges:
    """Conditions by the range of one column that they ask for."""

    def __init__(self) -> None:
        self.bounds: dict[RowCondition, tuple[int, int]] = {}
        self._arrays: tuple[NDArray[np.int64], list[RowCondition]] | None = None

    def add(self, condition: RowCondition, bounds: tuple[int, int]) -> None:
        self.bounds[condition], self._arrays = bounds, None

    def remove(self, condition: RowCondition) -> None:
        del self.bounds[condition]
        self._arrays = None

    def found(self, array: pa.Array) -> Iterator[RowCondition]:
        """Yield those with a value in their range."""
        if self._arrays is None:
            bounds = np.array([*self.bounds.values()], np.int64).reshape(-1, 2)
            self._arrays = bounds, [*self.bounds]
        bounds, conditions = self._arrays
        values = np.sort(_whole_numbers(array.drop_null()))
        first = np.searchsorted(values, bounds[:, 0], "left")
        behind = np.searchsorted(values, bounds[:, 1], "right")
        for place in np.flatnonzero(behind > first).tolist():
            yield conditions[place]


class ConditionIndex:
    """The conditions on one table."""

    def __init__(self) -> None:
        """Begin without conditions."""
        self._counts: dict[RowCondition, int] = {}
        self._parts: dict[RowCondition, _LookedUp | None] = {}
        self._others: dict[RowCondition, None] = {}
        """Those that have no part to be looked up by."""
        self._points: dict[Column, _ColumnPoints] = {}
        self._ranges: dict[Column, _ColumnRanges] = {}

    def __len__(self) -> int:
        """Return the number of different conditions."""
        return len(self._counts)

    def __iter__(self) -> Iterator[RowCondition]:
        """Yield the conditions, each once."""
        return iter(self._counts)

    def add(self, condition: RowCondition) -> None:
        """Count one more predicate with a condition."""
        self._counts[condition] = self._counts.get(condition, 0) + 1
        if self._counts[condition] > 1:
            return
        part = self._parts[condition] = _looked_up(condition)
        if part is None:
            self._others[condition] = None
        elif part.values is not None:
            self._points.setdefault(part.column, _ColumnPoints()).add(condition, part.values)
        else:
            self._ranges.setdefault(part.column, _ColumnRanges()).add(condition, part.bounds)

    def remove(self, condition: RowCondition) -> None:
        """Count one less."""
        self._counts[condition] -= 1
        if self._counts[condition]:
            return
        del self._counts[condition]
        part = self._parts.pop(condition)
        if part is None:
            del self._others[condition]
        elif part.values is not None:
            points = self._points[part.column]
            points.remove(condition, part.values)
            if not points.owners:
                del self._points[part.column]
        else:
            ranges = self._ranges[part.column]
            ranges.remove(condition)
            if not ranges.bounds:
                del self._ranges[part.column]

    def candidates(self, typed: TypedImages) -> list[RowCondition]:
        """Return the conditions that may match something, once or several times each."""
        # Where it is not known what was before, each condition may have been met. Conditions that have come
        # since the images were decoded may ask for other columns, of which that has to be known as well.
        typed.fit(self._counts)
        if not typed.tells_all:
            return [*self._counts]
        found = [*self._others, *typed.refitted]
        for column, points in self._points.items():
            found += points.found(typed.column(column))
        for column, ranges in self._ranges.items():
            found += ranges.found(typed.column(column))
        return found


def _looked_up(condition: RowCondition) -> _LookedUp | None:
    """Return what a condition is found by; None: by nothing."""
    columns = {each.name: each for each in condition.columns}
    ranges: dict[str, tuple[int, int]] = {}
    for mask in _conjuncts(condition.row_filter.mask):
        match mask:
            case Compared(asked, Operator.EQUAL, border) if asked.kind is None:
                borders = (border,)
            case OneOf(asked, borders) if asked.kind is None:
                pass
            case Compared(asked, operator, border) if asked.kind is None and border is not None:
                bounds = _bounds(operator, border.side, border.scalar)
                if bounds is not None and border.number is not None:
                    low, high = ranges.get(asked.column, (_LOWEST, _HIGHEST))
                    ranges[asked.column] = max(low, bounds[0]), min(high, bounds[1])
                continue
            case _:
                continue
        at = [
            each.scalar
            for each in borders
            if each is not None and each.side is Side.AT and each.scalar is not None
        ]
        # Floats have values that are no keys, as NaN; numbers beyond Arrow's come as texts.
        if not any(
            pa.types.is_floating(each.type) or pa.types.is_decimal256(each.type) for each in at
        ):
            return _LookedUp(columns[asked.column], tuple(at), _NOWHERE)
    for name, bounds in ranges.items():
        return _LookedUp(columns[name], None, bounds)
    return None


def _conjuncts(mask: Mask) -> Iterator[Mask]:
    """Yield the conditions that are all to be true."""
    if isinstance(mask, AllOf):
        for part in mask.parts:
            yield from _conjuncts(part)
    else:
        yield mask


def _bounds(operator: Operator, side: Side, scalar: pa.Scalar | None) -> tuple[int, int] | None:
    """Return the range of whole numbers that a comparison takes; None: of such a type there is none."""
    is_less = operator in (Operator.LESS, Operator.LESS_OR_EQUAL)
    if operator is Operator.UNEQUAL:
        return None
    if side in (Side.BELOW, Side.ABOVE):
        takes_all = is_less is (side is Side.ABOVE)
        return (_LOWEST, _HIGHEST) if takes_all else _NOWHERE
    if scalar is None or not pa.types.is_integer(scalar.type):
        return None
    value = scalar.as_py()
    if is_less:
        below = side is Side.AT and operator is Operator.LESS
        return _LOWEST, value - below if value > _LOWEST else _LOWEST
    above = side is Side.BEHIND or operator is Operator.GREATER
    return value + above if value < _HIGHEST else _HIGHEST, _HIGHEST


def _whole_numbers(array: pa.Array) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
