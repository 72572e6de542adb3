"""Conditions on rows as a part of criteria: bound to the columns of an entity type, and fitted to later ones.

Names are looked up once, in the newest schema as criteria are compiled, and columns are followed by their id
from then on. Images of older versions are restated in the types of that schema. Rows of newer versions are
evaluated in their own types, by the condition bound anew: a column that was widened may hold what the older
type cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from tailrace.criteria import Criteria
from tailrace_server.filters.binding import bind
from tailrace_server.filters.evaluation import AllOf, RowFilter
from tailrace_server.filters.tree import (
    ConditionRefused,
    Junction,
    Negation,
    NullTest,
    ValuesNotCarried,
    columns_in,
)
from tailrace_server.wal.schema.restating import carries_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace.conditions import Where
    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import Mask
    from tailrace_server.filters.tree import Condition

_DIGEST_BYTES: Final = 16
_TERM_BYTES: Final = 1_000
"""Memory of a column or a value in a bound condition, at most; measured."""
_CRITERIA_BYTES: Final = 1_500
"""Memory of one compiled criteria, without its texts."""
_TEXT_BYTES: Final = 120
"""Memory of a text and its places in tuples and sets, beside its characters."""
_WIDE_BYTES: Final = 4
"""Memory of a character, at most, where not all are ASCII."""
_HASH_BYTES: Final = 150
"""Memory of the hash of a key for one entity type, in arrays and in the router's table."""


@dataclass(frozen=True, slots=True)
class ConditionText:
    """One condition, read: its tree, and the values of its parameters."""

    tree: Condition
    parameters: tuple[tuple[str, str], ...] = ()
    """Sorted by name."""
    is_granted: bool = False
    """True if it comes from a grant, and not from who asks: errors tell nothing of it."""


class RowCondition:
    """Conditions that are all to be met, bound to columns. Equal conditions give equal results.

    It does not change; what it is fitted to is kept. Any thread may use it.
    """

    __slots__ = (
        "_fitted",
        "_ids",
        "asked",
        "columns",
        "digest",
        "is_granted",
        "parts",
        "row_filter",
        "since",
    )

    def __init__(
        self,
        parts: Sequence[ConditionText],
        columns: Sequence[Column],
        since: int,
        *,
        shown: Collection[str] | None = None,
    ) -> None:
        """Bind conditions.

        Args:
            parts: The conditions; at least one.
            columns: Those of the entity type, named as the conditions name them.
            since: The version whose schema has them.
            shown: Names of columns that an error may tell; None: all.

        Raises:
            ConditionRefused: A column or a parameter is not there, or a value is none of its column's.
        """
        self.parts = tuple(parts)
        self.since = since
        self.row_filter = _bound(self.parts, columns, shown)
        self.columns = self.row_filter.columns
        self._ids = frozenset(each.id for each in columns if each.id)
        for column in self.columns:
            _refuse_dropped(column, self.parts)
        named = {
            each.text for part in parts if not part.is_granted for each in columns_in(part.tree)
        }
        self.asked = tuple(each for each in self.columns if each.name in named)
        """The columns that its reader has named; a grant may name others."""
        self.is_granted = any(part.is_granted for part in parts)
        """True if a grant is part of it: then nothing outside of it may be sent."""
        text = repr((self.parts, self.columns)).encode("utf-8", "surrogatepass")
        self.digest = blake2b(text, digest_size=_DIGEST_BYTES).digest()
        self._fitted: tuple[Sequence[Column] | None, RowFilter] = None, self.row_filter

    def __eq__(self, other: object) -> bool:
        """Return whether the other one judges alike."""
        return isinstance(other, RowCondition) and self.digest == other.digest

    def __hash__(self) -> int:
        """Return that of the digest."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Return its identity: criteria are sorted and compared by it."""
        return f"RowCondition({self.digest.hex()})"

    def __reduce__(self) -> Any:
        """Refuse to be pickled: it belongs to the log of one process."""
        raise TypeError("a bound condition stays in its process")

    @property
    def nbytes(self) -> int:
        """About what it takes, in bytes."""
        return _TERM_BYTES * sum(_terms(part.tree) for part in self.parts)

    def is_of(self, ids: frozenset[int]) -> bool:
        """Return whether columns, by their ids, are of its entity type and not of another of its name."""
        return not (ids and self._ids) or not self._ids.isdisjoint(ids)

    def fitted(self, written: Sequence[Column], version: int) -> RowFilter:
        """Return what judges the images of a version.

        Args:
            written: The entity type's columns in its schema.
            version: The version.

        Raises:
            ConditionRefused: A column has been dropped, or has a type now that its value does not fit.
        """
        known, found = self._fitted
        if known is not written:
            found = self.row_filter if version <= self.since else self._fit(written)
            self._fitted = written, found
        return found

    def _fit(self, written: Sequence[Column]) -> RowFilter:
        by_id = {each.id: each for each in written if each.id}
        by_name = {each.name: each for each in written}
        columns = []
        for column in self.columns:
            now = by_id.get(column.id) if column.id else by_name.get(column.name)
            if now is None:
                now = column  # an entity type of another name, of before a rename
            now = replace(now, name=column.name)
            _refuse_dropped(now, self.parts)
            columns.append(replace(column, sql_type=now.sql_type, encoding=now.encoding))
        if all(
            (new.sql_type, new.encoding) == (old.sql_type, old.encoding)
            for new, old in zip(columns, self.columns, strict=True)
        ):
            return self.row_filter
        for new, old in zip(columns, self.columns, strict=True):
            self._refuse_lost(old, new)
        return _bound(self.parts, columns, None)

    def _refuse_lost(self, old: Column, new: Column) -> None:
        """Refuse a new type of a column that is compared, if it need not hold the earlier values.

        Rows with such values are in by the type that they were written with, and undecided from now on. So a
        reader that keeps the rows that are in has to begin anew. It stays known whether a value is NULL.
        """
        parts = [part for part in self.parts if old.name in _compared(part.tree)]
        if parts and not carries_all(old, new):
            if any(part.is_granted for part in parts):
                raise _not_judged()
            raise ValuesNotCarried(old.name, new.sql_type or "of no known type")


