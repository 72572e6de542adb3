"""One entity type and its Delta table: the update of the table from the version that it shows to a later one.

=====================================================  ====================================================
change between the two versions                        update of the table
=====================================================  ====================================================
nothing                                                none; after many versions an empty commit
rows changed                                           a merge by key: the last record of each key
columns were added                                     the columns are added, then a merge
a column was renamed, dropped or has another type      a rewrite from the state at the new version
the table was truncated                                a rewrite
the log was trimmed beyond the table's version         a rewrite
there is no table yet                                  the first write
=====================================================  ====================================================

A rewrite is one commit too, so a reader sees either the old version or the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace_server.export.delta.table import LakeColumns
from tailrace_server.export.errors import LakeValueUnfit
from tailrace_server.typed.misfits import ValueMisfit
from tailrace_server.wal.base.overlay import TableChanges
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.schema.restating import first_stated
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.schema import Column, Schema
    from tailrace_server.export.delta.table import LakeTable
    from tailrace_server.typed.misfits import OnMisfit
    from tailrace_server.wal.base.overlay import ChangedRows
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_IDLE_VERSIONS: Final = 10_000
"""After this many versions without changes, an empty commit records the version: otherwise a trim of the log
would cause a rewrite.
"""


@dataclass(frozen=True, slots=True)
class TableStep:
    """One update of a table."""

    entity_type: str
    how: str
    """``written``, ``rewritten`` or ``merged``; empty if there were no changes."""
    why: str
    """The reason for a rewrite; empty: none."""
    rows: int
    """Number of rows written or changed."""
    removed: int
    nulls: tuple[str, ...]
    """Messages about values that did not fit and became null: the first value of each column in each part."""
    delta_version: int
    """Number of the table's newest commit."""


@dataclass
class _Counts:
    rows: int = 0
    removed: int = 0
    nulls: list[str] = field(default_factory=list)


