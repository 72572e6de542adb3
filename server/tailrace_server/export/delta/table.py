"""One Delta table, as this export writes it, and its columns.

Each commit records the version of the catalog that the table then shows.

::

    _delta_log/00…7.json    commitInfo   tailrace.version 41, tailrace.committed 1700000000000000,
                                         tailrace.commit 7, tailrace.run
                            txn          appId tailrace/<catalog uuid>/<id of the table>, version 41
                            add, remove  files of rows

``txn`` is Delta's support for writers that must not write twice: it is part of the table, and changes in the
same commit as the rows. So the table says which version it shows, even after a kill at any moment.
``tailrace.commit`` is the number that we expected the commit to get. The newest commit must be ours and have
the expected number; otherwise another writer has changed the table, and its rows are unknown.

The columns of the row's identity come first, then those of the entity type.

============================  =======================  ============================================
column                        Delta                    meaning
============================  =======================  ============================================
``_tailrace_key``             string, not null         the row's key, as everywhere in tailrace
``_tailrace_version``         long                     version of the row's last change
``_tailrace_count``           long                     in tables without a key: the row's multiplicity
the columns of the schema     by `typed`               without dropped ones, nullable
============================  =======================  ============================================

Values without a type in Delta are strings: times (MySQL's may be negative or beyond a day), timestamps in
nanoseconds, and decimals beyond 38 digits.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema as LakeSchema

from tailrace_server.export.errors import (
    FolderTaken,
    LakeColumnUnfit,
    LakeTableChanged,
    LakeUnwritable,
)
from tailrace_server.failpoints import reach
from tailrace_server.typed.forms import UNITS_IN_SECOND, span_form_of
from tailrace_server.typed.reader import ColumnReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.schema import Column
    from tailrace_server.typed.misfits import OnMisfit

_RESERVED: Final = "_tailrace_"
KEY: Final = f"{_RESERVED}key"
VERSION: Final = f"{_RESERVED}version"
COUNT: Final = f"{_RESERVED}count"
LIVE: Final = f"{_RESERVED}live"
"""Column only in the source of a merge: True if the row exists after the merge."""


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """The columns of one entity type in a Delta table."""

    reader: ColumnReader
    """Reads the columns from images."""
    counted: bool
    """True if rows have no key and are counted."""
    schema: pa.Schema
    """The Arrow schema of the table."""

    @classmethod
    def of(
        cls,
        entity_type: str,
        columns: Sequence[Column],
        *,
        counted: bool,
        stated: Mapping[int, Column],
        placeholders: tuple[str, ...],
        on_misfit: OnMisfit,
    ) -> LakeColumns:
        """Return the columns of an entity type as of a version.

        Raises:
            LakeColumnUnfit: A column's name is not possible in Delta.
        """
        shown = [column for column in columns if not column.dropped]
        _refuse_names(entity_type, [column.name for column in shown])
        reader = ColumnReader(
            shown,
            stated=stated,
            placeholders=placeholders,
            on_misfit=on_misfit,
            form_of=span_form_of,
        )
        own = [pa.field(KEY, pa.string(), nullable=False), pa.field(VERSION, pa.int64())]
        own += [pa.field(COUNT, pa.int64())] if counted else []
        fields = [pa.field(each.name, lake_type(each.type)) for each in reader.schema]
        return cls(reader, counted, pa.schema([*own, *fields]))

    @property
    def source_schema(self) -> pa.Schema:
        """The Arrow schema of the source of a merge."""
        return self.schema.append(pa.field(LIVE, pa.bool_(), nullable=False))

    def columns_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return columns that were read from images, converted to the table's types."""
        return [_as_lake(column) for column in batch.columns]


def lake_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in a Delta table for a column's Arrow type."""
    if pa.types.is_timestamp(kind):
        return pa.string() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) or pa.types.is_decimal256(kind):
        return pa.string()
    return kind


