"""The answer of a condition for each row: true, undecided, or neither.

SQL's NULL is a value that is known: a comparison with it is not true. A value that is *not known* is another
thing: a placeholder is in its place, its column's type cannot hold it, or the source sent the key of a removed
row alone. Then the condition is undecided, unless its answer is the same for every value that there may be.

Each part of the condition is evaluated to the lowest and the highest possible answer, in the order false,
NULL, true. AND takes the lower of two answers and OR the higher, so each bound is computed by itself. NOT
reverses the order::

    t = 'a'                  t is not known       from false to true
    t = 'a' OR price > 4     and price is 5       from true to true: true
    NOT t IS NULL            t does not fit       from true to true: there is a value
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.filters.evaluation import (
    AllOf,
    AnyOf,
    Compared,
    Inverted,
    Matched,
    NotNull,
    OneOf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace_server.filters.evaluation import Leaf, Mask
    from tailrace_server.typed.reader import UnknownValues


class Truth(NamedTuple):
    """The answer for some rows, each of shape (rows,); where neither is set, the condition is not true."""

    is_true: NDArray[np.bool_]
    is_undecided: NDArray[np.bool_]
    """It may be true or not: that depends on a value that is not known."""


def truth_of(
    mask: Mask, batch: pa.RecordBatch, unknown: Mapping[str, UnknownValues] | None = None
) -> Truth:
    """Return the answer of a condition.

    Args:
        mask: The condition.
        batch: The columns that it needs.
        unknown: By column, the rows whose value is not known; it is null in the batch. None: all are known.
    """
    if not unknown:
        is_true = _is_true(mask.of(batch))
        return Truth(is_true, np.zeros(len(is_true), np.bool_))
    lowest, highest = _bounds(mask, batch, unknown)
    is_true = _is_true(lowest)
    return Truth(is_true, _is_true(highest) & ~is_true)


class _Bounds(NamedTuple):
    lowest: pa.BooleanArray
    highest: pa.BooleanArray


def _bounds(mask: Mask, batch: pa.RecordBatch, unknown: Mapping[str, UnknownValues]) -> _Bounds:
    """Return the lowest and the highest answer that a condition may have."""
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
    # Which value it is decides a comparison. Whether there is one may be known all the same.
    lowest = values.exists if isinstance(leaf, NotNull) else np.zeros(len(found), np.bool_)
    rows = pa.array(values.rows)
    return _Bounds(
        pc.if_else(rows, pa.array(lowest), found), pc.if_else(rows, pa.scalar(True), found)
    )


def _is_true(answers: pa.BooleanArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(answers, False).to_numpy(zero_copy_only=False)
    return found
