"""The values or the range of one column by which the rows of a condition can be looked up.

If a condition has parts that are joined by AND, it is true only where each part is true. So a lookup by one
part finds all candidate rows, and only on these the *rest* of the condition is evaluated. Conditions with the
same rest are of one *kind*; the rest is evaluated once for all of them::

    tenant = 't17'                   tenant: 't17'          no rest
    tenant = 't17' AND price > 4     tenant: 't17'          rest: price > 4
    price >= 2 AND price < 5         price: from 2 to 5     no rest
    name LIKE 'a%' OR price = 3      no lookup
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
    """The begin or the end of a range."""

    value: Any
    """The value, as ``sortable`` converts it."""
    is_behind: bool
    """True if the range begins or ends just after the value; False if just before the value."""


@dataclass(frozen=True, slots=True)
class LookupTerm:
    """The values or the range of a column that a part of a condition selects."""

    column: Column
    rest: tuple[Mask, ...] = ()
    """The rest of the condition, which matched rows have to meet too."""
    values: tuple[Any, ...] | None = None
    """The values, as ``plain`` converts them; None for a range."""
    begins: tuple[RangeEnd, ...] = ()
    """The begins of all comparisons; the range begins at the highest, or below all values if there is none."""
    ends: tuple[RangeEnd, ...] = ()
    """The ends of all comparisons; the range ends at the lowest, or above all values if there is none."""
    is_empty: bool = False
    """True if no value is in the range, whatever ``begins`` and ``ends`` are."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ConditionKind:
    """The common attributes of conditions that are looked up by one column; an index has equal kinds once."""

    rest: tuple[Mask, ...]
    """The rest of the condition."""
    columns: tuple[Column, ...]
    """The columns that conditions of this kind need."""
    asked: tuple[Column, ...]
    """The columns that the readers' own conditions name."""
    is_granted: bool
    """True if a part of the conditions comes from a grant."""


class Indexed:
    """A condition in the index of one table."""

    __slots__ = ("condition", "found_by", "ids", "kind", "part", "row_filter")

    def __init__(self, condition: RowCondition) -> None:
        """Begin with a condition and the columns that it is bound to; no predicate has the condition yet."""
        self.condition = condition
        self.ids: dict[int, None] = {}
        """Ids of the predicates that have the condition; a dict for its order."""
        self.row_filter: RowFilter | None = condition.row_filter
        """The condition, bound to the current schema; None if it does not fit the schema."""
        self.found_by = looked_up(condition.row_filter)
        """The lookups to choose from; empty if the condition must be evaluated on each row."""
        self.part: LookupTerm | None = None
        """The lookup that the index has chosen; None if there is none."""
        self.kind: ConditionKind | None = None
        """The attributes in common with other conditions; None while the condition is not in a table."""

    def fit(self, row_filter: RowFilter | None) -> None:
        """Set the condition as bound to a new schema; None if it does not fit the schema."""
        self.row_filter = row_filter
        self.found_by = () if row_filter is None else looked_up(row_filter)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that are read for the condition."""
        return self.condition.columns if self.row_filter is None else self.row_filter.columns

    @property
    def values(self) -> Sequence[Any]:
        """The values that the condition is looked up by; empty for a range or without a lookup."""
        return () if self.part is None else self.part.values or ()


def looked_up(row_filter: RowFilter) -> tuple[LookupTerm, ...]:
    """Return the lookups that a condition allows: its equalities, or if there is none, a range."""
    columns = {each.name: each for each in row_filter.columns}
    parts = [*_conjuncts(row_filter.mask)]
    found = []
    # 1. Prefer equalities and IN: a lookup by value finds fewer rows than a range.
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
    # 2. Else take all comparisons with one column together as a range, and leave the others as the rest.
    ranges: dict[str, list[Compared]] = {}
    for part in parts:
        if isinstance(part, Compared) and _has_order(part):
            ranges.setdefault(part.asked.column, []).append(part)
    for name, comparisons in ranges.items():
        rest = tuple(each for each in parts if each not in comparisons)
        return (_range(columns[name], comparisons, rest),)
    return ()


def plain(array: pa.Array) -> pa.Array:
    """Return values in a type with an exact Python equivalent: times and dates become integers."""
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def sortable(array: pa.Array) -> pa.Array:
    """Return values in a type that Arrow can search, in the same order; there must be no NULL."""
    if pa.types.is_decimal(array.type):
        # Arrow cannot search decimals, but can search bytes. Big-endian bytes with the sign bit flipped
        # have the order of the numbers.
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, width)
        turned = data[array.offset : array.offset + len(array), ::-1].copy()
        turned[:, 0] ^= 0x80
        of_width = pa.binary(width)
        return pa.Array.from_buffers(of_width, len(array), [None, pa.py_buffer(turned)]).cast(
            pa.binary()
        )
    if pa.types.is_floating(array.type):
        return pc.add(array, pa.scalar(0, array.type))  # -0.0 becomes 0.0
    return plain(array)


def _array_of(scalar: pa.Scalar) -> pa.Array:
    return pa.array([scalar], scalar.type)


def _conjuncts(mask: Mask) -> Iterator[Mask]:
    """Yield the parts of a condition that are joined by AND."""
    if isinstance(mask, AllOf):
        for part in mask.parts:
            yield from _conjuncts(part)
    else:
        yield mask


def _values(asked: AskedColumn, borders: Sequence[Border | None]) -> tuple[Any, ...] | None:
    """Return the values that the column can have, without the others; None: values cannot be looked up."""
    if asked.kind is not None:
        return None
    found = []
    for border in borders:
        if border is None or border.side is not Side.AT or border.scalar is None:
            continue  # no value is equal to it
        # NaN is not equal to itself, so floats are no keys. Numbers beyond Arrow's are columns of texts.
        kind = border.scalar.type
        if pa.types.is_floating(kind) or pa.types.is_decimal256(kind):
            return None
        found.append(plain(_array_of(border.scalar))[0].as_py())
    return tuple(dict.fromkeys(found))


def _has_order(comparison: Compared) -> bool:
    """Return True if a comparison selects a range of the column's values."""
    border = comparison.border
    if comparison.asked.kind is not None or border is None:
        return False
    if comparison.operator is Operator.UNEQUAL:
        return False
    return border.scalar is None or not pa.types.is_decimal256(border.scalar.type)


def _range(column: Column, comparisons: Sequence[Compared], rest: tuple[Mask, ...]) -> LookupTerm:
    """Return the range of a column that several comparisons select together."""
    begins: list[RangeEnd] = []
    ends: list[RangeEnd] = []
    is_empty = False
    for each in comparisons:
        operator, border = each.operator, each.border
        assert border is not None
        # 1. The compared value is below or above all values of the column: the comparison selects all, or none.
        if border.side in (Side.BELOW, Side.ABOVE) or border.scalar is None:
            is_empty |= operator not in (_GREATER if border.side is Side.BELOW else _LESS)
            continue
        value = sortable(_array_of(border.scalar))[0].as_py()
        # 2. The compared value is in the gap after a value of the column: no value is equal to it.
        if border.side is Side.BEHIND:
            is_empty |= operator is Operator.EQUAL
            (ends if operator in _LESS else begins).append(RangeEnd(value, is_behind=True))
            continue
        # 3. The compared value is a value of the column.
        if operator not in _LESS:
            begins.append(RangeEnd(value, is_behind=operator is Operator.GREATER))
        if operator not in _GREATER:
            ends.append(RangeEnd(value, is_behind=operator is not Operator.LESS))
    return LookupTerm(column, rest, None, tuple(begins), tuple(ends), is_empty=is_empty)