def _as_lake(column: pa.Array) -> pa.Array:
    if pa.types.is_duration(column.type):
        return _clocks(column)
    wanted = lake_type(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _clocks(column: pa.Array) -> pa.Array:
    """Return durations as texts in Arrow's form for times of day, with more hours or a minus sign if needed."""
    unit = column.type.unit
    in_second = UNITS_IN_SECOND[unit]
    # 1. Arrow writes the durations that are times of a day.
    counts = column.cast(pa.int64())
    of_day = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, 86_400 * in_second))
    times = pc.if_else(of_day, counts, pa.scalar(None, pa.int64()))
    whole, kind = (pa.int32(), pa.time32) if unit == "ms" else (pa.int64(), pa.time64)
    texts = times.cast(whole).cast(kind(unit)).cast(pa.string())
    # 2. Write the others one by one; mostly there are none.
    others = pc.fill_null(pc.invert(of_day), False)
    written = [_clock(each, in_second) for each in counts.filter(others).to_pylist()]
    return pc.replace_with_mask(texts, others, pa.array(written, pa.string())) if written else texts


def _clock(count: int, in_second: int) -> str:
    seconds, fraction = divmod(abs(count), in_second)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    digits = len(str(in_second)) - 1
    return f"{'-' if count < 0 else ''}{hours:02}:{minute:02}:{second:02}.{fraction:0{digits}}"


