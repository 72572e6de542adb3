"""The keys, versions and kinds of changes that a scan may leave out because of a table's conditions.

All of it may let too many rows through, and never one too few: what a constant means to DuckDB beside a column
is followed only where that is plain.
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
    """Returns what a constant expression is, cast to a type of DuckDB's if one is given; None where it is
    nothing of that type."""

CHANGE_TYPES: Final = ("insert", "update", "delete", "expire", "truncate")
_INTEGERS: Final = ("SMALLINT", "INTEGER", "BIGINT")
_TEXTS: Final = ("VARCHAR", "TEXT", "UUID")
_MOST: Final = (1 << 63) - 1
_KEYS_MAX: Final = 4_096
"""More keys in an IN are not looked up one by one: the table is read."""


class Span(NamedTuple):
    """Whole numbers, both inclusive; none where the first is above the last."""

    first: int
    last: int

    def both(self, other: tuple[int, int]) -> Span:
        """Return what is in two."""
        return Span(max(self.first, other[0]), min(self.last, other[1]))


class Amount(NamedTuple):
    """How much of a log a scan reads."""

    base: int
    """Version of the base that it begins with; 0 for none."""
    batches: int
    """Record batches that it looks at, behind the base."""
    bytes: int
    """Of these and, where all rows are read, of the base."""
    all_batches: int
    """That the log has."""
    all_bytes: int
    """Of the log."""


EVERYTHING: Final = Span(0, _MOST)


def versions_in(comparisons: Iterable[ColumnComparison], evaluate: Evaluate) -> Span:
    """Return the versions that conditions on ``_commit_version`` let through."""
    return _span(comparisons, "_commit_version", lambda each: _number(evaluate(each, None)))


def timestamps_in(comparisons: Iterable[ColumnComparison], evaluate: Evaluate) -> Span:
    """Return the commit timestamps, µs, that conditions on ``_commit_timestamp`` let through."""
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
        if len(known) < len(values):
            continue
        # Inclusive whichever it is, and fractions rounded outwards: that is never too narrow.
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
            refuse_large(value)  # to round one with an exponent is to write it out
        except ValueError:
            return None
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return value
    return None


def _whole(text: str) -> int | None:
    """Return the number that a text is, if it has no other reading."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def change_types_in(
    comparisons: Iterable[ColumnComparison], evaluate: Evaluate
) -> frozenset[str] | None:
    """Return the kinds of changes that conditions on ``_change_type`` let through; None: all."""
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
    """Return the primary keys, as texts, that conditions let through; None: all.

    Args:
        comparisons: Of the table.
        columns: Of the entity type.
        evaluate: Computes constants.
        state: True for a table of state, with columns beside ``_primary_key``.
    """
    key = [each for each in columns if each.key]
    kind = (key[0].sql_type or "").partition("(")[0].upper() if len(key) == 1 else ""
    found: set[str] | None = None
    for each in comparisons:
        if each.operator != "=" or len(each.values) > _KEYS_MAX:
            continue
        if each.image is None and each.column == "_primary_key":
            # A column of that name of the entity type's own stands in the place of ours.
            if state and any(column.name.lower() == "_primary_key" for column in columns):
                continue
            texts = [_key_text("TEXT", evaluate(value, None)) for value in each.values]
        elif kind and each.column == key[0].name.lower() and (each.image is None) == state:
            texts = [_key_text(kind, evaluate(value, None)) for value in each.values]
        else:
            continue
        known = {text for text in texts if text is not None}
        if None not in texts:
            found = known if found is None else found & known
    return None if found is None else tuple(sorted(found))


def _key_text(kind: str, value: object) -> str | None:
    """Return the text of the one key that equals a value, for the types that have one text for each value."""
    if kind in _TEXTS:
        return value if isinstance(value, str) else None
    if kind not in _INTEGERS or isinstance(value, bool):
        return None
    number = _whole(value) if isinstance(value, str) else value
    return str(number) if isinstance(number, int) else None


def change_types(head: RecordColumns, rows: NDArray[np.int64]) -> pa.Array:
    """Return what each change was, as SQL calls it."""
    return pa.array(CHANGE_TYPES, pa.string()).take(pa.array(change_codes(head, rows)))


def change_codes(head: RecordColumns, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the kind of each change, as its place in CHANGE_TYPES."""
    operations = head.operations[rows]
    codes = _are_there(head.changed, rows).astype(np.int64)
    codes[operations == np.uint8(Operation.REMOVE)] = 2
    codes[operations == np.uint8(Operation.EXPIRE)] = 3
    if head.primary_keys.null_count:
        keyed = _are_there(head.primary_keys, rows)
        codes[(operations == np.uint8(Operation.REMOVE)) & ~keyed] = 4
    return codes


def _are_there(column: pa.Array, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some rows a column has a value of."""
    if column.null_count in (0, len(column)):  # all rows of a batch are often alike
        return np.full(len(rows), not column.null_count)
    # Of all records: to take lists and texts out first costs more.
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)[rows]
    return found
