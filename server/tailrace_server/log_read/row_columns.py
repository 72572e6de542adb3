"""The rows of a read: their columns, those of the table and those that the shape adds, condition and images."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace.position import END
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse
from tailrace_server.sql.shown import RowsMet
from tailrace_server.sql.typed_rows import MISFITS, TIMESTAMP
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.wal.segment.parallel import RecordColumns
    from tailrace_server.wal.state.view import LogView

_LONG_VERSION: Final = 16
"""The mean number of rows of a version from which the texts of its cursors are joined in one call."""
_NUMBERS: Final = 1 << 16
"""The number of indexes whose texts are made once."""
_Column = TypeVar("_Column", pa.Array, "NDArray[np.int64]", "NDArray[np.int32]")
WHERE: Final = "where"
"""Name of the request's condition, in errors that name views."""
OF_STATE: Final = {"_commit_version": pa.int64(), "_commit_timestamp": TIMESTAMP}
"""The columns of a state in addition to those of its table."""
OF_CHANGES: Final = {"_change_type": pa.string(), **OF_STATE, "_position": pa.string()}
"""The columns of change rows in addition to those of their table."""


def needed_columns(request: ReadRequest, every: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of the table that a read needs: those named, or all that are not dropped.

    Args:
        request: The read.
        every: The columns of the table, also dropped ones.
    """
    if request.columns is None or wants_misfits(request):
        return tuple(each for each in every if not each.dropped)
    by_name = {each.name: each for each in every}
    return tuple(by_name[name] for name in request.columns if name in by_name)


def wants_misfits(request: ReadRequest) -> bool:
    """Return True if the result has the column ``_misfits``."""
    is_named = request.columns is None or MISFITS in request.columns
    return is_named and request.on_misfit is OnMisfit.NULL


def rows_schema(
    request: ReadRequest,
    columns: pa.Schema,
    own: Mapping[str, pa.DataType],
    known: Iterable[str],
) -> pa.Schema:
    """Return the schema of the rows of a read.

    Args:
        request: The read.
        columns: The fields of the needed columns of the table.
        own: The columns that the shape adds.
        known: The names of all columns of the table, for errors.

    Raises:
        InvalidRequest: A requested column does not exist; or two names are equal or differ only by case.
    """
    fields = [*columns, *(pa.field(*each) for each in own.items())]
    if request.on_misfit is OnMisfit.NULL:
        fields.append(pa.field(MISFITS, pa.string()))
    if request.columns is not None:
        by_name = {each.name: each for each in fields}
        for name in request.columns:
            if name not in by_name:
                hint = nearest(name, {*known, *by_name})
                raise InvalidRequest(f"{request.entity_type} has no column {name!r}{hint}")
        refuse_alike(request, request.columns)
        # A column of the table that is named like an own one is found twice, and refused.
        fields = [each for each in fields if each.name in {*request.columns}]
        refuse_alike(request, [each.name for each in fields])
        fields = [by_name[name] for name in request.columns]
    refuse_alike(request, [each.name for each in fields])
    return pa.schema(fields)


def refuse_alike(request: ReadRequest, names: Iterable[str]) -> None:
    """Check that all names differ by more than case.

    Raises:
        InvalidRequest: Two names are equal, or differ only by case.
    """
    folded: dict[str, str] = {}
    for name in names:
        if (first := folded.get(name.lower())) is not None:
            raise InvalidRequest(
                f"{request.entity_type or request.catalog} would have the columns {first!r} and {name!r}, "
                "which readers that ignore case cannot tell apart: name the wanted ones in columns"
            )
        folded[name.lower()] = name


def names_of(view: LogView, entity_type: str, version: int) -> EntityNames:
    """Return the names of an entity type, given by its name at a version or else the newest one."""
    schema = view.schema_of(version)
    if entity_type not in schema.entity_types:
        schema = view.schema_of(view.published)
    return EntityNames(schema, entity_type)


def rows_met(view: LogView, request: ReadRequest, version: int) -> RowsMet | None:
    """Return the condition of a request; None if it has none.

    Args:
        view: The log.
        request: The read.
        version: The version whose columns the condition names.

    Raises:
        ConditionRefused: The condition is invalid, or does not fit the columns.
    """
    if request.where is None:
        return None
    condition = parse(request.where)
    names = names_of(view, request.entity_type or "", version)
    columns = names.columns_in(view.schema_of(version)) or names.columns_in(
        view.schema_of(view.published)
    )
    bind(condition, [each for each in columns if not each.dropped], {})
    return RowsMet(WHERE, condition)


def cursor_texts(
    view: LogView, versions: NDArray[np.int64], indexes: NDArray[np.int32]
) -> pa.StringArray:
    """Return, for each record, the text of the cursor that continues after it (`LogView.cursor`).

    Args:
        view: The log.
        versions: Published versions, shape (n,).
        indexes: The index of each record in its version.
    """
    times = view.known_timestamps_of(versions)
    starts = np.flatnonzero(np.diff(versions, prepend=-1))
    if len(starts) * _LONG_VERSION <= len(versions) and indexes.max(initial=0) < _NUMBERS:
        return _texts_by_version(view, versions, indexes, times, starts)
    texts: list[pa.Array | str] = ["1", view.uuid.hex, pa.array(versions).cast(pa.string())]
    texts += [pa.array(indexes).cast(pa.string()), str(END)]
    texts.append(pa.array(times, mask=times == 0).cast(pa.string()))
    return pc.binary_join_element_wise(*texts, ".", null_handling="skip")


def _texts_by_version(
    view: LogView,
    versions: NDArray[np.int64],
    indexes: NDArray[np.int32],
    times: NDArray[np.int64],
    starts: NDArray[np.intp],
) -> pa.StringArray:
    """Return the texts of cursors, given the first row of each version: they differ by the index only."""
    numbers, sizes = _numbers()
    written, lengths = numbers[indexes].tolist(), sizes[indexes]
    parts = []
    for start, stop in pairwise((*starts.tolist(), len(versions))):
        time = int(times[start])
        before = f"1.{view.uuid.hex}.{versions[start]}.".encode()
        after = f".{END}.{time}".encode() if time else f".{END}".encode()
        parts += [before, (after + before).join(written[start:stop]), after]
        lengths[start:stop] += len(before) + len(after)
    offsets = np.zeros(len(versions) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(b"".join(parts))
    return pa.StringArray.from_buffers(len(versions), pa.py_buffer(offsets), data)


@lru_cache(maxsize=1)
def _numbers() -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Return the texts of the first numbers, and the length of each text."""
    texts = [b"%d" % number for number in range(_NUMBERS)]
    return np.array(texts, np.object_), np.array([*map(len, texts)], np.int64)


class RowImages(NamedTuple):
    """The images of rows: selected from arrays that may have more."""

    sides: Sequence[pa.BinaryArray]
    """One or two arrays of images, all of the same records."""
    versions: NDArray[np.int64]
    """The version of each record."""
    indexes: NDArray[np.int32]
    """The index of each record in its version."""
    rows: NDArray[np.int64] | None = None
    """For each row, the place of its image in the concatenated arrays; None: all images, in order."""

    @classmethod
    def of(
        cls,
        head: RecordColumns,
        bodies: Mapping[str, pa.BinaryArray],
        rows: NDArray[np.int64],
        is_after: NDArray[np.bool_],
    ) -> RowImages:
        """Return the images before or after of some records of a batch.

        Args:
            head: The head of the batch.
            bodies: The bodies of the batch.
            rows: The record of each row, rising.
            is_after: True for each row that has its record's image after.
        """
        sides = [
            name
            for name, any_ in (("before", not is_after.all()), ("after", is_after.any()))
            if any_
        ]
        # Only a record with images on both sides has two rows.
        if len(sides) == 1:
            records, picked = rows, None
        else:
            records, places = np.unique(rows, return_inverse=True)
            picked = places + is_after * len(records)
        images = [_taken(bodies[name], records) for name in sides]
        return cls(images, _taken(head.versions, records), _taken(head.indexes, records), picked)


def _taken(column: _Column, rows: NDArray[np.int64]) -> _Column:
    """Return some rows of a column, given by their rising numbers, without repeats."""
    if len(rows) == len(column):
        return column
    return column.take(pa.array(rows)) if isinstance(column, pa.Array) else column[rows]
