"""The due times of rows with a time to live: read from a column of their images, and stored in 16 bytes a row.

=========================================  ================================================================
``ttl`` names a column                     due
=========================================  ================================================================
TIMESTAMP WITH TIME ZONE                   at that time
TIMESTAMP                                  at that time in UTC
DATE                                       at the end of that day in UTC
null, or no such column in the image       never
any other value, or one that was not sent  never; the row is counted and reported
=========================================  ================================================================

A value is decoded by the column's type at the version of the image. If that type was only inferred, the value
is decoded by the type that is declared now.

`DueRows` identifies rows by the hash of their key. The last entry of a hash is valid, so that a changed row
gets a new due time, and a removed row gets none. If a table has more rows than the limit, only the rows that
are due first are kept, and the *horizon* is the time up to which the list is complete::

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
"""The due time of a row that is never due, in microseconds."""
_ROWS_MAX: Final = 1 << 21
_UNSORTED_MAX: Final = 1 << 16


class DueRows:
    """The due times of the rows of one table, by key hash. Not thread-safe."""

    def __init__(self, rows_max: int = _ROWS_MAX) -> None:
        """Begin without rows.

        Args:
            rows_max: Maximum number of rows in the list.
        """
        self._rows_max = rows_max
        self._hashes = np.zeros(0, np.uint64)
        """Key hashes of the rows, sorted and unique."""
        self._due = np.zeros(0, np.int64)
        """Due time of each row in `_hashes`, in microseconds."""
        self._new: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
        """The entries that are not sorted in yet, in the order of arrival."""
        self._new_rows = 0
        self.horizon = NEVER
        """The time up to which the list is complete, in microseconds. Rows due from then on may be missing."""

    def __len__(self) -> int:
        """Return the number of rows in the list."""
        self._settle()
        return len(self._hashes)

    def say(self, hashes: npt.NDArray[np.uint64], due: npt.NDArray[np.int64]) -> None:
        """Set the due times of rows; a later entry of the same hash replaces an earlier one.

        Args:
            hashes: Hashes of the keys, shape (n,).
            due: Due times in microseconds, shape (n,); NEVER removes the row.
        """
        self._new.append((hashes, due))
        self._new_rows += len(hashes)
        if self._new_rows >= _UNSORTED_MAX:
            self._settle()

    def clear(self) -> None:
        """Remove all rows; the list is then complete."""
        self._hashes, self._due = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._new, self._new_rows = [], 0
        self.horizon = NEVER

    @property
    def first(self) -> int:
        """The earliest due time of a row in the list, in microseconds; NEVER if there is no row."""
        self._settle()
        return int(self._due.min(initial=NEVER))

    def until(self, now: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of the rows that are due at or before a time, sorted, shape (n,)."""
        self._settle()
        return self._hashes[self._due <= now]

    def _settle(self) -> None:
        """Merge the new entries into the sorted arrays, and enforce the limit."""
        if not self._new:
            return
        hashes, due = (np.concatenate(columns) for columns in zip(*self._new, strict=True))
        self._new, self._new_rows = [], 0
        # 1. Keep the last entry of each hash. `unique` returns the first, so the arrays are reversed.
        hashes, last = np.unique(hashes[::-1], return_index=True)
        due = due[::-1][last]
        # Rows due from the horizon on are not kept: others with such times may be missing already.
        due = np.where(due >= self.horizon, NEVER, due)
        # 2. Overwrite the due times of known hashes, and insert the other hashes in order.
        places = np.searchsorted(self._hashes, hashes)
        known = np.zeros(len(hashes), np.bool_)
        inside = places < len(self._hashes)
        known[inside] = self._hashes[places[inside]] == hashes[inside]
        self._due[places[known]] = due[known]
        added = ~known & (due < NEVER)
        self._hashes = np.insert(self._hashes, places[added], hashes[added])
        self._due = np.insert(self._due, places[added], due[added])
        # 3. Drop the rows that are never due; above the limit, also those that are due last.
        kept = self._due < NEVER
        if not kept.all():
            self._hashes, self._due = self._hashes[kept], self._due[kept]
        if len(self._due) > self._rows_max:
            # Free half of the space. Otherwise a growing table would sort again for each new row.
            first = np.sort(np.argpartition(self._due, self._rows_max // 2)[: self._rows_max // 2])
            self._hashes, self._due = self._hashes[first], self._due[first]
            # The horizon is the last due time in the list itself: a dropped row may be due at the same time.
            self.horizon = int(self._due.max())


_DAY_US: Final = 86_400_000_000
_DIGITS_MAX: Final = 20
"""Maximum length of the decimal text of a 64-bit integer, with its sign."""


class NoTime(ValueError):
    """The value of a time-to-live column is not a time; the message is the reason."""


@dataclass(slots=True)
class UnreadTimes:
    """The number of rows of an entity type whose due time cannot be read, and which therefore never expire."""

    count: int = 0
    first: str = ""
    """The value in the first such row, and the reason why it is not a time."""

    def add(self, value: str) -> None:
        """Count a row, given its value and the reason."""
        self.first = self.first or value
        self.count += 1


def time_column(
    mapping: SchemaMapping, entity_type: str, columns: Sequence[Column], name: str
) -> Column | None:
    """Return the column with the due times of rows, with the type that the mapping declares.

    Returns None if no row has shown the column or its type yet: the rows so far may be removals, which have
    only the key, or have only nulls in it.

    Args:
        mapping: The declared columns; error messages name its file.
        entity_type: The entity type's name in the mapping.
        columns: The present columns of the entity type.
        name: Name of the column in the mapping.

    Raises:
        InvalidRequest: There is no such column, or the values of its type are not times.
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
            f"{where}: column {name} is {what}, which is not a time; if its values are times, "
            f'declare it in [entity_types.{entity_type}.columns.{name}]: type = "TIMESTAMP", and '
            'encoding, such as "debezium.MicroTimestamp" for numbers of microseconds'
        )
    return column


def check_times(mapping: SchemaMapping | None, schema: Schema, entity_type: str) -> None:
    """Check that the time-to-live column of an entity type, if it has one, exists and has times as values.

    Raises:
        InvalidRequest: The column does not exist, or its values are not times.
    """
    declared = None if mapping is None else mapping.entity_types.get(entity_type)
    ttl = None if declared is None else declared.time_to_live
    if ttl is not None and ttl.column is not None and entity_type in schema.entity_types:
        assert mapping is not None
        time_column(mapping, entity_type, schema.entity_types[entity_type], ttl.column)


class DueTimes:
    """A reader of due times from a column of images. Not thread-safe."""

    def __init__(self, column: Column, unavailable: Unavailable, unread: UnreadTimes) -> None:
        """Store what the reader needs.

        Args:
            column: The column in its present form.
            unavailable: Recognizes placeholders for values that the source did not send.
            unread: Counts the rows whose value is not a time.
        """
        self._column = column
        self._unavailable = unavailable
        self._unread = unread

    def of(self, images: pa.BinaryArray, written: Sequence[Column]) -> npt.NDArray[np.int64]:
        """Return the due times of rows in microseconds, shape (images,); NEVER for rows that are never due.

        Args:
            images: Images of the rows, JSON objects or null, from versions with the same columns.
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
                    raise NoTime("the source did not send it")
                due[row] = min(max(read(raw), -NEVER), NEVER)
            except (NoTime, Misfit) as error:
                self._unread.add(f"{then.name} is {shown(raw)}, which is not a time: {error}")
        return due


def _declared(column: Column, sql_type: str, encoding: str) -> Column:
    return replace(column, sql_type=sql_type, encoding=encoding)


def _reader_of(column: Column) -> Callable[[bytes], int] | None:
    """Return a function that decodes a JSON text to microseconds; None if values of the type are not times."""
    form = form_of(column)
    if column.encoding in UNITS and column.sql_type is not None:
        what, unit_ns = UNITS[column.encoding]
        if what == "day" and pa.types.is_date(form.type):
            return lambda raw: (_whole(raw) + 1) * _DAY_US
        if what == "moment" and pa.types.is_timestamp(form.type):
            # Use the number itself, without a conversion to a date: PostgreSQL's infinity is a number far
            # beyond the range of dates, and never in the past.
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
        raise NoTime("it is not a whole number of 64 bits") from None
