"""Keys, versions and kinds of changes that the conditions on a table allow, so that a scan can skip the others.

The results may allow too many rows, but never too few: a constant is used only if its meaning to DuckDB is
plain.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.conditions import refuse_large
from tailrace.criteria import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray
    from sqlglot import exp

    from tailrace.schema import Column
    from tailrace_server.sql.conditions import ColumnComparison
    from tailrace_server.wal.segment.parallel import RecordColumns

    Evaluate = Callable[[exp.Expr, str | None], object]
    """Returns the value of a constant expression, cast to a type of DuckDB's if one is given; None if the value
    is NULL or not of that type."""

CHANGE_TYPES: Final = ("insert", "update", "delete", "expire", "truncate")
_INTEGERS: Final = ("SMALLINT", "INTEGER", "BIGINT")
_TEXTS: Final = ("VARCHAR", "TEXT", "UUID")
_MOST: Final = (1 << 63) - 1
_KEYS_MAX: Final = 4_096
"""The most keys of an IN that are looked up one by one; with more the whole table is read."""


class Span(NamedTuple):
    """A range of whole numbers, both ends inclusive; empty if the first is above the last."""

    first: int
    last: int

    def both(self, other: tuple[int, int]) -> Span:
        """Return the intersection with another range."""
        return Span(max(self.first, other[0]), min(self.last, other[1]))


class Amount(NamedTuple):
    """How much of a log a scan reads."""

    base: int
    """Version of the base that the scan starts from; 0: none."""
    batches: int
    """Number of record batches after the base that the scan reads."""
    bytes: int
    """Bytes of these batches, and of the base if all rows are read."""
    all_batches: int
    """Number of record batches in the log."""
    all_bytes: int
    """Bytes of the log."""


EVERYTHING: Final = Span(0, _MOST)


def versions_in(comparisons: Iterable[ColumnComparison], evaluate: Evaluate) -> Span:
    """Return the range of versions that the conditions on ``_commit_version`` allow."""
    return _span(comparisons, "_commit_version", lambda each: _number(evaluate(each, None)))


def timestamps_in(comparisons: Iterable[ColumnComparison], evaluate: Evaluate) -> Span:
    """Return the range of commit times, in µs, that the conditions on ``_commit_timestamp`` allow."""
    return _span(
        comparisons, "_commit_timestamp", lambda each: _number(evaluate(each, "TIMESTAMPTZ"))
    )


def _span(
    comparisons: Iterable[ColumnComparison],
    column: str,
    value_of: Callable[[exp.Expr], float | Decimal | None],
) -> Span:
    found = EVERYTHING
    for each in comparisons:
        if each.column != column or each.image is not None or each.operator == "<>":
            continue
        values = [value_of(value) for value in each.values]
        known = [value for value in values if value is not None]
        # One unknown value in an IN makes the whole range unknown.
        if len(known) < len(values):
            continue
        # All bounds are inclusive, and fractions are rounded outwards: the range is never too narrow.
        first, last = math.floor(min(known)), math.ceil(max(known))
        match each.operator:
            case "=":
                found = found.both((first, last))
            case "<" | "<=":
                found = found.both((0, last))
            case ">" | ">=":
                found = found.both((first, _MOST))
    return found


def _number(value: object) -> int | float | Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, int | Decimal):
        try:
            refuse_large(value)  # rounding 1e999999 would write out all of its digits
        except ValueError:
            return None
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return value
    return None


def _whole(text: str) -> int | None:
    """Return the whole number that a text means; None if the text may mean something else."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def change_types_in(
    comparisons: Iterable[ColumnComparison], evaluate: Evaluate
) -> frozenset[str] | None:
    """Return the kinds of changes that the conditions on ``_change_type`` allow; None: all."""
    found = frozenset(CHANGE_TYPES)
    for each in comparisons:
        if each.column != "_change_type" or each.image is not None:
            continue
        if each.operator not in ("=", "<>"):
            continue
        values = [evaluate(value, None) for value in each.values]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) == len(values):
            found = found.intersection(texts) if each.operator == "=" else found.difference(texts)
    return None if len(found) == len(CHANGE_TYPES) else found


def keys_in(
    comparisons: Iterable[ColumnComparison],
    columns: Sequence[Column],
    evaluate: Evaluate,
    *,
    state: bool,
) -> tuple[str, ...] | None:
    """Return the primary keys, as texts, that the conditions allow; None: all.

    Args:
        comparisons: The comparisons with columns of the table.
        columns: The columns of the entity type.
        evaluate: Returns the value of a constant.
        state: True for a table with the entity type's columns at the top level, as a state; False for
            ``CHANGES``, which has them in images.
    """
    key = [each for each in columns if each.key]
    # Values of a column are keys only if the key has no other column.
    kind = (key[0].sql_type or "").partition("(")[0].upper() if len(key) == 1 else ""
    found: set[str] | None = None
    for each in comparisons:
        if each.operator != "=" or len(each.values) > _KEYS_MAX:
            continue
        if each.image is None and each.column == "_primary_key":
            # The entity type has a column of this name, which hides ours.
            if state and any(column.name.lower() == "_primary_key" for column in columns):
                continue
            texts = [key_text("TEXT", evaluate(value, None)) for value in each.values]
        elif kind and each.column == key[0].name.lower() and (each.image is None) == state:
            texts = [key_text(kind, evaluate(value, None)) for value in each.values]
        else:
            continue
        known = {text for text in texts if text is not None}
        if None not in texts:
            found = known if found is None else found & known
    return None if found is None else tuple(sorted(found))


def key_text(kind: str, value: object) -> str | None:
    """Return the text of the only key that equals a value.

    None if the key's type may have several texts for a value.
    """
    if kind in _TEXTS:
        return value if isinstance(value, str) else None
    if kind not in _INTEGERS or isinstance(value, bool):
        return None
    number = _whole(value) if isinstance(value, str) else value
    return str(number) if isinstance(number, int) else None


def change_types(head: RecordColumns, rows: NDArray[np.int64]) -> pa.Array:
    """Return the kind of each change, as SQL names it."""
    return pa.array(CHANGE_TYPES, pa.string()).take(pa.array(change_codes(head, rows)))


def change_codes(head: RecordColumns, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the kind of each change, as its index in CHANGE_TYPES."""
    operations = head.operations[rows]
    # An upsert with known changed columns is an update (1), without them an insert (0).
    codes = _are_there(head.changed, rows).astype(np.int64)
    codes[operations == np.uint8(Operation.REMOVE)] = 2
    codes[operations == np.uint8(Operation.EXPIRE)] = 3
    if head.primary_keys.null_count:
        keyed = _are_there(head.primary_keys, rows)
        codes[(operations == np.uint8(Operation.REMOVE)) & ~keyed] = 4
    return codes


def _are_there(column: pa.Array, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the rows in which a column has a value."""
    if column.null_count in (0, len(column)):  # all rows of a batch are often alike
        return np.full(len(rows), not column.null_count)
    # Compute the mask of all records, then select: to take lists and texts out first costs more.
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)[rows]
    return found
