"""An index of the conditions on one table: it finds those that may match a batch, and the rows to evaluate.

A condition that is an equality, an ``IN`` or a range on one column, alone or joined by AND, is true only where
that part is. So its rows are found by it, and the others are not looked at::

    tenant = 't17'                 the values of `tenant` in the batch, each once ──▶ its rows
    price BETWEEN 2 AND 5          the values of `price` in the batch, sorted     ──▶ its rows
    tenant = 't17' AND price > 4   the values of `tenant` ──▶ rows, of which those with `price > 4`
    name LIKE '%a%'                nothing                ──▶ all rows are judged

A row whose image before is missing, or whose value in the looked-up column is unknown, is a candidate for every
condition. Only such rows cost more, not the rest of their batch.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from tailrace.errors import ColumnsChanged
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.live.index.lookup_terms import ConditionKind, Indexed
from tailrace_server.live.index.value_tables import PointTable, RangeTable, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import RowFilter
    from tailrace_server.live.index.lookup_terms import LookupTerm
    from tailrace_server.live.index.value_tables import Finder, GroupedRows
    from tailrace_server.rows.row_condition import RowCondition
    from tailrace_server.rows.transitions import RowsFound
    from tailrace_server.rows.typed_images import TypedImages

_NOTHING = np.empty(0, np.intp)


class ConditionIndex:
    """The conditions on one table."""

    def __init__(self) -> None:
        """Begin without conditions."""
        self._indexed: dict[RowCondition, Indexed] = {}
        self._columns: Counter[Column] = Counter()
        """Those that conditions need, and how many do."""
        self._new: dict[Indexed, None] = {}
        """Those that are not fitted yet."""
        self._schemas: Sequence[Sequence[Column]] = ()
        """The columns of the schemas that the others are bound to."""
        self._whole: dict[Indexed, None] = {}
        """Those that are found by nothing."""
        self._kinds: WeakValueDictionary[object, ConditionKind] = WeakValueDictionary()
        """The kinds of the others, by what they are equal in."""
        self._partly: dict[Sequence[Column], dict[Indexed, None]] = {}
        """Those of the others that have a rest, by the columns that they need."""
        self._tables: dict[tuple[Column, bool], PointTable | RangeTable] = {}
        """By column, and whether its values are looked up or ranges of them."""

    def __len__(self) -> int:
        """Return the number of different conditions."""
        return len(self._indexed)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that its conditions need."""
        return tuple(self._columns)

    @property
    def ids(self) -> Iterable[int]:
        """The predicates that have a condition, some of them several times."""
        return (id for one in self._indexed.values() for id in one.ids)

    def add(self, condition: RowCondition, id: int) -> None:
        """Add a condition of a predicate; the predicate may have it already."""
        one = self._indexed.get(condition)
        if one is None:
            one = self._indexed[condition] = Indexed(condition)
            self._new[one] = None
            self._columns.update(one.columns)
        one.ids[id] = None

    def remove(self, condition: RowCondition, id: int) -> None:
        """Remove a condition of a predicate; the predicate may have lost it already."""
        one = self._indexed.get(condition)
        if one is None:
            return
        one.ids.pop(id, None)
        if not one.ids:
            del self._indexed[condition]
            self._new.pop(one, None)
            self._take_out(one)
            self._forget_columns(one)

    def find(self, typed: TypedImages) -> ConditionLookup:
        """Return what is found in a batch, whose columns are decoded as far as they are not yet."""
        self._fit(typed)
        typed.decode(self._columns)
        found = ConditionLookup(typed, self._indexed, tuple(self._whole))
        for (column, _), table in self._tables.items():
            found.add(table.find(typed.column(column)), table.asking, typed.open_rows((column,)))
        # An unknown value may leave the rest of a condition undecided, also where the part looked up is NULL.
        for columns, ones in self._partly.items():
            if typed.misses_values(columns):
                open_ones = typed.open_rows(columns)
                for one in ones:
                    found.open_all(one, open_ones)
        return found

    def _fit(self, typed: TypedImages) -> None:
        """Fit all conditions to a schema that is new, or else those that are new."""
        schemas = typed.written
        is_same = len(schemas) == len(self._schemas) and all(
            one is other for one, other in zip(schemas, self._schemas, strict=True)
        )
        self._schemas = schemas
        for one in tuple(self._new if is_same else self._indexed.values()):
            row_filter: RowFilter | None = None
            with suppress(ConditionRefused, ColumnsChanged):  # its own subscriptions are told
                row_filter = typed.fitted(one.condition)
            if row_filter is not one.row_filter:
                self._take_out(one)
                self._forget_columns(one)
                one.fit(row_filter)
                self._columns.update(one.columns)
            if one.kind is None:
                self._put_in(one)
        self._new.clear()

    def _put_in(self, one: Indexed) -> None:
        part = one.part = self._chosen(one)
        rest = () if part is None else part.rest
        condition = one.condition
        kind = rest, tuple(one.columns), condition.asked, condition.is_granted
        one.kind = self._kinds.setdefault(kind, ConditionKind(*kind))
        if part is None:
            self._whole[one] = None
            return
        if rest:
            self._partly.setdefault(one.kind.columns, {})[one] = None
        by_values = part.values is not None
        table = self._tables.get((part.column, by_values))
        if table is None:
            table = PointTable() if by_values else RangeTable()
            self._tables[part.column, by_values] = table
        table.add(one)

    def _chosen(self, one: Indexed) -> LookupTerm | None:
        """Return what a condition is found by: of several values those that the fewest others ask for."""
        # So `state = 'open' AND tenant = 't17'` is found by the tenant, whichever comes first.
        if len(one.found_by) < 2:
            return one.found_by[0] if one.found_by else None

        def askers(part: LookupTerm) -> int:
            table = self._tables.get((part.column, True))
            assert part.values is not None
            return table.askers(part.values) if isinstance(table, PointTable) else 0

        return min(one.found_by, key=askers)

    def _take_out(self, one: Indexed) -> None:
        kind, part = one.kind, one.part
        if kind is None:
            return
        self._whole.pop(one, None)
        if part is not None:
            if part.rest:
                del self._partly[kind.columns][one]
                if not self._partly[kind.columns]:
                    del self._partly[kind.columns]
            key = part.column, part.values is not None
            table = self._tables[key]
            table.remove(one)
            if not table.asking:
                del self._tables[key]
        one.kind = one.part = None

    def _forget_columns(self, one: Indexed) -> None:
        self._columns.subtract(one.columns)
        for column in one.columns:
            if not self._columns[column]:
                del self._columns[column]


