"""When a row is due: read from its image or from the commit of its last change, and remembered in 16 bytes.

=========================================  ================================================================
``ttl`` names a column                     due
=========================================  ================================================================
TIMESTAMP WITH TIME ZONE                   at that moment
TIMESTAMP                                  at that moment in UTC
DATE                                       when that day has ended in UTC
null, or no such column in the image       never
any other value, or one that was not sent  never; the row is counted and reported
=========================================  ================================================================

A value is read by the column of its own version. Inferred values are read as they are declared now.

`DueRows` identifies rows by the hash of their key. The last entry of a hash counts, so a row that was changed
is due later, and a row that was removed is not due. If a table has more rows than the bound, the rows that are
due first are kept, and the *horizon* says up to when the list is complete::

    kept       ●●● ●●●●●● ●● ●●●●│
    horizon                      │  rows that are due from here on may be missing
    now          ▲
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace.typed.column_values import UNITS
from tailrace_server.machine_code.loader import loops
from tailrace_server.typed.forms import Misfit, form_of, shown
from tailrace_server.typed.values import ABSENT, Members

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

NEVER: Final = (1 << 63) - 1
"""When a row is due that is never due, µs."""
_ROWS_MAX: Final = 1 << 21
_UNSORTED_MAX: Final = 1 << 16


class DueRows:
    """Those of one table. Not thread-safe."""

    def __init__(self, rows_max: int = _ROWS_MAX) -> None:
        """Begin without rows.

        Args:
            rows_max: Rows that are kept.
        """
        self._rows_max = rows_max
        self._hashes = np.zeros(0, np.uint64)
        """Sorted; each once."""
        self._due = np.zeros(0, np.int64)
        """When each row is due, µs; NEVER for one that is to be dropped."""
        self._new: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
        """The entries since the last sort, in their order."""
        self._new_rows = 0
        self.horizon = NEVER
        """No row is missing that is due before this time, µs."""

    def __len__(self) -> int:
        """Return how many rows are kept."""
        self._settle()
        return len(self._hashes)

    def say(self, hashes: npt.NDArray[np.uint64], due: npt.NDArray[np.int64]) -> None:
        """Say when rows are due; of a hash that comes again the last word counts.

        Args:
            hashes: Of the keys, shape (n,).
            due: When each is due, µs; NEVER takes it away. Shape (n,).
        """
        self._new.append((hashes, due))
        self._new_rows += len(hashes)
        if self._new_rows >= _UNSORTED_MAX:
            self._settle()

    def clear(self) -> None:
        """Forget all rows: there are none."""
        self._hashes, self._due = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._new, self._new_rows = [], 0
        self.horizon = NEVER

    @property
    def first(self) -> int:
        """When the first row is due, µs; NEVER where none is."""
        self._settle()
        return int(self._due.min(initial=NEVER))

    def until(self, now: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of the rows that are due at a time or before, sorted, shape (n,)."""
        self._settle()
        return self._hashes[self._due <= now]

    def _settle(self) -> None:
        """Sort in what is new, and keep to the bound."""
        if not self._new:
            return
        hashes, due = (np.concatenate(columns) for columns in zip(*self._new, strict=True))
        self._new, self._new_rows = [], 0
        # 1. The last word of each hash: `unique` gives the first place, so it is asked from behind.
        hashes, last = np.unique(hashes[::-1], return_index=True)
        due = due[::-1][last]
        due = np.where(due >= self.horizon, NEVER, due)
        # 2. Those that are known are said anew in place, the others are put between them.
        places = np.searchsorted(self._hashes, hashes)
        known = np.zeros(len(hashes), np.bool_)
        inside = places < len(self._hashes)
        known[inside] = self._hashes[places[inside]] == hashes[inside]
        self._due[places[known]] = due[known]
        added = ~known & (due < NEVER)
        self._hashes = np.insert(self._hashes, places[added], hashes[added])
        self._due = np.insert(self._due, places[added], due[added])
        # 3. Rows that are not due any more go, and above the bound those that are due last.
        kept = self._due < NEVER
        if not kept.all():
            self._hashes, self._due = self._hashes[kept], self._due[kept]
        if len(self._due) > self._rows_max:
            # Half of the room is freed, so that a table that grows by a row does not sort at each of them.
            first = np.sort(np.argpartition(self._due, self._rows_max // 2)[: self._rows_max // 2])
            self._hashes, self._due = self._hashes[first], self._due[first]
            # Others may be due at the same time as the last that is kept.
            self.horizon = int(self._due.max())


_DAY_US: Final = 86_400_000_000
_DIGITS_MAX: Final = 20
"""Of a number of 64 bits, with its sign."""


class NoTime(ValueError):
    """A value of a column that says when rows are due, and that is no time; says why."""


@dataclass(slots=True)
class UnreadTimes:
    """Rows of an entity type without a known due time, which never expire."""

    count: int = 0
    first: str = ""
    """The value of the first of them, and why it is no time."""

    def add(self, value: str) -> None:
        """Count a row."""
        self.first = self.first or value
        self.count += 1


def time_column(
    mapping: SchemaMapping, entity_type: str, columns: Sequence[Column], name: str
) -> Column | None:
    """Return the column that says when rows are due, with the type that the mapping declares.

    None where no row has shown it yet: a removal may have come first, which shows the key alone, or nulls.

    Args:
        mapping: Declares it; named in errors.
        entity_type: As the mapping calls it.
        columns: Of the entity type now.
        name: Of the column.

    Raises:
        InvalidRequest: There is no such column, or it is of no type that says a moment.
    """
    where = f"{mapping.where(entity_type)}.ttl"
    declared = mapping.entity_types[entity_type].columns.get(name)
    names = (name, None if declared is None else declared.renamed_from)
    known = [column for column in columns if not column.dropped]
    column = next((column for column in known if column.name in names), None)
    if column is None and len(known) <= max(1, sum(each.key > 0 for each in known)):
        return None
    if column is None:
        has = ", ".join(column.name for column in known)
        raise InvalidRequest(f"{where}: {entity_type} has no column {name}, it has {has}")
    if declared is not None and declared.sql_type is not None:
        column = _declared(column, declared.sql_type, declared.encoding or column.encoding)
    if column.sql_type is None:
        return None  # only nulls have been seen
    if _reader_of(column) is None:
        what = f"{column.sql_type} in encoding {column.encoding}"
        raise InvalidRequest(
            f"{where}: column {name} is {what}, which says no moment; if its values are moments, declare it "
            f'in [entity_types.{entity_type}.columns.{name}]: type = "TIMESTAMP", and encoding, such as '
            '"debezium.MicroTimestamp" for numbers of microseconds'
        )
    return column


def check_times(mapping: SchemaMapping | None, schema: Schema, entity_type: str) -> None:
    """Check that the column which says when rows of an entity type are due is there and says moments.

    Raises:
        InvalidRequest: It is not so.
    """
    declared = None if mapping is None else mapping.entity_types.get(entity_type)
    ttl = None if declared is None else declared.time_to_live
    if ttl is not None and ttl.column is not None and entity_type in schema.entity_types:
        assert mapping is not None
        time_column(mapping, entity_type, schema.entity_types[entity_type], ttl.column)


class DueTimes:
    """Reads when rows are due by a column. Not thread-safe."""

    def __init__(self, column: Column, unavailable: Unavailable, unread: UnreadTimes) -> None:
        """Prepare.

        Args:
            column: As it is now.
            unavailable: Tells values that the source did not send.
            unread: Counts rows whose value is no time.
        """
        self._column = column
        self._unavailable = unavailable
        self._unread = unread

    def of(self, images: pa.BinaryArray, written: Sequence[Column]) -> npt.NDArray[np.int64]:
        """Return when rows are due, µs, shape (images,); NEVER for those that are not.

        Args:
            images: JSON objects, or null, of versions with the same columns.
            written: The columns of the entity type at those versions.
        """
        due = np.full(len(images), NEVER, np.int64)
        then = next((column for column in written if column.id == self._column.id), None)
        if then is None:
            return due
        stated = then
        if then.inferred or _reader_of(then) is None:
            stated = _declared(then, self._column.sql_type or "", self._column.encoding)
        read = _reader_of(stated)
        assert read is not None
        found = Members(images, (then.name,), loops(len(images)))
        for row in range(len(images)):
            raw = found.text(0, row)
            if raw in (ABSENT, b"null"):
                continue
            try:
                if self._unavailable.is_one(raw):
                    raise NoTime("it was not sent")
                due[row] = min(max(read(raw), -NEVER), NEVER)
            except (NoTime, Misfit) as error:
                self._unread.add(f"{then.name} is {shown(raw)}, which is no time: {error}")
        return due


def _declared(column: Column, sql_type: str, encoding: str) -> Column:
    return replace(column, sql_type=sql_type, encoding=encoding)


def _reader_of(column: Column) -> Callable[[bytes], int] | None:
    """Return what reads a JSON text as a time, µs; None for a type that says no moment."""
    form = form_of(column)
    if column.encoding in UNITS and column.sql_type is not None:
        what, unit_ns = UNITS[column.encoding]
        if what == "day" and pa.types.is_date(form.type):
            return lambda raw: (_whole(raw) + 1) * _DAY_US
        if what == "moment" and pa.types.is_timestamp(form.type):
            # The number itself, whatever year it is: PostgreSQL's infinity is one, and never past.
            return lambda raw: _whole(raw) * unit_ns // 1_000
        return None
    if pa.types.is_date(form.type):
        return lambda raw: (int(form.decode(raw)) + 1) * _DAY_US
    if pa.types.is_timestamp(form.type):
        return lambda raw: int(form.decode(raw))
    return None


def _whole(raw: bytes) -> int:
    try:
        return int(raw) if len(raw) <= _DIGITS_MAX else int(raw[:0])
    except ValueError:
        raise NoTime("it is no whole number of 64 bits") from None