@dataclass(frozen=True, slots=True)
class FilteredCriteria(Criteria):
    """Criteria whose rows have to meet a condition; they name one entity type."""

    where: Where | None = field(default=None, compare=False, repr=False)
    """As it was asked for; what counts is the condition that it was read as."""
    parameters: tuple[tuple[str, str], ...] | Mapping[str, object] = field(
        default=(), compare=False, repr=False
    )
    where_version: int | None = field(default=None, compare=False, repr=False)
    condition: RowCondition | None = None


def filtered(criteria: Criteria, condition: RowCondition) -> FilteredCriteria:
    """Return criteria with a condition in place of the one that they may have."""
    return FilteredCriteria(
        criteria.area,
        criteria.entity_type,
        criteria.primary_key,
        criteria.operation,
        criteria.container_type,
        criteria.container_name,
        where=criteria.where,
        parameters=criteria.parameters,
        where_version=criteria.where_version,
        condition=condition,
    )


def condition_of(criteria: Criteria) -> RowCondition | None:
    """Return the condition on rows of criteria; None: there is none."""
    return criteria.condition if isinstance(criteria, FilteredCriteria) else None


def bound_at(criteria: Iterable[Criteria]) -> list[int]:
    """Return the versions whose names the conditions of criteria have that came without one."""
    return [
        found.since
        for one in criteria
        if (found := condition_of(one)) is not None and one.where_version is None
    ]


def _bound(
    parts: Sequence[ConditionText], columns: Sequence[Column], shown: Collection[str] | None
) -> RowFilter:
    filters = []
    granted = []
    for part in parts:
        try:
            filters.append(bind(part.tree, columns, dict(part.parameters), shown=shown))
        except ConditionRefused:
            if part.is_granted:
                raise _not_judged() from None
            raise
        if part.is_granted:
            granted.append(filters[-1].mask)
    needed = dict.fromkeys(column for each in filters for column in each.columns)
    return RowFilter(
        (*needed,),
        _all_of([each.mask for each in filters]),
        _all_of(granted) if granted else None,
    )


def _all_of(masks: Sequence[Mask]) -> Mask:
    return masks[0] if len(masks) == 1 else AllOf(tuple(masks))


def _refuse_dropped(column: Column, parts: Sequence[ConditionText]) -> None:
    if not column.dropped:
        return
    for part in parts:
        if not part.is_granted and any(each.text == column.name for each in columns_in(part.tree)):
            raise ConditionRefused(
                f"where: the column {column.name!r} has been dropped by the source; ask with another condition"
            )
    raise _not_judged()


def _not_judged() -> ConditionRefused:
    return ConditionRefused(
        "where: the condition of what is granted cannot be judged by the columns that there are now"
    )


def _compared(tree: Condition) -> set[str]:
    """Return the names of the columns whose values a condition compares; IS NULL alone compares none."""
    match tree:
        case Junction(parts=parts):
            return set().union(*map(_compared, parts))
        case Negation(part=part):
            return _compared(part)
        case NullTest():
            return set()
        case leaf:
            return {leaf.column.text}


def _terms(tree: Condition) -> int:
    match tree:
        case Junction(parts=parts):
            return sum(map(_terms, parts))
        case Negation(part=part):
            return _terms(part)
        case _:
            return 1 + len(getattr(tree, "values", ()))


def criteria_bytes(criteria: Iterable[Criteria], entity_types: int) -> int:
    """Return about what criteria take while they are open, compiled, in bytes.

    Args:
        criteria: What is asked for.
        entity_types: How many the log has: keys without entity types are hashed for each.
    """
    total = 0
    for one in criteria:
        texts = (*one.entity_type, *one.container_name)
        keys = one.primary_key
        types = len(one.entity_type) or entity_types
        total += _CRITERIA_BYTES + _characters(texts) + _characters(keys)
        total += _TEXT_BYTES * (len(texts) + len(keys)) + _HASH_BYTES * len(keys) * types
        if (condition := condition_of(one)) is not None:
            total += condition.nbytes
    return total


def _characters(texts: tuple[str, ...]) -> int:
    """Return the bytes of their characters: joined, as a call for each of 100,000 would hold up the loop."""
    joined = "".join(texts)
    return len(joined) * (1 if joined.isascii() else _WIDE_BYTES)