class Hits:
    """The conditions that one lookup table has matched."""

    def __init__(self, finder: Finder, open_rows: RowsFound) -> None:
        """Take it, and the rows that are for everybody of the table."""
        self._finder = finder
        self._open_rows = open_rows
        self.numbers: dict[Indexed, list[int]] = {}
        """By condition, what of the finder's is its own."""
        for number, owners in finder.owners():
            for one in owners:
                self.numbers.setdefault(one, []).append(number)

    @property
    def is_open(self) -> bool:
        """Return whether some rows are for everybody of the table."""
        return len(self._open_rows.places) > 0

    @property
    def grouped(self) -> GroupedRows | None:
        """All rows by number; None: some are of several numbers, or for everybody."""
        return None if self.is_open else self._finder.grouped

    def rows(self, count: int, numbers: Sequence[int]) -> RowsFound:
        """Return the rows of some numbers, and those for everybody; ``count`` rows there are."""
        if len(numbers) == 1 and not self.is_open:
            return self._finder.rows(numbers[0])
        return joined(count, [*map(self._finder.rows, numbers), self._open_rows])


class ConditionLookup:
    """The conditions of an index that may match something of a batch."""

    def __init__(
        self,
        typed: TypedImages,
        indexed: dict[RowCondition, Indexed],
        whole: Sequence[Indexed],
    ) -> None:
        """Begin with the conditions that are evaluated on every row."""
        self.typed = typed
        self.whole = whole
        self._indexed = indexed
        self._hits: list[Hits] = []
        self._open: dict[Indexed, RowsFound] = {}

    def add(self, finder: Finder, asking: Iterable[Indexed], open_rows: RowsFound) -> None:
        """Add what one table has found, and the rows that are for everybody of the table."""
        hits = Hits(finder, open_rows)
        if hits.is_open:
            for one in asking:
                hits.numbers.setdefault(one, [])
        self._hits.append(hits)

    def open_all(self, one: Indexed, open_rows: RowsFound) -> None:
        """Add rows that one condition has to be evaluated for in any case."""
        self._open[one] = open_rows

    def __iter__(self) -> Iterator[tuple[Indexed, Hits | None]]:
        """Yield the conditions that were found by a lookup, with their rows; None: to be evaluated."""
        for hits in self._hits:
            for one in hits.numbers:
                # A grant treats what is undecided in another way: that is done where rows are evaluated.
                is_judged = one in self._open or (hits.is_open and one.condition.is_granted)
                yield one, None if is_judged else hits
        for one, rows in self._open.items():
            if len(rows.places):
                yield one, None

    def places(self, condition: RowCondition) -> NDArray[np.intp] | None:
        """Return the rows that come into question for a condition, rising; None: every row does."""
        one = self._indexed.get(condition)
        if one is None or one.part is None:
            return None
        count = len(self.typed.rows)
        parts = [hits.rows(count, hits.numbers[one]) for hits in self._hits if one in hits.numbers]
        if one in self._open:
            parts.append(self._open[one])
        if not parts:
            return _NOTHING
        return parts[0].places if len(parts) == 1 else joined(count, parts).places
