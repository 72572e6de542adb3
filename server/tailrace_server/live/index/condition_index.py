"""An index of the conditions on one table: it finds the conditions that may match a batch, and their rows.

If a condition is an equality, an ``IN`` or a range on one column, alone or joined by AND with other parts, it
is true only where that part is true. So the part looks up the rows, and other rows are not evaluated::

    tenant = 't17'                 the values of `tenant` in the batch, each once ──▶ its rows
    price BETWEEN 2 AND 5          the values of `price` in the batch, sorted     ──▶ its rows
    tenant = 't17' AND price > 4   the values of `tenant` ──▶ rows; `price > 4` is evaluated on these
    name LIKE '%a%'                no lookup              ──▶ all rows are evaluated

A row is *open* if its before-image is missing or its value in the looked-up column is unknown. An open row
is a candidate for every condition. Only open rows cost more, not the rest of their batch.
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
    """The index of the conditions on one table."""

    def __init__(self) -> None:
        """Begin without conditions."""
        self._indexed: dict[RowCondition, Indexed] = {}
        self._columns: Counter[Column] = Counter()
        """The columns that conditions need, each with the number of conditions."""
        self._new: dict[Indexed, None] = {}
        """Conditions that are not bound to a schema yet."""
        self._schemas: Sequence[Sequence[Column]] = ()
        """The columns of the schemas to which all other conditions are bound."""
        self._whole: dict[Indexed, None] = {}
        """Conditions without a lookup; they are evaluated on every row."""
        self._kinds: WeakValueDictionary[object, ConditionKind] = WeakValueDictionary()
        """The kinds of conditions, by their attributes; equal kinds are one object."""
        self._partly: dict[Sequence[Column], dict[Indexed, None]] = {}
        """Conditions with a lookup and a rest, by the columns that the conditions need."""
        self._tables: dict[tuple[Column, bool], PointTable | RangeTable] = {}
        """The lookup tables, by column and True for values, False for ranges."""

    def __len__(self) -> int:
        """Return the number of different conditions."""
        return len(self._indexed)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that the conditions need."""
        return tuple(self._columns)

    @property
    def ids(self) -> Iterable[int]:
        """The ids of the predicates that have a condition; ids may be repeated."""
        return (id for one in self._indexed.values() for id in one.ids)

    def add(self, condition: RowCondition, id: int) -> None:
        """Add a condition of a predicate; nothing happens if the predicate has the condition already."""
        # Equal conditions of several predicates are one entry: they are looked up and evaluated once.
        one = self._indexed.get(condition)
        if one is None:
            one = self._indexed[condition] = Indexed(condition)
            self._new[one] = None
            self._columns.update(one.columns)
        one.ids[id] = None

    def remove(self, condition: RowCondition, id: int) -> None:
        """Remove a condition of a predicate; nothing happens if it was removed already."""
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
        """Look up the rows of a batch; columns that the conditions need are decoded first."""
        # Bind first: a new schema may change which columns the conditions need.
        self._fit(typed)
        typed.decode(self._columns)
        found = ConditionLookup(typed, self._indexed, tuple(self._whole))
        for (column, _), table in self._tables.items():
            found.add(table.find(typed.column(column)), table.asking, typed.open_rows((column,)))
        # An unknown value may leave the rest of a condition undecided, even where the looked-up column is NULL.
        # So rows with an unknown value in any column of the condition are candidates too.
        for columns, ones in self._partly.items():
            if typed.misses_values(columns):
                open_ones = typed.open_rows(columns)
                for one in ones:
                    found.open_all(one, open_ones)
        return found

    def _fit(self, typed: TypedImages) -> None:
        """Bind all conditions to the schemas of a batch, or only new ones if the schemas are known."""
        schemas = typed.written
        is_same = len(schemas) == len(self._schemas) and all(
            one is other for one, other in zip(schemas, self._schemas, strict=True)
        )
        self._schemas = schemas
        for one in tuple(self._new if is_same else self._indexed.values()):
            row_filter: RowFilter | None = None
            with suppress(
                ConditionRefused, ColumnsChanged
            ):  # evaluation raises it for its own subscriptions
                row_filter = typed.fitted(one.condition)
            # The columns or constants may have changed with the schema, so put the condition in anew.
            if row_filter is not one.row_filter:
                self._take_out(one)
                self._forget_columns(one)
                one.fit(row_filter)
                self._columns.update(one.columns)
            if one.kind is None:
                self._put_in(one)
        self._new.clear()

    def _put_in(self, one: Indexed) -> None:
        # 1. Choose the lookup, and share one kind with all conditions that differ only in the value.
        part = one.part = self._chosen(one)
        rest = () if part is None else part.rest
        condition = one.condition
        kind = rest, tuple(one.columns), condition.asked, condition.is_granted
        one.kind = self._kinds.setdefault(kind, ConditionKind(*kind))
        if part is None:
            self._whole[one] = None
            return
        # 2. Register the condition in the lookup table of its column.
        if rest:
            self._partly.setdefault(one.kind.columns, {})[one] = None
        by_values = part.values is not None
        table = self._tables.get((part.column, by_values))
        if table is None:
            table = PointTable() if by_values else RangeTable()
            self._tables[part.column, by_values] = table
        table.add(one)

    def _chosen(self, one: Indexed) -> LookupTerm | None:
        """Return the lookup of a condition: of several, the one whose values the fewest conditions share."""
        # So `state = 'open' AND tenant = 't17'` is looked up by the tenant, in whichever order it was written.
        if len(one.found_by) < 2:
            return one.found_by[0] if one.found_by else None

        def askers(part: LookupTerm) -> int:
            table = self._tables.get((part.column, True))
            assert part.values is not None
            return table.askers(part.values) if isinstance(table, PointTable) else 0

        return min(one.found_by, key=askers)

    def _take_out(self, one: Indexed) -> None:
        # A condition without a kind was never put into a table.
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
            # An empty table would still look up its column in every batch.
            if not table.asking:
                del self._tables[key]
        one.kind = one.part = None

    def _forget_columns(self, one: Indexed) -> None:
        self._columns.subtract(one.columns)
        for column in one.columns:
            if not self._columns[column]:
                del self._columns[column]


