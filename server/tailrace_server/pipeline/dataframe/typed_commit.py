"""The write of typed rows: what tasks do, and what the commit does beside the driver.

::

    task      rows ──▶ changes ──▶ sorted runs ─┐
    task      rows ──▶ changes ──▶ sorted runs ─┴─▶ commit: merged ──▶ records ──▶ one segment, one entry

If all rows are upserts of one version, and no row of the log is needed, the order of the records is free, and
tasks write them. The commit numbers them::

    task      rows ──▶ changes ──▶ segment ─┐
    task      rows ──▶ changes ──▶ segment ─┴─▶ commit: keys compared ──▶ lead, indexes raised ──▶ one entry

Everything that can be wrong with a row is found before the entry exists, so a refused write leaves the log as
it was. Memory is bounded in both: a task sorts one run at a time, and the commit has one window of all runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.failpoints import reach
from tailrace_server.pipeline.catalog.columns import Sighting, evolve
from tailrace_server.pipeline.dataframe.change_tally import SourceVersions
from tailrace_server.pipeline.dataframe.newest_rows import NewestRows
from tailrace_server.pipeline.dataframe.repeated_keys import repeated_key
from tailrace_server.pipeline.dataframe.runs import RunWriter, delete, fewer, merged
from tailrace_server.pipeline.dataframe.typed_rows import KIND_NAMES, UPSERT
from tailrace_server.pipeline.dataframe.typed_versions import (
    StateComparison,
    VersionsWriter,
    paired,
    refused,
)
from tailrace_server.pipeline.input.column_listing import announced, listing
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.schema.records import schema_records
from tailrace_server.wal.schema.restating import carries_all
from tailrace_server.wal.segment.writer import renumbered
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tailrace.schema import Column, Schema
    from tailrace_server.pipeline.dataframe.runs import SortedRun, TypedPart
    from tailrace_server.pipeline.dataframe.typed_rows import TypedForm
    from tailrace_server.pipeline.dataframe.typed_versions import ChangeRecords, WrittenVersions
    from tailrace_server.pipeline.dataframe.write_options import Options
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.source_batches import SourceBatch
    from tailrace_server.wal.state.view import LogView


def write_typed(
    typed: TypedForm, batches: Iterable[pa.RecordBatch], catalog: Path, name: str, *, numbered: bool
) -> TypedPart:
    """Write the rows of a task to files. Runs in the task.

    Args:
        typed: The form of the rows.
        batches: The rows.
        catalog: The catalog's folder.
        name: Path of the files relative to that folder, without number and ending; unique to this attempt.
        numbered: True if the write may be repeated.

    Raises:
        InvalidRequest: A row cannot be written.
        LogFull: There is no space.
    """
    with RunWriter(typed, catalog, name, numbered=numbered) as writer:
        for batch in batches:
            writer.add(batch)
        return writer.finish()


def hashed_as(view: LogView) -> Mapping[str, str]:
    """Return, for each renamed entity type, the name under which the keys of its rows are hashed."""
    schema = view.schema_of(view.published)
    first = {name: EntityNames(schema, name).first_name(view) for name in schema.entity_types}
    return {name: before for name, before in first.items() if before != name}


def stated(schema: Schema, typed: TypedForm, names: Sequence[str]) -> list[tuple[int, Schema]]:
    """Return the schemas that begin with a write of entity types, as `columns.evolve`.

    Raises:
        InvalidRequest: The log cannot hold the columns. The error names entity type and column.
    """
    sightings = [Sighting(0, name, None, None, _listing(schema, typed, name)) for name in names]
    found = evolve(schema, sightings)
    for name in names:
        _check_columns(name, schema.columns(name), found[-1][1].columns(name) if found else ())
        key = schema.key_columns(name)
        if key and tuple(key) != typed.key:
            raise InvalidRequest(
                f"{name}: the key is {', '.join(typed.key)}, and in the log it is {', '.join(key)}; "
                "a table keeps its key: write it under another name"
            )
    return found


def _listing(schema: Schema, typed: TypedForm, name: str) -> str:
    """Return the columns of a form; a column that has only nulls keeps its type of the catalog."""
    given = announced(typed.listing)
    known = {column.name: (column.sql_type, column.encoding) for column in schema.columns(name)}
    columns = [
        (each, *(known.get(each, (None, "json")) if kind is None else (kind, encoding)), nullable)
        for each, kind, encoding, nullable in given.columns
    ]
    return listing(columns, given.key, Origin.TABLE)


def _check_columns(name: str, before: Iterable[Column], after: Sequence[Column]) -> None:
    known = {column.id: column for column in before}
    folded = {column.name.casefold(): column.name for column in known.values()}
    for column in after:
        old = known.get(column.id)
        if old is None:
            other = folded.get(column.name.casefold(), column.name)
            if other != column.name:
                raise InvalidRequest(
                    f"{name}: column {column.name!r} differs from the log's column {other!r} by case "
                    "only; rename one of them"
                )
        elif not carries_all(old, column):
            raise InvalidRequest(
                f"{name}: column {column.name!r} is {_shown(column)}, which cannot hold the values that "
                f"the log has as {_shown(old)}; cast it to that type, or write it under another name"
            )


def _shown(column: Column) -> str:
    kind = column.sql_type or "an unknown type"
    return kind if column.encoding == "json" else f"{kind} in encoding {column.encoding}"


def commit_typed(
    options: Options,
    typed: TypedForm,
    epoch: int,
    parts: Sequence[TypedPart],
    source: SourceBatch | None,
) -> None:
    """Make the versions of a write from the runs of its tasks, and commit them. Runs beside the driver.

    Args:
        options: The options of the write.
        typed: The form of the rows.
        epoch: The epoch under which the tasks wrote.
        parts: The rows of the tasks.
        source: The batch of the source; None: the write has no number.

    Raises:
        InvalidRequest: The rows do not make versions, or the log has the batch with other content.
        UnknownWriter: The writer takes the batches of another checkpoint.
        WriterFenced: A newer writer holds the catalog.
        LogFull: There is no space.
    """
    runs = [run for part in parts for run in part.runs]
    segments = [segment for part in parts for segment in part.segments]
    with CatalogWriter.attach(
        options.root, options.catalog, epoch=epoch, writer=options.writer
    ) as writer:
        try:
            if not _Commit(options, typed, writer, runs, segments, parts).commit(source):
                delete(writer.path, segments)
        except InvalidRequest:
            delete(writer.path, segments)
            raise
        finally:
            # No retry reads these runs: a repeated write has runs of its own.
            delete(writer.path, runs)


class _Commit:
    """The commit of one write."""

    def __init__(
        self,
        options: Options,
        typed: TypedForm,
        writer: CatalogWriter,
        runs: Sequence[SortedRun],
        segments: Sequence[SegmentReceipt],
        parts: Sequence[TypedPart],
    ) -> None:
        self._options, self._typed, self._writer = options, typed, writer
        self._runs, self._segments = runs, segments
        # An empty snapshot is one version, which removes every row.
        emptied = [typed.entity_type] if options.snapshot else []
        self._versions = SourceVersions((part.tally for part in parts), emptied)
        self._names = self._versions.names
        writer.log.refresh()
        self._view = writer.log.committed_view()
        self._schema = self._view.schema_of(writer.state.last_version)

    def commit(self, source: SourceBatch | None) -> bool:
        """Write and commit the versions; return False if the log has them already."""
        options, writer = self._options, self._writer
        if source is not None and writer.find_source(source) is not None:
            writer.commit(source=source, publish=options.publish)
            return False
        schemas = stated(self._schema, self._typed, self._names)
        found = self._write(schemas)
        whole = options.whole_removals
        removals = {name: lacking or not whole for name, lacking in found.removals.items()}
        reach("pipeline.before_commit")
        writer.commit(
            source=source,
            segments=found.segments,
            schema_changes=schemas if found.segments else (),
            source_positions=writer.state.whole_removals.notes_after(
                removals, writer.state.last_version + 1
            ),
            publish=options.publish,
        )
        reach("pipeline.after_commit")
        return True

    def _write(self, schemas: Sequence[tuple[int, Schema]]) -> WrittenVersions:
        """Write the segments of the versions."""
        schema = schemas[-1][1] if schemas else self._schema
        writer, options, names = self._writer, self._options, self._names
        batch = writer.state.writers[writer.writer].batch_id + 1
        name = f"segments/{writer.epoch}/{writer.writer}-{batch}-{uuid4().hex[:16]}"
        runs = fewer(writer.path, self._runs, names, name)
        # Tasks write segments only if there is nothing to compare with.
        compares = not self._segments and (options.snapshot or options.whole_images)
        if compares and len(self._versions.numbers) > 1:
            raise InvalidRequest(
                "with images=full or mode=snapshot a write is one version, and the rows are of "
                f"{len(self._versions.numbers)}; leave out the column _commit_version, or write the versions "
                "one by one"
            )
        newest, key = partial(self._newest, schema), self._typed.key

        def records() -> Iterator[ChangeRecords]:
            found = (paired(each, names, key) for each in merged(writer.path, runs, names))
            if not compares:
                return found
            return StateComparison(
                newest, names, self._versions, snapshot=options.snapshot
            ).completed(found)

        versions = VersionsWriter(
            writer.path / f"{name}.arrow",
            self._versions,
            schema_records(self._schema, schema),
            renamed=bool(hashed_as(self._view)),
        )
        exact = not (compares and options.snapshot) and not self._versions.may_pair
        try:
            found = versions.write(records, exact=exact, elsewhere=self._direct_records(runs))
        finally:
            delete(writer.path, runs)
        # The segments of the tasks continue the version, so raise their indexes, which count from 1.
        before = found.records
        for segment in self._segments:
            found.segments.append(renumbered(writer.path, segment, before - 1))
            before += segment.rows
        return found

    def _direct_records(self, runs: Sequence[SortedRun]) -> int:
        """Return the number of records that the tasks have written; refuse keys that several have."""
        if not self._segments:
            return 0
        found = repeated_key(self._writer.path, self._segments, runs, self._names)
        if found is not None:
            name, key, count = found
            raise refused(self._typed.key, name, key, 0, [KIND_NAMES[UPSERT]] * count)
        return sum(segment.rows for segment in self._segments)

    def _newest(self, schema: Schema, name: str, keys: Sequence[str] | None) -> NewestRows:
        return NewestRows(
            self._writer, name, schema.entity_types[name], keys, whole=self._options.snapshot
        )


def prepared(typed: TypedForm, options: Options, writer: CatalogWriter) -> TypedForm:
    """Return a form whose tasks write records if they can, and else changes with the log's key hashes."""
    known = writer.log.view.schema_of(writer.state.last_version).entity_types
    compares = options.snapshot or options.whole_images
    # A new entity type has no rows to compare with.
    if typed.is_plain and (not compares or typed.entity_type not in {"", *known}):
        return replace(typed, direct=True)
    return replace(typed, hashed_as=hashed_as(writer.log.committed_view()))
