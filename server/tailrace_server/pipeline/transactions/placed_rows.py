"""The rows of transactions, by columns: in source order, and without their images.

Images are never joined to one array, because those of a transaction may have more bytes than an Arrow array
can hold.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.input.change import (
    CHANGE,
    UNORDERED,
    Change,
    arrivals_of,
    from_table,
    positions_of,
)
from tailrace_server.pipeline.transactions.source_order import rows_in_order
from tailrace_server.wal.record.input_rows import flags_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tailrace_server.wal.record.unavailable import Unavailable

    Longs = npt.NDArray[np.int64]
    Marks = npt.NDArray[np.bool_]


class ImageArrays:
    """A column in several arrays, which are not joined."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *map(len, arrays)])

    @cached_property
    def sizes(self) -> Longs:
        """Size of each value in bytes; 0 for null."""
        found = [pc.binary_length(each).fill_null(0).to_numpy() for each in self._arrays]
        return np.concatenate(found).astype(np.int64)

    @cached_property
    def are_valid(self) -> Marks:
        """Mask of the values that are not null."""
        return np.concatenate([flags_of(each.is_valid()) for each in self._arrays])

    def take(self, rows: Longs) -> pa.Array:
        """Return the values of some rows; null where the row is -1."""
        parts = np.searchsorted(self._starts[1:-1], rows, "right")
        parts[rows < 0] = parts.max(initial=0)
        order = np.argsort(parts, kind="stable")
        found = []
        for part in np.unique(parts).tolist():
            wanted = rows[order][parts[order] == part]
            local = pa.array(wanted - self._starts[part], mask=wanted < 0)
            found.append(self._arrays[part].take(local))
        if len(found) == 1:
            return found[0]
        return pa.concat_arrays(found or [self._arrays[0].slice(0, 0)]).take(
            pa.array(np.argsort(order))
        )

    def with_texts(self, unavailable: Unavailable) -> Marks:
        """Return a mask of the values in which a placeholder may be."""
        found = [np.zeros(len(each), np.bool_) for each in self._arrays]
        for array, marks in zip(self._arrays, found, strict=True):
            # Search all values at once; most arrays have no placeholder.
            offsets = np.frombuffer(array.buffers()[1], np.int32)
            start, stop = offsets[array.offset], offsets[array.offset + len(array)]
            values = array.buffers()[2]
            if values is not None and unavailable.may_be_in(values[start:stop].to_pybytes()):
                marks[:] = [
                    text is not None and unavailable.may_be_in(text) for text in array.to_pylist()
                ]
        return np.concatenate(found)


@dataclass(frozen=True)
class PlacedRows:
    """The changes of some transactions, without their images, in source order."""

    numbers: Longs
    """The place of each row among the rows as they were given."""
    versions: Longs
    types: Longs
    names: list[str]
    """The entity types, by the numbers in ``types``."""
    keys: pa.Array
    operations: npt.NDArray[np.int16]
    places: pa.Array
    listings: pa.Array
    moved: Marks
    """True for rows with an old key."""

    @classmethod
    def of(cls, tables: Sequence[pa.RecordBatch], first: int) -> PlacedRows:
        """Return the rows of tables of `PLACED`; ``first`` is subtracted from their versions."""
        column = {
            name: pa.concat_arrays([table.column(name) for table in tables])
            for name in (
                *("version", "place", "total_order", "entity_type", "operation"),
                *("primary_key", "old_key", "columns", "log"),
            )
        }
        versions = column["version"].to_numpy() - first
        order = _in_source_order(versions, column)
        rows = pa.array(order)
        types = pc.dictionary_encode(column["entity_type"])
        return cls(
            order,
            versions[order],
            types.indices.to_numpy().astype(np.int64)[order],
            types.dictionary.to_pylist(),
            column["primary_key"].take(rows),
            column["operation"].to_numpy()[order],
            column["place"].take(rows),
            column["columns"].take(rows),
            flags_of(column["old_key"].is_valid())[order],
        )


def _in_source_order(versions: Longs, column: dict[str, pa.Array]) -> Longs:
    """Return the order of rows by version, and within a version as by `rows_in_order`."""
    order = np.argsort(versions, kind="stable")
    versions = versions[order]
    same = versions[1:] == versions[:-1]
    # 1. Sort by arrival. The rows of a split are in this order already.
    arrivals = arrivals_of(column["place"]).take(pa.array(order))
    rises = flags_of(pc.less(arrivals.slice(0, len(arrivals) - 1), arrivals.slice(1)))
    if not rises[same].all():
        table = pa.table({"version": pa.array(versions), "arrival": arrivals})
        keys = [(name, "ascending") for name in table.column_names]
        order = order[pc.sort_indices(table, sort_keys=keys).to_numpy()]
    # 2. The order stays if the rows are numbered so, or, without numbers, if their positions never decrease.
    #    In other transactions, mostly of several files, rows are sorted one by one.
    orders = column["total_order"].to_numpy()[order]
    unordered = _versions(versions, orders == UNORDERED)
    positions = positions_of(column["place"].take(pa.array(order)))
    falls = np.where(
        unordered[versions[1:]], are_below(positions[1:], positions[:-1]), orders[1:] <= orders[:-1]
    )
    doubtful = _versions(versions[1:], falls & same)
    for version in np.flatnonzero(doubtful).tolist():
        start, stop = np.searchsorted(versions, (version, version + 1)).tolist()
        taken = pa.array(order[start:stop])
        values = (column[name].take(taken).to_pylist() for name in _ORDERING)
        rows = [
            Change(CHANGE, place, total_order=number, entity_type=entity_type, log=log, line=row)
            for row, place, number, entity_type, log in zip(
                order[start:stop].tolist(), *values, strict=True
            )
        ]
        order[start:stop] = [row.line or 0 for row in rows_in_order(rows)]
    return order


_ORDERING: Final = ("place", "total_order", "entity_type", "log")


def _versions(versions: Longs, marks: Marks) -> Marks:
    """Return a mask of the versions that have a marked row."""
    found = np.zeros(int(versions.max(initial=-1)) + 1, np.bool_)
    found[versions[marks]] = True
    return found


def are_below(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Marks:
    """Return a mask of the rows in which a position is below another one."""
    less = np.zeros(len(one), np.bool_)
    for place in (2, 1, 0):
        less = (one[:, place] < other[:, place]) | ((one[:, place] == other[:, place]) & less)
    return less


def objects_of(
    tables: Iterable[pa.RecordBatch], first: int, plain: Marks
) -> dict[int, list[Change]]:
    """Return the changes of the transactions that are not plain, by their places."""
    found: dict[int, list[Change]] = defaultdict(list)
    for table in tables:
        versions = table.column("version").to_numpy() - first
        at = np.flatnonzero(~plain[versions])
        some = from_table(table.take(pa.array(at))) if len(at) else ()
        for version, change in zip(versions[at].tolist(), some, strict=True):
            found[version].append(change)
    return found


def by_version(tables: Iterable[pa.RecordBatch], start: int, stop: int) -> list[list[Change]]:
    """Return the changes of the versions from ``start`` to ``stop`` - 1; the tables are of `PLACED`."""
    found = objects_of(tables, start, np.zeros(stop - start, np.bool_))
    return [found.pop(place, []) for place in range(stop - start)]
