"""The columnar path of `TransactionWriter`: many mutations become records without Python work per row.

A compiled loop finds the shape of each image (`record.image_shapes`). An image of a known shape is valid and
has no new column, so its row needs no further check. Another loop compares the images of updates whose two
images have the same names. Python handles the remaining rows with the functions of the row path: the first row
of each shape, images that the loop cannot decide on, updates whose images have different names, rows with given
``changed``, and values of declared types. Without compiled loops a writer uses the row path for all rows (ADR
0126).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import BODY_COLUMNS, decode_members
from tailrace_server.wal.record.image_differences import NAMES_AT_ONCE, compare
from tailrace_server.wal.record.image_shapes import Shapes, shapes_of
from tailrace_server.wal.record.input_rows import flags_of
from tailrace_server.wal.record.interleaving import Interleaved
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.record.mutation import columns_of, difference_of
from tailrace_server.wal.record.row_rules import REPEATED_KEY, first_repeated_key
from tailrace_server.wal.schema.records import record_rows, rows_batch
from tailrace_server.wal.segment.writer import with_dictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tailrace.schema import Schema
    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.wal.record.input_rows import InputRows
    from tailrace_server.wal.schema.records import SchemaRecord
    from tailrace_server.wal.schema.shown_columns import ShownColumns

    LeadText = Callable[[int, dict[str, int], Sequence[SchemaRecord]], bytes]
    """Returns the text of a lead, given the transaction's place, its record counts, and its schema changes."""


class TransactionRecords:
    """The records of transactions: each lead, then records of schema changes, then the mutations."""

    def __init__(
        self,
        rows: InputRows,
        hashes: npt.NDArray[np.uint64],
        changed: pa.ListArray,
        change: pa.BinaryArray,
        first: int,
        changes: dict[int, list[SchemaRecord]],
        lead_text: LeadText,
        written: int = 0,
    ) -> None:
        """Combine rows with the columns that were computed for them.

        Args:
            rows: The input rows.
            hashes: Key hash of each row.
            changed: Names of the changed columns of each row.
            change: The image ``change`` of each row.
            first: Version of the first transaction, relative to the commit.
            changes: Place of a transaction → its schema changes.
            lead_text: Returns the text of a lead.
            written: Number of records that the first transaction has already, its lead included; 0: none.
        """
        self._rows = rows
        self._written = written
        self._hashes = hashes
        self._changed = changed
        self._change = change
        self._first = first
        self._changes = changes
        self._lead_text = lead_text
        self._bounds = [*rows.starts.tolist(), len(rows)]

    def batches(self) -> list[pa.RecordBatch]:
        """Return the records; a new batch begins at each schema change."""
        # A transaction that changes the schema begins a run. Its lead and schema records are a batch of their
        # own. Its rows follow without a lead, with indexes raised by the number of schema records.
        found = []
        count = len(self._rows.starts)
        begins = sorted({0, *self._changes})
        for start, stop in zip(begins, [*begins[1:], count], strict=True):
            changes = self._changes.get(start)
            if changes:
                lead = self._lead(start)
                version = self._first + start
                area, operation = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
                row = (version, 0, area, operation, None, None, None, None, None, lead)
                found.append(rows_batch([row, *record_rows(version, changes)]))
            before = 1 + len(changes) if changes else self._written if start == 0 else 0
            found.append(self._run(start, stop, before))
        return found

    def _lead(self, place: int) -> bytes:
        changes = self._changes.get(place, [])
        names = [each.entity_type for each in changes]
        start, stop = self._bounds[place], self._bounds[place + 1]
        counts = Counter(names)
        types = self._rows.entity_types
        if len(types) == 1:
            counts[types[0]] += stop - start
        else:
            for code, number in Counter(self._rows.type_codes[start:stop].tolist()).items():
                counts[types[code]] += number
        return self._lead_text(place, dict(counts), changes)

    def _run(self, start: int, stop: int, written: int) -> pa.RecordBatch:
        """Return the records of the transactions from ``start`` to ``stop``.

        If the first transaction has ``written`` records in batches before, its lead is one of them.
        """
        rows, bounds = self._rows, self._bounds
        begin, end = bounds[start], bounds[stop]
        starts = rows.starts[start:stop]
        sizes = np.diff(starts, append=end)
        versions = np.arange(start, stop, dtype=np.int64) + self._first
        # The index restarts at 1 with each transaction: subtract the place of the transaction's first row.
        index = np.arange(1, end - begin + 1) - np.repeat(starts - begin, sizes)
        index[: sizes[0]] += max(0, written - 1)
        own = slice(1 if written else 0, None)
        leads = versions[own]
        out = Interleaved(end - begin, starts[own] - begin)
        texts = [self._lead(place) for place in range(start, stop)[own]]
        area, operation = Area.INFRASTRUCTURE, Operation.TRANSACTION
        part = slice(begin, end)
        arrays = {
            "version": out.numbers(np.repeat(versions, sizes), leads),
            "index": out.numbers(index.astype(np.int32), np.zeros(len(leads), np.int32)),
            "area": out.numbers(
                np.full(end - begin, Area.DATA, np.uint8), np.full(len(leads), area, np.uint8)
            ),
            "operation": out.numbers(
                rows.operations[part], np.full(len(leads), operation, np.uint8)
            ),
            "entity_type": out.names(rows.entity_types, rows.type_codes[part]),
            "primary_key": out.nulls(rows.keys[part]),
            "changed": out.nulls(self._changed[part]),
            "change": out.nulls(self._change[part]),
            "before": out.nulls(rows.before[part]),
            "after": out.texts(rows.after[part], pa.array(texts, pa.binary())),
        }
        arrays["key_hash"] = out.numbers(self._hashes[part], np.zeros(len(leads), np.uint64))
        return pa.RecordBatch.from_pydict(arrays)