class TableExport:
    """One entity type and its Delta table. Its methods block; use one thread at a time."""

    def __init__(self, table: LakeTable, schema: Schema, name: str, on_misfit: OnMisfit) -> None:
        """Bind an entity type, given by its name in a schema, to a table."""
        self.table = table
        self.names = EntityNames(schema, name)
        self.name = name
        self._on_misfit = on_misfit
        self._tidied = table.delta_version
        self._columns_known: tuple[tuple[int, bool], LakeColumns] | None = None
        """Cache of the last columns, with their schema id and whether rows are counted."""
        self._seen = table.version
        """The version that the table's rows are known to show; the table may have no commit for that
        version.
        """

    @property
    def seen(self) -> int:
        """The version that the table's rows show; 0: none."""
        return self._seen or 0

    def bring_to(
        self, view: LogView, reader: BatchReader, version: int, *, is_last: bool
    ) -> TableStep:
        """Update the table to a version. A rewrite is done only in the last step.

        Args:
            view: A view of the log that reaches the version.
            reader: The reader of the log.
            version: The version, at least the one that the table shows.
            is_last: True if this is the last step for now.

        Raises:
            LakeValueUnfit, LakeColumnUnfit: The rows cannot be written.
            LakeTableChanged, LakeUnwritable: The table cannot be written; see `LakeTable`.
            PositionCompacted, LogCorrupted: The log cannot be read.
            SegmentMissing: A file of the log is gone: call again with a newer view.
        """
        self.table.timestamp_of = view.known_timestamp_of
        # 1. Is a rewrite needed, as far as schemas and the log show?
        name = self.names.name_in(view.schema_of(version)) or self.name
        why, changes = self._why_rewritten(view, name, version), None
        self.name = name
        # A rewrite is expensive, and later steps would repeat it: do it only for the newest version.
        if why and not is_last:
            return self._nothing(name)
        # 2. If not, do the changes themselves need one?
        state = table_state(view, reader, name, version)
        if not why:
            assert self._seen is not None
            if not _may_have_changed(state, self._seen, version):
                return self._idle(name, version)
            changes = TableChanges(state.log_table, self._seen, version)
            if changes.truncated:
                why, changes = "it was truncated", None
        columns = self._columns(view, name, version, counted=state.counted)
        missing = None if changes is None else self.table.missing(columns.schema)
        if changes is not None and missing is None:
            why, changes = "its columns have other types", None
        if changes is None and not is_last:
            return self._nothing(name)
        # 3. Write. Columns that were only added need no rewrite.
        if missing:
            self.table.add_columns(missing)
        counts = _Counts()
        how = "written" if self.table.version is None else "rewritten"
        if changes is None:
            batches = self._whole(state, columns, view, counts)
            self.table.rewrite(columns.schema, batches, version)
        else:
            batches = self._changed(changes, columns, view, counts)
            # Look for a first batch, so that a merge without rows makes no commit.
            first = next(batches, None)
            if first is None:
                return self._idle(name, version)
            how, batches = "merged", _with(first, batches)
            if not self.table.merge(
                columns.source_schema, batches, version, counted=columns.counted
            ):
                return self._idle(name, version)
        self._seen = version
        return TableStep(
            *(name, how, why, counts.rows, counts.removed, tuple(counts.nulls)),
            self.table.delta_version,
        )

    def tidy(self, every: int, keep_hours: int) -> None:
        """Join small files and delete old ones, once for every ``every`` commits."""
        # The number of commits has passed a multiple of ``every`` since the last time.
        if self.table.delta_version // every > self._tidied // every:
            self.table.tidy(keep_hours)
        self._tidied = self.table.delta_version

    def _idle(self, name: str, version: int) -> TableStep:
        """Record that the table shows a version, as nothing has changed."""
        self._seen = version
        if version - (self.table.version or 0) >= _IDLE_VERSIONS:
            self.table.note(version)
        return self._nothing(name)

    def _nothing(self, name: str) -> TableStep:
        return TableStep(name, "", "", 0, 0, (), self.table.delta_version)

    def _why_rewritten(self, view: LogView, name: str, version: int) -> str:
        """Return the reason for a rewrite, as far as schemas and log show it.

        Empty if a merge may be enough.
        """
        if self._seen is None:
            return "it did not exist"
        if self._seen + 1 < view.oldest.version:
            return "the log was trimmed beyond the version of the table"
        before, after = view.schema_of(self._seen), view.schema_of(version)
        if before is after:
            return ""
        name_before = self.names.name_in(before)
        old = () if name_before is None else before.entity_types.get(name_before, ())
        return _why_other_columns(old, after.entity_types.get(name, ()))

    def _columns(self, view: LogView, name: str, version: int, *, counted: bool) -> LakeColumns:
        schema = view.schema_of(version)
        # `first_stated` goes through all schemas, so the columns are cached by schema.
        if self._columns_known is not None and self._columns_known[0] == (schema.id, counted):
            return self._columns_known[1]
        columns = LakeColumns.of(
            name,
            schema.entity_types.get(name, ()),
            counted=counted,
            stated=first_stated(view.schemas()),
            placeholders=schema.placeholders,
            on_misfit=self._on_misfit,
        )
        self._columns_known = (schema.id, counted), columns
        return columns

    def _whole(
        self, state: TableState, columns: LakeColumns, view: LogView, counts: _Counts
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a state, in the form of the table."""
        for rows in state.parts():
            counts.rows += len(rows)
            arrays = self._arrays(rows, columns, view, counts)
            yield pa.record_batch(arrays, schema=columns.schema)

    def _changed(
        self, changes: TableChanges, columns: LakeColumns, view: LogView, counts: _Counts
    ) -> Iterator[pa.RecordBatch]:
        """Yield changed and removed rows, as the source of a merge."""
        for part in changes.parts():
            counts.rows += len(part.rows)
            counts.removed += len(part.removed)
            if len(part.rows):
                living = pa.array([True] * len(part.rows))
                arrays = [*self._arrays(part.rows, columns, view, counts), living]
                yield pa.record_batch(arrays, schema=columns.source_schema)
            if len(part.removed):
                yield _removals(part, columns)

    def _arrays(
        self, rows: StateRows, columns: LakeColumns, view: LogView, counts: _Counts
    ) -> list[pa.Array]:
        """Return rows as the columns of the table."""
        schemas, which = view.schemas_of(rows.versions)
        written = [*map(self.names.columns_in, schemas)]
        try:
            read = columns.reader.read_mixed(rows.images, written, which)
        except ValueMisfit as error:
            row = error.misfit.row
            key = rows.primary_keys[row].as_py()
            raise LakeValueUnfit(self.name, int(rows.versions[row]), key, str(error)) from error
        counts.nulls += map(str, read.misfits)
        own = [rows.primary_keys, pa.array(rows.versions)]
        own += [pa.array(rows.counts)] if columns.counted else []
        return [*own, *columns.columns_of(read.batch)]


def _may_have_changed(state: TableState, after: int, version: int) -> bool:
    return any(True for _ in state.log_table.batches(after, version))


def _with(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _why_other_columns(old: tuple[Column, ...], new: tuple[Column, ...]) -> str:
    """Return the reason why a change of columns needs a rewrite; empty if it needs none."""
    by_id = {column.id: column for column in new}
    for column in old:
        now = by_id.pop(column.id, column)
        if now.name != column.name:
            return f"column {column.name!r} is now named {now.name!r}"
        if now.dropped != column.dropped:
            return f"column {column.name!r} was {'dropped' if now.dropped else 'restored'}"
        if (now.sql_type, now.encoding) != (column.sql_type, column.encoding):
            return f"column {column.name!r} has another type"
    return ""


def _removals(part: ChangedRows, columns: LakeColumns) -> pa.RecordBatch:
    """Return the removed keys of a part, as rows for the source of a merge."""
    removed = part.removed
    own = [removed.keys, pa.array(removed.versions)]
    own += [pa.array(removed.diffs)] if columns.counted else []
    others = columns.schema.types[len(own) :]
    arrays = [*own, *(pa.nulls(len(removed), kind) for kind in others)]
    return pa.record_batch(
        [*arrays, pa.array([False] * len(removed))], schema=columns.source_schema
    )
