"""The records of transactions, by columns: tasks need no Python object for a row.

The net effect of a transaction on a row (`consolidate`) follows from the first and the last change of the row,
if the transaction is *plain*:

* no truncate, no change of a key, no row without a key, no change without its image after;
* no placeholder in an image, and no alteration of a table within the transaction;
* no change that is older than an earlier one of the transaction.

`RecordBuilder` writes the other transactions, and all of them without compiled loops. Both ways give equal
records and sightings.

Images are not joined to one array (`placed_rows`). They are copied in slices of `_SLICE_BYTES`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace_server.machine_code.loader import loops
from tailrace_server.pipeline.catalog.record_table import ROW_SCHEMA
from tailrace_server.pipeline.input.change import (
    DELETE,
    INSERT,
    READ,
    TRUNCATE,
    positions_of,
)
from tailrace_server.pipeline.transactions.placed_rows import (
    ImageArrays,
    PlacedRows,
    are_below,
    by_version,
    objects_of,
)
from tailrace_server.pipeline.transactions.records import lead
from tailrace_server.wal.record.image_differences import differences_of
from tailrace_server.wal.record.image_shapes import shapes_of
from tailrace_server.wal.record.images import members
from tailrace_server.wal.record.input_rows import flags_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.pipeline.catalog.columns import ColumnInference
    from tailrace_server.pipeline.transactions.grouping import Released
    from tailrace_server.pipeline.transactions.records import RecordBuilder
    from tailrace_server.wal.record.unavailable import Unavailable

    Longs = npt.NDArray[np.int64]
    Marks = npt.NDArray[np.bool_]

_SLICE_BYTES: Final = 32 << 20
_SHAPES_MAX: Final = 65_536


class _Effects(NamedTuple):
    """The net effects of plain transactions on rows, in the order of their records."""

    first: Longs
    """Place in `PlacedRows` of the first change of the row in its transaction."""
    last: Longs
    """Place of the last change."""
    existed: Marks
    exists: Marks

    def chosen(self, which: Any) -> _Effects:
        """Return some of the effects."""
        return _Effects(*(each[which] for each in self))

    @classmethod
    def of(cls, rows: PlacedRows, plain: Marks) -> _Effects:
        """Return the effects of the transactions in the mask ``plain``."""
        places = np.flatnonzero(plain[rows.versions])
        keys = pc.dictionary_encode(rows.keys)
        codes = keys.indices.fill_null(0).to_numpy().astype(np.int64)
        codes += (rows.versions * len(rows.names) + rows.types) * (len(keys.dictionary) + 1)
        # A stable sort: the changes of a row stay in their order.
        places = places[np.argsort(codes[places], kind="stable")]
        begins = np.diff(codes[places], prepend=-1) != 0
        first, last = places[begins], places[np.roll(begins, -1)]
        order = np.argsort(last)
        first, last = first[order], last[order]
        existed = ~np.isin(rows.operations[first], (INSERT, READ))
        exists = rows.operations[last] != DELETE
        return cls(first, last, existed, exists).chosen(existed | exists)


class _Slice(NamedTuple):
    """Some effects, without updates that change nothing, and parts of their records."""

    effects: _Effects
    changed: pa.Array
    change: pa.Array


class _Report(NamedTuple):
    """A report to `ColumnInference`; reports sort in the order in which `RecordBuilder` makes them."""

    version: int
    is_image: bool
    place: int
    make: Callable[[], None]


class ColumnarBuilder:
    """Makes the records of the consecutive transactions of one segment."""

    def __init__(
        self,
        builder: RecordBuilder,
        columns: ColumnInference,
        unavailable: Unavailable,
        *,
        checks_order: bool,
    ) -> None:
        """Begin at version 0.

        Args:
            builder: Makes the records of transactions that are not plain. It counts and fills nothing.
            columns: Collects the columns of all images, also for ``builder``.
            unavailable: Recognizes placeholders for values that the source did not send.
            checks_order: True if a change that is older than an earlier one goes to quarantine.
        """
        self._builder = builder
        self._columns = columns
        self._unavailable = unavailable
        self._checks_order = checks_order
        self._groups: dict[str, int] = {}
        """Entity type → a number that keeps its shapes apart from those of others."""
        self._shapes: set[int] = set()
        """The shapes of images whose columns are reported."""

    def tables(
        self, plans: Sequence[Released], tables: Sequence[pa.RecordBatch], first: int
    ) -> Iterator[pa.Table]:
        """Yield the records of some transactions, as tables of `ROW_SCHEMA`.

        Args:
            plans: The transactions.
            tables: Their rows, of `PLACED`.
            first: The version of the first transaction in these rows.
        """
        begun = self._builder.version
        machine = loops(sum(map(len, tables)))
        if machine is None or not tables:
            for plan, changes in zip(
                plans, by_version(tables, first, first + len(plans)), strict=True
            ):
                self._builder.add(plan, changes)
            yield self._builder.take()
            return
        # 1. Find the plain transactions, and compare the images of their rows.
        rows = PlacedRows.of(tables, first)
        before, after = (
            ImageArrays([each.column(name) for each in tables]) for name in ("before", "after")
        )
        plain, reports = self._examined(plans, rows, before, after)
        effects = _Effects.of(rows, plain)
        slices = [
            self._compared(machine, rows, before, after, effects.chosen(some), reports)
            for some in _slices(_sizes(effects, rows, before, after))
        ]
        # 2. Report columns in version order, and make the records of the other transactions.
        others: dict[int, pa.Table] = {}
        objects = objects_of(tables, first, plain)
        reports.sort(key=lambda each: (each.version, each.is_image, each.place), reverse=True)
        for version in [*np.flatnonzero(~plain).tolist(), len(plans)]:
            while reports and reports[-1].version < version:
                reports.pop().make()
            if version < len(plans):
                self._builder.version = begun + version
                self._builder.add(plans[version], objects.pop(version, []))
                others[version] = self._builder.take()
        self._builder.version = begun + len(plans)
        # 3. Join all records.
        yield from _joined(plans, begun, plain, rows, before, after, slices, others)

    def _examined(
        self, plans: Sequence[Released], rows: PlacedRows, before: ImageArrays, after: ImageArrays
    ) -> tuple[Marks, list[_Report]]:
        """Return a mask of the plain transactions, and the reports of their listings."""
        # 1. Rows that need objects.
        has_after = after.are_valid[rows.numbers]
        special = rows.moved | (rows.operations == TRUNCATE) | flags_of(rows.keys.is_null())
        special |= (rows.operations != DELETE) & ~has_after
        for images in (before, after):
            special |= images.with_texts(self._unavailable)[rows.numbers]
        if self._checks_order:
            positions = positions_of(rows.places)
            unplaced = (positions == 0).all(1)
            falls = are_below(positions[1:], positions[:-1]) | (unplaced[1:] != unplaced[:-1])
            special[1:] |= falls & (rows.versions[1:] == rows.versions[:-1])
        plain = np.ones(len(plans), np.bool_)
        plain[rows.versions[special]] = False
        # 2. Listings. Of the rows of one type, only those whose listing differs from the previous one count.
        listed = np.flatnonzero(flags_of(rows.listings.is_valid()))
        listed = listed[np.argsort(rows.types[listed], kind="stable")]
        encoded = pc.dictionary_encode(rows.listings.take(pa.array(listed)))
        codes, texts = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
        types, versions = rows.types[listed], rows.versions[listed]
        late = np.array([each.late_of is not None for each in plans], np.bool_)[versions]
        same = types[1:] == types[:-1]
        altered = same & (versions[1:] == versions[:-1]) & (codes[1:] != codes[:-1])
        plain[versions[1:][altered]] = False
        repeated = same & (codes[1:] == codes[:-1]) & (late[1:] == late[:-1])
        begins = np.concatenate([np.ones(min(1, len(listed)), np.bool_), ~repeated])
        reports = []
        for at in np.flatnonzero(begins & plain[versions]).tolist():
            version, entity_type = int(versions[at]), rows.names[types[at]]
            told = partial(
                self._columns.announce,
                *(version + self._builder.version, entity_type, texts[codes[at]]),
                late=bool(late[at]),
            )
            reports.append(_Report(version, False, int(listed[at]), told))
        return plain, reports

    def _compared(
        self,
        machine: Loops,
        rows: PlacedRows,
        before: ImageArrays,
        after: ImageArrays,
        effects: _Effects,
        reports: list[_Report],
    ) -> _Slice:
        """Compare the images of some effects; add the reports of their columns."""
        old, new = _images_of(effects, rows, before, after)
        found = differences_of(old, new)
        names = pa.array(found.names, pa.string()).take(found.changed.values)
        changed = pa.ListArray.from_arrays(
            found.changed.offsets, names, mask=found.changed.is_null()
        )
        has_old = flags_of(old.is_valid())
        updates = effects.existed & effects.exists
        kept = ~(updates & has_old & (pc.list_value_length(changed).fill_null(0).to_numpy() == 0))
        # 1. An update whose old image is unknown may have changed every column.
        unknown = updates & ~has_old
        groups = np.array([self._group(name) for name in rows.names], np.int64)[
            rows.types[effects.last]
        ]
        images = pc.coalesce(new, old)
        shapes = shapes_of(machine, images, groups)
        if unknown.any():
            changed = _with_all_names(changed, images, unknown, shapes.names)
        # 2. Report the columns of the first image of each shape, and of all images that have to be parsed. A
        #    removal without an image has a shape of its own, below those of images, which are odd.
        known = shapes.shapes.copy()
        absent = flags_of(images.is_null())
        known[absent] = (groups[absent] * 2 + 2).astype(np.uint64)
        suspects = kept & ((known == 0) | found.parsed)
        _, begins = np.unique(known[kept], return_index=True)
        begins = np.flatnonzero(kept)[begins]
        is_new = [shape not in self._shapes for shape in known[begins].tolist()]
        suspects[begins] |= np.array(is_new, np.bool_)
        if len(self._shapes) > _SHAPES_MAX:
            self._shapes.clear()
        self._shapes.update(known[begins].tolist())
        self._shapes.discard(0)
        for row in np.flatnonzero(suspects).tolist():
            place = int(effects.last[row])
            version = int(rows.versions[place])
            told = partial(
                self._columns.observe,
                *(version + self._builder.version, rows.names[rows.types[place]]),
                *(images[row].as_py(), changed[row].as_py() or ()),
            )
            reports.append(_Report(version, True, place, told))
        # 3. Note unknown changes and removals, for the commit.
        removals = kept & ~effects.exists
        lists = kept & updates
        for noted, which in ((self._builder.removals, removals), (self._builder.updates, lists)):
            for code in np.unique(rows.types[effects.last[which]]).tolist():
                lacks = bool((which & ~has_old)[rows.types[effects.last] == code].any())
                noted[rows.names[code]] = noted.get(rows.names[code], False) or lacks
        wanted = pa.array(np.flatnonzero(kept))
        return _Slice(effects.chosen(kept), changed.take(wanted), found.change.take(wanted))

    def _group(self, entity_type: str) -> int:
        return self._groups.setdefault(entity_type, len(self._groups))


def _with_all_names(
    changed: pa.ListArray, images: pa.Array, which: Marks, hashes: npt.NDArray[np.uint64]
) -> pa.ListArray:
    """Return lists of names in which some lists are replaced by all names of the image."""
    places = np.arange(len(changed))
    found: dict[int, int] = {}
    lists: list[list[str]] = []
    for row in np.flatnonzero(which).tolist():
        name = int(hashes[row]) or -row - 1  # 0: the image has to be parsed
        if name not in found:
            found[name] = len(changed) + len(lists)
            lists.append([*members(images[row].as_py())])
        places[row] = found[name]
    return pa.concat_arrays([changed, pa.array(lists, changed.type)]).take(pa.array(places))


def _joined(
    plans: Sequence[Released],
    begun: int,
    plain: Marks,
    rows: PlacedRows,
    before: ImageArrays,
    after: ImageArrays,
    slices: Sequence[_Slice],
    others: dict[int, pa.Table],
) -> Iterator[pa.Table]:
    """Yield the records of all transactions in order.

    Args:
        plans: The transactions.
        begun: The version of the first one in the segment.
        plain: Mask of the plain transactions.
        rows: The rows of all transactions.
        before: The images before the changes.
        after: The images after the changes.
        slices: The effects of plain transactions.
        others: Place of each other transaction → its records.
    """
    effects = _Effects(*map(np.concatenate, zip(*(each.effects for each in slices), strict=True)))
    changed, change = (ImageArrays([each[part] for each in slices]) for part in (1, 2))
    versions, types = rows.versions[effects.last], rows.types[effects.last]
    # 1. The lead of a version counts its records by entity type, in the order of their first ones.
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    width = len(rows.names)
    pairs, firsts, numbers = np.unique(
        versions * width + types, return_index=True, return_counts=True
    )
    for at in np.argsort(firsts).tolist():
        version, code = divmod(int(pairs[at]), width)
        counts[version][rows.names[code]] = int(numbers[at])
    places = np.flatnonzero(plain)
    leads = [lead(plans[place], counts.get(place, {})) for place in places.tolist()]
    # 2. Put leads before effects: -1 stands for a lead, whose index is 0. An effect without images is added at
    #    the end, for leads.
    starts = np.searchsorted(versions, places)
    at = np.insert(np.arange(len(versions)), starts, -1)
    of_record = np.insert(versions, starts, places)
    indexes = np.arange(len(at)) - np.searchsorted(of_record, of_record)
    sizes = np.insert(_sizes(effects, rows, before, after), starts, [*map(len, leads)])
    first, last = (np.append(each, 0) for each in effects[:2])
    existed, exists = (np.append(each, False) for each in effects[2:])
    effects = _Effects(first, last, existed, exists)
    texts = iter(leads)
    left = sorted(others, reverse=True)
    names = pa.array(rows.names, pa.string())
    for some in _slices(sizes):
        row = at[some]
        is_lead = row < 0
        place = effects.last[row]
        old, new = _images_of(effects.chosen(row), rows, before, after)
        own = pa.array([next(texts) for _ in range(int(is_lead.sum()))], pa.binary())
        operations = np.where(effects.exists[row], Operation.UPSERT, Operation.REMOVE)
        table = pa.table(
            [
                pa.array(of_record[some] + begun),
                pa.array(indexes[some]),
                pa.array(np.where(is_lead, Area.INFRASTRUCTURE, Area.DATA)),
                pa.array(np.where(is_lead, Operation.TRANSACTION, operations)),
                names.take(pa.array(rows.types[place], mask=is_lead)),
                rows.keys.take(pa.array(place, mask=is_lead)),
                changed.take(row),
                change.take(row),
                old,
                pc.replace_with_mask(new, pa.array(is_lead), own),
            ],
            names=ROW_SCHEMA.names,
        ).cast(ROW_SCHEMA)
        # 3. Insert the records of other transactions.
        parts, done = [], 0
        is_last = some.stop == len(at)
        while left and (is_last or left[-1] < of_record[some.stop]):
            version = left.pop()
            stop = int(np.searchsorted(of_record[some], version))
            parts += [table.slice(done, stop - done), others[version]]
            done = stop
        yield pa.concat_tables([*parts, table.slice(done)]).combine_chunks()


def _images_of(
    effects: _Effects, rows: PlacedRows, before: ImageArrays, after: ImageArrays
) -> tuple[pa.Array, pa.Array]:
    """Return the images before and after some effects; null where there is none."""
    old = np.where(effects.existed, rows.numbers[effects.first], -1)
    new = np.where(effects.exists, rows.numbers[effects.last], -1)
    return before.take(old), after.take(new)


def _sizes(effects: _Effects, rows: PlacedRows, before: ImageArrays, after: ImageArrays) -> Longs:
    """Return the size of the images of each effect in bytes."""
    old = before.sizes[rows.numbers[effects.first]] * effects.existed
    return old + after.sizes[rows.numbers[effects.last]] * effects.exists


def _slices(sizes: Longs) -> Iterator[slice]:
    """Yield slices of rows of about `_SLICE_BYTES`, at least one."""
    parts = np.cumsum(sizes) // _SLICE_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(sizes)]
    for start, stop in itertools.pairwise(bounds):
        yield slice(start, stop)
