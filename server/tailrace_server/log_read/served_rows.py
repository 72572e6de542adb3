"""Conversion of a server's captures and rows of a state to the columns that scans read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.capture import Capture
from tailrace.criteria import Area, Operation, Transition
from tailrace.errors import InvalidRequest
from tailrace_server.wal.base.state_rows import NO_ROWS, StateRows
from tailrace_server.wal.record.columns import BODY_COLUMNS, multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.reads.state import StateRow

_FIELDS: Final = Capture._fields


@dataclass(frozen=True, slots=True, eq=False)
class ServedRecords:
    """Records of the log as a server sent them; all columns have one length."""

    versions: NDArray[np.int64]
    indexes: NDArray[np.int32]
    times: NDArray[np.int64]
    """Commit time of each record's version, in µs."""
    areas: NDArray[np.uint8]
    operations: NDArray[np.uint8]
    type_codes: NDArray[np.int32]
    """Each record's place in ``entity_types``; -1 for null."""
    entity_types: tuple[str, ...]
    primary_keys: pa.StringArray
    changed: pa.ListArray
    bodies: Mapping[str, pa.BinaryArray]

    @classmethod
    def of(cls, captures: Sequence[Capture]) -> ServedRecords:
        """Return captures as columns.

        Raises:
            InvalidRequest: A capture is too large for a message.
        """
        columns = dict(zip(_FIELDS, zip(*captures, strict=True), strict=True))
        _refuse_omitted(columns["omitted_bytes"], captures)
        types = tuple({each: None for each in columns["entity_type"] if each is not None})
        code_of: dict[str | None, int] = {
            None: -1,
            **dict(zip(types, range(len(types)), strict=True)),
        }
        lists = [*{*columns["changed"]}]
        list_of = dict(zip(lists, range(len(lists)), strict=True))
        changed = pa.array(lists, pa.list_(pa.string()))
        return cls(
            np.array(columns["version"], np.int64),
            np.array(columns["index"], np.int32),
            np.array(columns["commit_timestamp"], np.int64),
            np.array(columns["area"], np.uint8),
            np.array(columns["operation"], np.uint8),
            np.array([code_of[each] for each in columns["entity_type"]], np.int32),
            types,
            pa.array(columns["primary_key"], pa.string()),
            changed.take(pa.array([list_of[each] for each in columns["changed"]], pa.int32())),
            {name: pa.array(columns[name], pa.binary()) for name in BODY_COLUMNS},
        )


def as_seen(captures: Sequence[Capture], table: str) -> list[Capture]:
    """Return changes as they are to a reader who sees only the rows that meet a condition.

    A row that enters is inserted, and a row that leaves is removed.

    Args:
        captures: Changes with their transitions.
        table: Name of the table, for errors.

    Raises:
        InvalidRequest: It is unknown whether a row meets the condition.
    """
    found = []
    for each in captures:
        if each.transition is Transition.UNKNOWN:
            raise InvalidRequest(
                f"{table} at {each.position}: a value that the condition needs was not sent, or its column's "
                "type cannot hold it, so it is unknown whether the row meets the condition; ingest with "
                "--images full, or read without the condition"
            )
        if each.transition is Transition.ENTER:
            found.append(each._replace(changed=None))
        elif each.transition is Transition.LEAVE and each.operation is Operation.UPSERT:
            found.append(each._replace(operation=Operation.REMOVE))
        else:
            found.append(each)
    return found


def state_rows(rows: Sequence[StateRow]) -> StateRows:
    """Return rows of a state as columns, without key hashes.

    Raises:
        InvalidRequest: A row is too large for a message.
    """
    _refuse_omitted([each.omitted_bytes for each in rows], rows)
    places = np.array([each.position for each in rows], np.int64).reshape(-1, 2)
    return StateRows(
        np.zeros(len(rows), np.uint64),
        pa.array([each.primary_key for each in rows], pa.string()),
        places[:, 0].copy(),
        places[:, 1].astype(np.int32),
        np.array([each.count for each in rows], np.int64),
        pa.array([each.image for each in rows], pa.binary()),
    )


def _refuse_omitted(sizes: Iterable[int], rows: Sequence[Capture | StateRow]) -> None:
    for size, row in zip(sizes, rows, strict=True):
        if size:
            raise InvalidRequest(
                f"the record at {row.position} has {size} bytes, more than fit a message of the server: leave "
                "option server out, and read the log's folder"
            )


class PartOfVersion:
    """The rows that the first records of a version leave, over the state before the version.

    The records are held in memory by key.
    """

    def __init__(self) -> None:
        """Begin without records."""
        self._last: dict[str, tuple[Capture, int | None]] = {}
        """The last record of each key; and the sum of the counts of its records, None if they do not count."""
        self._is_cleared = False
        """True if a truncate has removed the rows of the state."""

    def add(self, captures: Iterable[Capture]) -> None:
        """Add the next records."""
        for each in captures:
            if each.area is not Area.DATA:
                continue
            if each.primary_key is None:
                self._is_cleared, self._last = True, {}
                continue
            count = None
            if each.changed is None and each.change is not None:
                count = multiplicity_of(each.change)
            earlier = self._last.get(each.primary_key)
            if count is not None and earlier is not None and earlier[1] is not None:
                count += earlier[1]
            self._last[each.primary_key] = each, count

    def over(self, rows: StateRows) -> StateRows:
        """Return the given rows of the state that remain, and add the counts of the others to the records."""
        if self._is_cleared:
            return NO_ROWS
        keep = np.ones(len(rows), np.bool_)
        for row, key in enumerate(rows.primary_keys.to_pylist() if self._last else ()):
            if (found := self._last.get(key)) is not None:
                keep[row] = False
                if found[1] is not None:
                    self._last[key] = found[0], found[1] + int(rows.counts[row])
        return rows.taken(np.flatnonzero(keep))

    def own(self) -> StateRows:
        """Return the rows that the records leave."""
        live = [each for each in self._last.values() if each[0].operation is Operation.UPSERT]
        if not live:
            return NO_ROWS
        captures, counts = zip(*live, strict=True)
        records = ServedRecords.of(captures)
        return StateRows(
            np.zeros(len(live), np.uint64),
            records.primary_keys,
            records.versions,
            records.indexes,
            np.array([1 if each is None else each for each in counts], np.int64),
            records.bodies["after"],
        )


def ranked(rows: StateRows, keys: pa.StringArray) -> StateRows:
    """Return rows in the order of keys, with the place of its key as each row's hash."""
    places = pc.index_in(rows.primary_keys, value_set=keys).to_numpy(zero_copy_only=False)
    order = np.argsort(places, kind="stable")
    found = rows.taken(order)
    return StateRows(
        places[order].astype(np.uint64),
        found.primary_keys,
        found.versions,
        found.indexes,
        found.counts,
        found.images,
    )
