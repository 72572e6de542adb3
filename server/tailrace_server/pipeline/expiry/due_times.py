"""When a row is due, from its image or from the commit of its last change.

=========================================  ================================================================
``ttl`` names a column                     due
=========================================  ================================================================
TIMESTAMP WITH TIME ZONE                   at that moment
TIMESTAMP                                  at that moment in UTC
DATE                                       when that day has ended in UTC
null, or no such column in the image       never
any other value, or one that was not sent  never; it is counted and told
=========================================  ================================================================

A value is read by the column of its own version. Inferred values are read as they are declared now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.machine_code.loader import loops
from tailrace_server.pipeline.expiry.due_rows import NEVER
from tailrace_server.typed.forms import Misfit, form_of, shown
from tailrace_server.typed.members import ABSENT, Members
from tailrace_server.wal.schema.restating import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

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