_SHAPES_MAX: Final = 65_536
"""Maximum number of shapes to remember; beyond that, all shapes are forgotten."""


class ColumnarRecords:
    """Converts input rows to records, and notes the columns that occur in their images."""

    def __init__(self, shown: ShownColumns) -> None:
        """Note the columns of images in ``shown``."""
        self._shown = shown
        self._groups: dict[str, int] = {}
        """Entity type → number that keeps its shapes apart from those of other entity types."""
        self._known: set[int] = set()
        """Shapes whose columns and types are noted already."""
        self._names: dict[int, tuple[str, ...] | None] = {}
        """Hash of a sequence of column names → the names; None if one name occurs twice."""

    def forget(self) -> None:
        """Forget all shapes; call this when noted columns are rolled back."""
        self._known.clear()

    def append(
        self,
        rows: InputRows,
        loops: Loops,
        first: int,
        lead_text: LeadText,
        own: list[SchemaRecord] | None = None,
        written: int = 0,
    ) -> tuple[list[pa.RecordBatch], list[tuple[int, Schema]]]:
        """Return the records of whole transactions, and the schemas that begin with one of them.

        Args:
            rows: The rows, checked except for their images.
            loops: The compiled loops.
            first: Version of the first transaction, relative to the commit.
            lead_text: Returns the text of a lead.
            own: Schema changes of the first transaction that the caller has noted.
            written: As for `TransactionRecords`.

        Raises:
            InvalidRequest: A transaction has a key twice, an image is not a UTF-8 JSON object or breaks a rule,
                or a lead cannot be written. Columns of the rows may have been noted by then: the caller must
                roll them back.
        """
        # 1. Check all images, and select the rows that Python has to check.
        groups = np.array([self._group(name) for name in rows.entity_types], np.int64)[
            rows.type_codes
        ]
        seeds = np.array([type_seed(name) for name in rows.entity_types], np.uint64)
        hashes = key_hashes(seeds[rows.type_codes], rows.keys)
        repeated = first_repeated_key(rows.type_codes, rows.keys, rows.starts, hashes)
        if repeated is not None:
            raise InvalidRequest(f"column primary_key of {rows.name_of(repeated)} {REPEATED_KEY}")
        before, after = (shapes_of(loops, each, groups) for each in (rows.before, rows.after))
        given = flags_of(rows.changed.is_valid())
        has = {name: flags_of(getattr(rows, name).is_valid()) for name in BODY_COLUMNS}
        updates = has["before"] & has["after"] & ~given
        alike = updates & (after.names == before.names) & (after.names != 0)
        alike &= self._plain(rows, alike, after)
        derived = self._check(rows, loops, groups, before, after, updates & ~alike, has)
        # 2. Note the new columns of each transaction, and derive its schema changes.
        marks = (has["before"] & self._new(before)) | (has["after"] & self._new(after)) | given
        self._mark_new_types(rows, marks)
        changes, schemas = self._note(rows, marks, before, after, first)
        # 3. Compute the changed columns of updates, in the order of the schema, which is known only now.
        changed, change = self._changes(rows, loops, alike, after, derived, given)
        # 4. Build the records.
        if own:
            changes[0] = [*own, *changes.get(0, ())]
        records = TransactionRecords(
            rows, hashes, changed, change, first, changes, lead_text, written
        )
        return records.batches(), schemas

    def _group(self, entity_type: str) -> int:
        return self._groups.setdefault(entity_type, len(self._groups))

    def _plain(
        self, rows: InputRows, marks: npt.NDArray[np.bool_], after: Shapes
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that compiled code can compare: each name occurs once in their images.

        Names are looked up for the marked rows, and for at most `NAMES_AT_ONCE` sequences of names.
        """
        if not marks.any():
            return marks
        if len(self._names) >= _SHAPES_MAX:
            self._names.clear()
        plain = []
        hashes = after.names[marks]
        for each in pc.unique(pa.array(hashes)).to_pylist()[:NAMES_AT_ONCE]:
            if each not in self._names:
                row = int(np.flatnonzero(marks)[np.argmax(hashes == each)])
                names = tuple(decode_members(rows.after[row].as_py()))
                self._names[each] = names if len(names) == after.members[row] else None
            if self._names[each] is not None:
                plain.append(each)
        return np.isin(after.names, np.array(plain, np.uint64))

    def _check(
        self,
        rows: InputRows,
        loops: Loops,
        groups: npt.NDArray[np.int64],
        before: Shapes,
        after: Shapes,
        updates: npt.NDArray[np.bool_],
        has: dict[str, npt.NDArray[np.bool_]],
    ) -> dict[int, tuple[tuple[str, ...], bytes]]:
        """Check the rows that compiled code leaves to Python; return row → changed columns and ``change``.

        Only the rows of ``updates`` are in the result.

        Args:
            rows: The rows.
            loops: The compiled loops.
            groups: Group of each row's entity type.
            before: Shapes of the images before.
            after: Shapes of the images after.
            updates: Mask of the updates to compare here.
            has: Body column → mask of the rows that have it.
        """
        shown = self._shown
        marks = {
            "change": shapes_of(loops, rows.change, groups).to_examine(has["change"]),
            "before": has["before"] & (before.shapes == 0),
            "after": has["after"] & (after.shapes == 0),
        }
        ruled = np.array([shown.rules.concern(name) for name in rows.entity_types])[rows.type_codes]
        ruled &= has["before"] | has["after"]
        derived = {}
        looked_at = marks["change"] | marks["before"] | marks["after"] | ruled | updates
        for row in np.flatnonzero(looked_at).tolist():
            for name in BODY_COLUMNS:
                if marks[name][row]:
                    _members(rows, name, row)
            if not (ruled[row] or updates[row]):
                continue
            images = [_members(rows, name, row) for name in ("before", "after")]
            if ruled[row]:
                key = rows.keys[row].as_py()
                change = rows.change[row].as_py()
                fault = shown.rules.fault_of(rows.type_of(row), key, *images, change=change)
                if fault is not None:
                    column, why = fault
                    raise InvalidRequest(f"column {column} of {rows.name_of(row)}: {why}")
            if updates[row]:
                derived[row] = difference_of(*images)
        return derived

    def _new(self, images: Shapes) -> npt.NDArray[np.bool_]:
        """Return a mask of the images whose shape is unknown."""
        shapes = images.shapes
        # The usual case is one known shape in all rows: then no distinct shapes have to be found.
        if len(shapes) and int(shapes[0]) in self._known and (shapes == shapes[0]).all():
            return np.zeros(len(shapes), np.bool_)
        unknown = [
            shape for shape in pc.unique(pa.array(shapes)).to_pylist() if shape not in self._known
        ]
        if not unknown:
            return np.zeros(len(shapes), np.bool_)
        return np.isin(shapes, np.array(unknown, np.uint64))

    def _mark_new_types(self, rows: InputRows, marks: npt.NDArray[np.bool_]) -> None:
        """Mark the first row of each entity type that has not been noted yet."""
        if self._shown.entity_types.issuperset(rows.entity_types):
            return
        codes, places = np.unique(rows.type_codes, return_index=True)
        for code, place in zip(codes.tolist(), places.tolist(), strict=True):
            marks[place] |= rows.entity_types[code] not in self._shown.entity_types

    def _note(
        self,
        rows: InputRows,
        marks: npt.NDArray[np.bool_],
        before: Shapes,
        after: Shapes,
        first: int,
    ) -> tuple[dict[int, list[SchemaRecord]], list[tuple[int, Schema]]]:
        """Note the columns of marked rows; return schema changes by transaction, and the new schemas."""
        shown = self._shown
        changes: dict[int, list[SchemaRecord]] = {}
        schemas: list[tuple[int, Schema]] = []
        if not marks.any():
            return changes, schemas
        marked = np.flatnonzero(marks)
        edges = np.searchsorted(marked, [*rows.starts.tolist(), len(rows)])
        for place in np.flatnonzero(np.diff(edges)).tolist():
            for row in marked[edges[place] : edges[place + 1]].tolist():
                names = rows.changed[row].as_py() or ()
                images = []
                for name, shapes in (("after", after.shapes), ("before", before.shapes)):
                    shape, column = int(shapes[row]), getattr(rows, name)
                    if column[row].is_valid and (not shape or shape not in self._known):
                        image = column[row].as_py()
                        images.append(image)
                        if shape:  # compiled code does not compare the names of an image
                            _members(rows, name, row)
                        # A placeholder hides the type of its value: another image of this shape must show it.
                        if shape and shown.teaches(image):
                            if len(self._known) >= _SHAPES_MAX:
                                self._known.clear()
                            self._known.add(shape)
                shown.note(rows.type_of(row), images, names)
            found = shown.changes()
            if found:
                changes[place] = found
                schemas.append((first + place, shown.finish()))
        return changes, schemas

    def _changes(
        self,
        rows: InputRows,
        loops: Loops,
        alike: npt.NDArray[np.bool_],
        after: Shapes,
        derived: dict[int, tuple[tuple[str, ...], bytes]],
        given: npt.NDArray[np.bool_],
    ) -> tuple[pa.Array, pa.Array]:
        """Return ``changed`` (lists of dictionary-encoded names) and ``change`` of all rows."""
        shown, total = self._shown, len(rows)
        names: list[str] = []
        lists = pa.nulls(total, pa.list_(pa.int32()))
        texts = rows.change
        singly = {row: each for row, (each, _) in derived.items()}
        singly |= {row: tuple(rows.changed[row].as_py()) for row in np.flatnonzero(given).tolist()}
        # 1. Compare updates in compiled code. Codes follow the order of names in the image; rows in which that
        #    is not the schema's order are sorted in step 2.
        if alike.any():
            at = np.flatnonzero(alike)
            parts = (at, after.members[at], after.names[at], self._names)
            found = compare(loops, rows.before, rows.after, *parts)
            names, lists, texts = found.names, found.lists(total), found.changes(total)
            if rows.change.null_count < total:
                texts = pc.coalesce(rows.change, texts)
            for row in self._out_of_order(rows, alike, after):
                singly[row] = tuple(names[code] for code in lists[row].as_py())
        # 2. Set the names of all other rows one by one.
        if singly:
            places = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
            values = lists.to_pylist()
            for row, each in singly.items():
                ordered = shown.in_order(rows.type_of(row), each)
                for name in ordered:
                    if name not in places:
                        places[name] = len(names)
                        names.append(name)
                values[row] = [places[name] for name in ordered]
            lists = pa.array(values, pa.list_(pa.int32()))
        if derived:
            bodies = [derived[row][1] if row in derived else None for row in range(total)]
            texts = pc.coalesce(texts, pa.array(bodies, pa.binary()))
        return with_dictionary(lists, pa.array(names, pa.utf8())), texts

    def _out_of_order(
        self, rows: InputRows, alike: npt.NDArray[np.bool_], after: Shapes
    ) -> list[int]:
        """Return the rows of updates whose names are not in the schema's order."""
        found: list[int] = []
        hashes = np.where(alike, after.names, np.uint64(0))
        for each in pc.unique(pa.array(hashes[alike])).to_pylist():
            at = np.flatnonzero(hashes == each)
            names = self._names[each] or ()
            if self._shown.in_order(rows.type_of(at[0]), names) != names:
                found += at.tolist()
        return found


def _members(rows: InputRows, column: str, row: int) -> Any:
    """Return the columns of an image; an error names the row."""
    try:
        return columns_of(getattr(rows, column)[row].as_py())
    except InvalidRequest as error:
        raise InvalidRequest(f"column {column} of {rows.name_of(row)}: {error}") from error