class Hits:
    """The conditions that one lookup table has matched in a batch."""

    def __init__(self, finder: Finder, open_rows: RowsFound) -> None:
        """Set the result of a lookup, and the open rows: candidates for each condition of the table."""
        self._finder = finder
        self._open_rows = open_rows
        self.numbers: dict[Indexed, list[int]] = {}
        """The finder's numbers that belong to each condition."""
        for number, owners in finder.owners():
            for one in owners:
                self.numbers.setdefault(one, []).append(number)

    @property
    def is_open(self) -> bool:
        """True if the table has open rows in this batch."""
        return len(self._open_rows.places) > 0

    @property
    def grouped(self) -> GroupedRows | None:
        """All rows, grouped by number; None if a row may have several numbers, or there are open rows."""
        return None if self.is_open else self._finder.grouped

    def rows(self, count: int, numbers: Sequence[int]) -> RowsFound:
        """Return the rows of some numbers, and the open rows; ``count`` is the number of rows in the batch."""
        # The usual case needs no union of rows.
        if len(numbers) == 1 and not self.is_open:
            return self._finder.rows(numbers[0])
        return joined(count, [*map(self._finder.rows, numbers), self._open_rows])


class ConditionLookup:
    """The conditions of an index that may match something in a batch."""

    def __init__(
        self,
        typed: TypedImages,
        indexed: dict[RowCondition, Indexed],
        whole: Sequence[Indexed],
    ) -> None:
        """Begin with ``whole``, the conditions that are evaluated on every row."""
        self.typed = typed
        self.whole = whole
        self._indexed = indexed
        self._hits: list[Hits] = []
        self._open: dict[Indexed, RowsFound] = {}

    def add(self, finder: Finder, asking: Iterable[Indexed], open_rows: RowsFound) -> None:
        """Add the matches of one table, whose conditions are ``asking``, and its open rows."""
        hits = Hits(finder, open_rows)
        if hits.is_open:
            for one in asking:
                hits.numbers.setdefault(one, [])
        self._hits.append(hits)

    def open_all(self, one: Indexed, open_rows: RowsFound) -> None:
        """Set the rows for which one condition must be evaluated, whatever the lookup says."""
        self._open[one] = open_rows

    def __iter__(self) -> Iterator[tuple[Indexed, Hits | None]]:
        """Yield each condition that may match, with its hits; None in place of hits: it must be evaluated."""
        for hits in self._hits:
            for one in hits.numbers:
                # A condition with a grant's part treats undecided rows differently; only evaluation does that.
                is_judged = one in self._open or (hits.is_open and one.condition.is_granted)
                yield one, None if is_judged else hits
        # A condition with a rest may match open rows that its lookup has not found.
        for one, rows in self._open.items():
            if len(rows.places):
                yield one, None

    def places(self, condition: RowCondition) -> NDArray[np.intp] | None:
        """Return the candidate rows of a condition in rising order; None: every row is a candidate."""
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
