"""The values or the range of one column by which the rows of a condition can be looked up.

A condition is true only where each of its parts is that are joined by AND. So one part is enough to find the
rows that come into question, and the rest is asked of those rows alone. Many conditions have the same rest, and
are of one *kind* then: it is worked out once for all of them::

    tenant = 't17'                   tenant: 't17'          no rest
    tenant = 't17' AND price > 4     tenant: 't17'          rest: price > 4
    price >= 2 AND price < 5         price: from 2 to 5     no rest
    name LIKE 'a%' OR price = 3      nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.filters.constants import Side
from tailrace_server.filters.evaluation import AllOf, Compared, OneOf
from tailrace_server.filters.tree import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.schema import Column
    from tailrace_server.filters.constants import Border
    from tailrace_server.filters.evaluation import AskedColumn, Mask, RowFilter
    from tailrace_server.rows.row_condition import RowCondition

_LESS: Final = Operator.LESS, Operator.LESS_OR_EQUAL
_GREATER: Final = Operator.GREATER, Operator.GREATER_OR_EQUAL


class RangeEnd(NamedTuple):
    """An end of a range."""

    value: Any
    """As of ``sortable``."""
    is_behind: bool
    """True if the range begins, or ends, right behind the value, and not right before it."""


@dataclass(frozen=True, slots=True)
class LookupTerm:
    """The values or the range."""

    column: Column
    rest: tuple[Mask, ...] = ()
    """The rest of the condition, which matched rows have to meet too."""
    values: tuple[Any, ...] | None = None
    """As of ``plain``; None: a range."""
    begins: tuple[RangeEnd, ...] = ()
    """The range begins at the last of them; none: below all values."""
    ends: tuple[RangeEnd, ...] = ()
    """It ends at the first of them; none: above all values."""
    is_empty: bool = False
    """True if no value is in the range, whatever its ends."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ConditionKind:
    """The common part of conditions that are looked up by one column; an index keeps equal ones once."""

    rest: tuple[Mask, ...]
    """The rest of the condition."""
    columns: tuple[Column, ...]
    """Those that conditions of this kind need."""
    asked: tuple[Column, ...]
    """Those of them that readers have named."""
    is_granted: bool
    """True if a grant has part in them."""


