"""Conditions on rows in criteria: bound to the columns of an entity type, and fitted to later columns.

The names in a condition are looked up once, in the newest schema at the time when the criteria are compiled.
From then on columns are matched by their ids. Values of older versions are converted to the types of that
schema. Rows of newer versions are evaluated in the types of their own schema, and for this the condition is
bound again: a column that was widened may have values that the older type cannot hold.
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
"""Upper bound of the memory of a column or a value in a bound condition, in bytes; measured."""
_CRITERIA_BYTES: Final = 1_500
"""Memory of one compiled ``Criteria`` without its texts, in bytes."""
_TEXT_BYTES: Final = 120
"""Memory of a text and its references in tuples and sets, without its characters, in bytes."""
_WIDE_BYTES: Final = 4
"""Upper bound of the memory of a character in a text that is not all ASCII, in bytes."""
_HASH_BYTES: Final = 150
"""Memory of the hash of a key for one entity type, in arrays and in the router's table, in bytes."""


@dataclass(frozen=True, slots=True)
class ConditionText:
    """One parsed condition: its tree, and the values of its parameters."""

    tree: Condition
    parameters: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value, sorted by name."""
    is_granted: bool = False
    """True if the condition comes from a grant: errors must not reveal it. False: the caller requested it."""


class RowCondition:
    """Conditions joined by AND and bound to columns. Equal objects give equal results.

    The object is immutable, except that it caches its last fitted form. Any thread may use it.
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
            columns: The columns of the entity type, named as the conditions name them.
            since: The version whose schema has these columns.
            shown: Names of columns that an error may reveal; None: all.

        Raises:
            ConditionRefused: A column or a parameter is missing, or a value does not fit the type of its
                column.
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
        """The columns that the reader's own conditions name; columns that only a grant names are left out."""
        self.is_granted = any(part.is_granted for part in parts)
        """True if one of the conditions is a grant's: then no image that does not meet it may be sent."""
        # Equal digests share a publisher and its frames, so
        # the digest covers everything that affects the result.
        text = repr((self.parts, self.columns)).encode("utf-8", "surrogatepass")
        self.digest = blake2b(text, digest_size=_DIGEST_BYTES).digest()
        self._fitted: tuple[Sequence[Column] | None, RowFilter] = None, self.row_filter

    def __eq__(self, other: object) -> bool:
        """Return True if the other object has equal conditions on equal columns."""
        return isinstance(other, RowCondition) and self.digest == other.digest

    def __hash__(self) -> int:
        """Return the hash of the digest."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Return the digest as text; criteria are sorted and compared by it."""
        return f"RowCondition({self.digest.hex()})"

    def __reduce__(self) -> Any:
        """Raise TypeError: a bound condition belongs to the log of one process, so it is never pickled."""
        raise TypeError("a bound condition stays in its process")

    @property
    def nbytes(self) -> int:
        """Memory of the condition in bytes, approximately."""
        return _TERM_BYTES * sum(_terms(part.tree) for part in self.parts)

    def is_of(self, ids: frozenset[int]) -> bool:
        """Return True if columns, given by ids, belong to the condition's entity type.

        Another entity type may have had the same name in other versions; its columns have other ids.
        """
        return not (ids and self._ids) or not self._ids.isdisjoint(ids)

    def fitted(self, written: Sequence[Column], version: int) -> RowFilter:
        """Return the filter for the images of a version, bound to the types that the columns have there.

        Args:
            written: The entity type's columns in the schema of the version.
            version: The version.

        Raises:
            ConditionRefused: A column has been dropped, or its new type does not fit the compared value.
            ValuesNotCarried: The new type of a compared column may not hold its earlier values.
        """
        # Batches of one schema follow one another, so one cached result is enough. The pair is replaced as a
        # whole: a race of two threads only repeats the work.
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
                # After a rename the entity type may have another name in this schema: keep the bound type.
                now = column
            # Keep the name in the condition, and take the type of this schema.
            now = replace(now, name=column.name)
            _refuse_dropped(now, self.parts)
            columns.append(replace(column, sql_type=now.sql_type, encoding=now.encoding))
        if all(
            (new.sql_type, new.encoding) == (old.sql_type, old.encoding)
            for new, old in zip(columns, self.columns, strict=True)
        ):
            return self.row_filter
        # With other types the values in the condition have to be converted again, if that loses no rows.
        for new, old in zip(columns, self.columns, strict=True):
            self._refuse_lost(old, new)
        return _bound(self.parts, columns, None)

    def _refuse_lost(self, old: Column, new: Column) -> None:
        """Refuse a new type of a compared column if the type may not hold the earlier values.

        Rows with such values match by the type that they were written with, but are undecided with the new
        type. So a reader that maintains the set of matching rows has to begin anew. IS NULL alone is not a
        comparison: the new type still says whether a value is NULL.
        """
        parts = [part for part in self.parts if old.name in _compared(part.tree)]
        if parts and not carries_all(old, new):
            if any(part.is_granted for part in parts):
                raise _not_judged()
            raise ValuesNotCarried(old.name, new.sql_type or "of no known type")


@dataclass(frozen=True, slots=True)
class FilteredCriteria(Criteria):
    """Criteria with a bound condition on rows; they name exactly one entity type."""

    where: Where | None = field(default=None, compare=False, repr=False)
    """The condition as it was requested; only ``condition`` is evaluated and compared."""
    parameters: tuple[tuple[str, str], ...] | Mapping[str, object] = field(
        default=(), compare=False, repr=False
    )
    where_version: int | None = field(default=None, compare=False, repr=False)
    condition: RowCondition | None = None


def filtered(criteria: Criteria, condition: RowCondition) -> FilteredCriteria:
    """Return criteria with a condition in place of their own, if any."""
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
    """Return the bound condition of criteria; None if they have none."""
    return criteria.condition if isinstance(criteria, FilteredCriteria) else None


def bound_at(criteria: Iterable[Criteria]) -> list[int]:
    """Return the versions to whose columns the server has bound the conditions of criteria.

    A condition that was requested with a ``where_version`` of its own is left out.
    """
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
    """Return the names of the columns whose values a condition compares; IS NULL is no comparison."""
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
    """Estimate the memory of compiled criteria while a subscription with them is open, in bytes.

    Args:
        criteria: The requested criteria.
        entity_types: Number of entity types in the log: keys of criteria without entity types are hashed for
            each.
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
    """Estimate the memory of the characters of some texts, in bytes."""
    # The texts are joined first: a call for each of 100,000 texts would block the event loop.
    joined = "".join(texts)
    return len(joined) * (1 if joined.isascii() else _WIDE_BYTES)