def _refuse_names(entity_type: str, names: Sequence[str]) -> None:
    """Raise LakeColumnUnfit if a name is not possible for a Delta column."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(_RESERVED):
            raise LakeColumnUnfit(
                entity_type, f"column {name!r} begins with {_RESERVED}, which is reserved"
            )
        if not name or "`" in name:
            raise LakeColumnUnfit(entity_type, f"column {name!r} is not valid in Delta's SQL")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise LakeColumnUnfit(
                entity_type,
                f"columns {other!r} and {name!r} differ only in case, which Delta does not distinguish",
            )


_COMMIT: Final = "tailrace.commit"
_VERSION: Final = "tailrace.version"
_COMMITTED: Final = "tailrace.committed"
_RUN: Final = "tailrace.run"
_SAME_KEY: Final = f"t.{KEY} = s.{KEY}"
_ADDED_COUNT: Final = (
    f"CAST(CAST(t.{COUNT} AS DECIMAL(20,0)) + CAST(s.{COUNT} AS DECIMAL(20,0)) AS BIGINT)"
)
"""The sum of two counts. It raises an error beyond 64 bits, where a sum of two BIGINTs would wrap."""


class LakeTable:
    """A Delta table in a folder, which only this export may write. Its methods block; use one thread at a time.

    All methods except the constructor raise `LakeTableChanged` if another writer has changed the table, and
    `LakeUnwritable` if the table cannot be written. The table's visible rows are then unchanged.
    """

    def __init__(self, path: Path, app_id: str, run: str) -> None:
        """Open the table in a folder. If the folder is missing or empty, the first rows will create the table.

        Args:
            path: The folder.
            app_id: The name of catalog and entity type in the table's transactions.
            run: The id of this process, in commits.

        Raises:
            FolderTaken: The folder holds something else.
            LakeTableChanged: The newest commit of the table is not ours.
            LakeUnwritable: The table cannot be read.
        """
        self.path = path
        self._app_id, self._run = app_id, run
        self._table: DeltaTable | None = None
        self._delta_version = -1
        """Number of the last commit that we know; -1: none."""
        self._stamp: tuple[int, int] | None = None
        """Inode and modification time of that commit's file: a recreated table may have the same number."""
        self.version: int | None = None
        """The version of the catalog that the table shows; None before the first rows."""
        self.committed = 0
        """Commit time of the version that the table showed when it was opened, in µs; 0: unknown."""
        self.timestamp_of: Callable[[int], int | None] = lambda version: None
        """Returns the commit time of a version of the catalog, in µs; None: unknown."""
        with self._errors():
            self._open()

    def _open(self) -> None:
        if not DeltaTable.is_deltatable(str(self.path)):
            strange = next(iter(sorted(self.path.iterdir())), None) if self.path.exists() else None
            # A first write that was killed leaves such files: ignore them.
            if strange is not None and not all(map(_is_leftover, self.path.iterdir())):
                raise FolderTaken(self.path, f"holds {strange.name}, and is not a Delta table")
            return
        table = DeltaTable(str(self.path))
        self.version = table.transaction_version(self._app_id)
        if self.version is None:
            raise FolderTaken(
                self.path,
                "holds a Delta table without a commit of this entity type of this catalog",
            )
        self._table = table
        self._note_newest()
        self.committed = int(self._check_newest(table).get(_COMMITTED, 0))

    @property
    def delta_version(self) -> int:
        """Number of the table's newest commit; -1 before the first one."""
        return self._delta_version

    def missing(self, schema: pa.Schema) -> pa.Schema | None:
        """Return the columns that the table lacks and that can be added.

        None if the table must be rewritten: it has a column that the schema lacks or has with another type.
        """
        if self._table is None:
            return None
        has = {field.name: field.type for field in self._table.schema().fields}
        wanted = {field.name: field.type for field in LakeSchema.from_arrow(schema).fields}
        if any(wanted.get(name) != kind for name, kind in has.items()):
            return None
        return pa.schema([field for field in schema if field.name not in has])

    def rewrite(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], version: int) -> None:
        """Replace all rows and the columns by those of a version."""
        self.refuse_foreign()
        with self._errors(), _BatchSource(schema, batches) as source:
            if self._table is None:
                self.path.mkdir(parents=True, exist_ok=True)
                reach("delta.before_commit")
                write_deltalake(
                    str(self.path),
                    source,
                    # Fail if another writer has created a table in the meantime.
                    mode="error",
                    commit_properties=self._properties(version),
                )
                self._table = DeltaTable(str(self.path))
            else:
                reach("delta.before_commit")
                write_deltalake(
                    self._table,
                    source,
                    mode="overwrite",
                    schema_mode="overwrite",
                    commit_properties=self._properties(version),
                )
        self._committed(version)

    def merge(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], version: int, *, counted: bool
    ) -> bool:
        """Apply the changes up to a version; return False if there was nothing to commit.

        There is nothing to commit if all removed rows were never in the table: then the table already shows the
        version.

        Args:
            schema: The schema of the batches: the table's columns, then `LIVE`.
            batches: One row for each key. For a removed row all columns except the key are null.
            version: The version that the table shows afterwards.
            counted: True if rows have no key. Each count is then added to the table's count, and a row is
                deleted when its count becomes zero.
        """
        self.refuse_foreign()
        assert self._table is not None
        with self._errors(), _BatchSource(schema, batches) as source:
            reach("delta.before_commit")
            merger = self._table.merge(
                source,
                _SAME_KEY,
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(version),
            )
            if counted:
                own = [name for name in schema.names if name not in (KEY, COUNT, LIVE)]
                merger = (
                    merger.when_matched_delete(f"{_ADDED_COUNT} = 0")
                    .when_matched_update({COUNT: _ADDED_COUNT, own[0]: f"s.{own[0]}"})
                    .when_not_matched_insert_all(f"s.{COUNT} <> 0", except_cols=[LIVE])
                )
            else:
                merger = (
                    merger.when_matched_delete(f"NOT s.{LIVE}")
                    .when_matched_update_all(f"s.{LIVE}", except_cols=[LIVE])
                    .when_not_matched_insert_all(f"s.{LIVE}", except_cols=[LIVE])
                )
            merger.execute()
        # The library makes no commit if no row of the table changes.
        if self._table.version() == self._delta_version:
            return False
        self._committed(version)
        return True

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns; they are null in all existing rows."""
        self.refuse_foreign()
        assert self._table is not None
        assert self.version is not None
        with self._errors():
            self._table.alter.add_columns(
                LakeSchema.from_arrow(schema).fields,
                commit_properties=self._properties(self.version),
            )
        self._committed(self.version)

    def note(self, version: int) -> None:
        """Commit without changes, to record that the table shows a version."""
        self.refuse_foreign()
        assert self._table is not None
        with self._errors(), _BatchSource(pa.schema(self._table.schema().to_arrow()), ()) as source:
            write_deltalake(
                self._table, source, mode="append", commit_properties=self._properties(version)
            )
        self._committed(version)

    def tidy(self, keep_hours: int) -> None:
        """Join small files, and delete files that no version of the table in the last hours uses."""
        self.refuse_foreign()
        assert self._table is not None
        assert self.version is not None
        with self._errors():
            # Both calls commit. Record the new numbers, or the commits would look like another writer's.
            self._table.optimize.compact(commit_properties=self._properties(self.version))
            self._note_newest()
            self._table.vacuum(
                retention_hours=keep_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                commit_properties=self._properties(self.version),
            )
            self._note_newest()

    # The metadata of each commit, and the checks before and after it.

    def _properties(self, version: int) -> CommitProperties:
        return CommitProperties(
            custom_metadata={
                _VERSION: str(version),
                _COMMITTED: str(self.timestamp_of(version) or 0),
                _COMMIT: str(self._delta_version + 1),
                _RUN: self._run,
            },
            # Delta would retry a commit that lost a race after the winner's commit. Our commit is valid only
            # directly after the version that it was computed from.
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, version)],
        )

    def _committed(self, version: int) -> None:
        """Record a commit, after a check that it got the next number."""
        assert self._table is not None
        reach("delta.after_commit")
        found = self._table.version()
        if found != self._delta_version + 1:
            raise LakeTableChanged(
                self.path, f"a commit got the number {found}, not {self._delta_version + 1}"
            )
        self.version = version
        self._note_newest()

    def _note_newest(self) -> None:
        assert self._table is not None
        self._delta_version = self._table.version()
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            found = (self.path / "_delta_log" / f"{self._delta_version:020}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def refuse_foreign(self) -> None:
        """Raise LakeTableChanged if another writer has changed the table."""
        with self._errors():
            if self._table is None:
                if DeltaTable.is_deltatable(str(self.path)):
                    raise LakeTableChanged(self.path, "another program has created a table there")
                return
            if not DeltaTable.is_deltatable(str(self.path)):
                raise LakeTableChanged(self.path, "it was deleted")
            # A recreated table may have as many commits, but their files have other inodes and times.
            if self._stamp_now() != self._stamp:
                raise LakeTableChanged(self.path, "it was deleted, and another table was created")
            self._table.update_incremental()
            if self._table.version() != self._delta_version:
                self._check_newest(self._table)
                raise LakeTableChanged(
                    self.path, "another run of this export writes to it; end one of them"
                )

    def _check_newest(self, table: DeltaTable) -> dict[str, Any]:
        """Return the newest commit.

        Raise LakeTableChanged if it is not ours, or does not have its expected number.
        """
        newest: dict[str, Any] = table.history(1)[0]
        number = table.version()
        # A vacuum makes two commits, and both carry the number that the first one was expected to get.
        expected = {number, number - 1} if newest["operation"] == "VACUUM END" else {number}
        if newest.get(_COMMIT) not in {str(each) for each in expected}:
            raise LakeTableChanged(
                self.path,
                f"its commit {number} is {_shown(newest)}, but the last commit of this export left "
                f"version {self.version} of the catalog",
            )
        return newest

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the Delta library and of the system into ours."""
        try:
            yield
        except CommitFailedError as error:
            raise LakeTableChanged(
                self.path, f"another program wrote to it at the same time ({_first_line(error)})"
            ) from error
        except Exception as error:
            # The library raises some of its errors as plain `Exception`.
            if type(error) is not Exception and not isinstance(error, DeltaError | OSError):
                raise
            raise LakeUnwritable(self.path, _first_line(error)) from error


class _BatchSource:
    """A source of batches for the Delta library, which reads them in its own thread and reports errors as text.

    If reading the batches raised an error, leaving the context raises that error instead of the library's.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches
        self._error: BaseException | None = None

    def __enter__(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._noting_errors())

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._error is not None:
            raise self._error

    def _noting_errors(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self._error = error
            raise


def _is_leftover(path: Path) -> bool:
    return path.name == "_delta_log" or path.name.startswith("part-")


def _shown(commit: dict[str, Any]) -> str:
    return f"{commit.get('operation', 'of no name')} by {commit.get('engineInfo', 'somebody')}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