class Indexed:
    """A condition on one table."""

    __slots__ = ("condition", "found_by", "ids", "kind", "part", "row_filter")

    def __init__(self, condition: RowCondition) -> None:
        """Take a condition, with the columns that it is bound to; no reader uses it yet."""
        self.condition = condition
        self.ids: dict[int, None] = {}
        """Predicates that have it."""
        self.row_filter: RowFilter | None = condition.row_filter
        """The condition, bound to the schema of now; None: it does not fit."""
        self.found_by = looked_up(condition.row_filter)
        """The lookups to choose from; empty: the condition is evaluated on each row."""
        self.part: LookupTerm | None = None
        """Which of these its index has chosen."""
        self.kind: ConditionKind | None = None
        """The part in common with other conditions; None: the index does not have the condition yet."""

    def fit(self, row_filter: RowFilter | None) -> None:
        """Take what judges it by a schema; None: it does not fit."""
        self.row_filter = row_filter
        self.found_by = () if row_filter is None else looked_up(row_filter)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that are read for it."""
        return self.condition.columns if self.row_filter is None else self.row_filter.columns

    @property
    def values(self) -> Sequence[Any]:
        """The values that it is looked up by."""
        return () if self.part is None else self.part.values or ()


def looked_up(row_filter: RowFilter) -> tuple[LookupTerm, ...]:
    """Return what a condition can be found by: equalities or else a range, any of them."""
    columns = {each.name: each for each in row_filter.columns}
    parts = [*_conjuncts(row_filter.mask)]
    found = []
    for part in parts:
        match part:
            case Compared(asked, Operator.EQUAL, border):
                borders: tuple[Border | None, ...] = (border,)
            case OneOf(asked, borders):
                pass
            case _:
                continue
        values = _values(asked, borders)
        if values is not None:
            rest = tuple(each for each in parts if each is not part)
            found.append(LookupTerm(columns[asked.column], rest, values))
    if found:
        return tuple(found)
    ranges: dict[str, list[Compared]] = {}
    for part in parts:
        if isinstance(part, Compared) and _has_order(part):
            ranges.setdefault(part.asked.column, []).append(part)
    for name, comparisons in ranges.items():
        rest = tuple(each for each in parts if each not in comparisons)
        return (_range(columns[name], comparisons, rest),)
    return ()


def plain(array: pa.Array) -> pa.Array:
    """Return values as such that Python can tell apart exactly: moments and days as their numbers."""
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def sortable(array: pa.Array) -> pa.Array:
    """Return values as such that Arrow can search among, in the same order; there is no NULL among them."""
    if pa.types.is_decimal(array.type):
        # Arrow does not search among decimals, but among bytes: the highest first, the sign turned over.
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, width)
        turned = data[array.offset : array.offset + len(array), ::-1].copy()
        turned[:, 0] ^= 0x80
        of_width = pa.binary(width)
        return pa.Array.from_buffers(of_width, len(array), [None, pa.py_buffer(turned)]).cast(
            pa.binary()
        )
    if pa.types.is_floating(array.type):
        return pc.add(array, pa.scalar(0, array.type))  # -0.0 is 0.0
    return plain(array)


def _array_of(scalar: pa.Scalar) -> pa.Array:
    return pa.array([scalar], scalar.type)


def _conjuncts(mask: Mask) -> Iterator[Mask]:
    """Yield the conditions that are all to be true."""
    if isinstance(mask, AllOf):
        for part in mask.parts:
            yield from _conjuncts(part)
    else:
        yield mask


def _values(asked: AskedColumn, borders: Sequence[Border | None]) -> tuple[Any, ...] | None:
    """Return those of some values that the column can have; None: they cannot be looked up."""
    if asked.kind is not None:
        return None
    found = []
    for border in borders:
        if border is None or border.side is not Side.AT or border.scalar is None:
            continue  # no value is equal to it
        # Floats have values that are no keys, as NaN; numbers beyond Arrow's come as texts.
        kind = border.scalar.type
        if pa.types.is_floating(kind) or pa.types.is_decimal256(kind):
            return None
        found.append(plain(_array_of(border.scalar))[0].as_py())
    return tuple(dict.fromkeys(found))


def _has_order(comparison: Compared) -> bool:
    """Return whether a comparison takes a range of a column's values."""
    border = comparison.border
    if comparison.asked.kind is not None or border is None:
        return False
    if comparison.operator is Operator.UNEQUAL:
        return False
    return border.scalar is None or not pa.types.is_decimal256(border.scalar.type)


def _range(column: Column, comparisons: Sequence[Compared], rest: tuple[Mask, ...]) -> LookupTerm:
    """Return the range that comparisons with values of a column take together."""
    begins: list[RangeEnd] = []
    ends: list[RangeEnd] = []
    is_empty = False
    for each in comparisons:
        operator, border = each.operator, each.border
        assert border is not None
        # 1. What is compared is below or above all values: it takes all of them, or none.
        if border.side in (Side.BELOW, Side.ABOVE) or border.scalar is None:
            is_empty |= operator not in (_GREATER if border.side is Side.BELOW else _LESS)
            continue
        value = sortable(_array_of(border.scalar))[0].as_py()
        # 2. It is the gap behind a value: all others are above it or below it.
        if border.side is Side.BEHIND:
            is_empty |= operator is Operator.EQUAL
            (ends if operator in _LESS else begins).append(RangeEnd(value, is_behind=True))
            continue
        # 3. It is a value.
        if operator not in _LESS:
            begins.append(RangeEnd(value, is_behind=operator is Operator.GREATER))
        if operator not in _GREATER:
            ends.append(RangeEnd(value, is_behind=operator is not Operator.LESS))
    return LookupTerm(column, rest, None, tuple(begins), tuple(ends), is_empty=is_empty)
