"""The exporter: published versions of one entity type as a Materialize CDC stream in a folder.

::

    begin     open log and folder ─▶ check the images of all records ─▶ fix the columns ─▶ claim the folder
    advance   newest view ─▶ check new versions ─▶ write files from the frontier to the published version

The time of an update is its version. The first interval begins at 0. A stream that begins with a snapshot at
version V has all rows of V as updates at V, and no earlier updates. The folder is the only state between runs:
the names of its files say how far the export has come.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import structs

from tailrace.cdcv2 import Progress, Update, Writer
from tailrace.errors import ImagesMissing, InvalidRequest
from tailrace.schema import Origin
from tailrace_server.cdcv2 import AvroForm, ContainerReader, write_container
from tailrace_server.export.diffs import Differences, ImageCheck
from tailrace_server.export.errors import FolderTaken, ImageUnfit
from tailrace_server.export.folder import StreamFolder, StreamIdentity
from tailrace_server.export.row_form import RowForm
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.files.schema_documents import ColumnDocument
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.common_type import common_type
from tailrace_server.wal.schema.restating import first_stated, read_as, under_own_names
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.entity_records import EntityRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.cdcv2 import Statement
    from tailrace.schema import Column
    from tailrace_server.export.diffs import Rows
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

_COMMITTED: Final = "tailrace.committed"
"""Name in a file's metadata for the commit time of the file's last version, in µs."""
UPDATES_MAX: Final = 100_000
"""Number of updates after which a file is closed, at the end of the version that reaches the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """The table to export, and the folder to write to."""

    log: Path
    catalog: str
    entity_type: str
    output: Path
    since: int | None = None
    """The version whose snapshot begins the stream; None: the stream begins with the log."""
    like: Path | None = None
    """Folder of another export whose columns are used, so that the files of both can be merged; None: none."""


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far an export has come, and what the current call of `Cdcv2Export.advance` has written."""

    frontier: int
    """The first version that is not in the folder."""
    updates: int = 0
    """Number of updates in the files written by the call."""
    files: int = 0
    """Number of files created by the call."""


class Cdcv2Export:
    """One export; a context manager, created by `begin`. Its methods block; use one thread at a time."""

    def __init__(
        self,
        log: CommitLog,
        records: EntityRecords,
        folder: StreamFolder,
        identity: StreamIdentity,
        check: ImageCheck,
        checked: int,
        stopping: Event,
    ) -> None:
        """Store the parts of an export; callers use `begin`."""
        self.log = log
        self._records = records
        self._folder = folder
        self._since = identity.since
        self._form = form = RowForm(
            identity.stream_columns(), lambda: first_stated(log.view.schemas())
        )
        self._avro = AvroForm.of_data(form.avro_record())
        self._differences = Differences(records, form, check.layouts)
        self._check = check
        self._checked = checked
        """The last version whose images have been checked."""
        self._stopping = stopping
        self._open = ExitStack()

    @classmethod
    def begin(cls, settings: ExportSettings, stopping: Event | None = None) -> Cdcv2Export:
        """Open log and folder, and check every published record before anything is written.

        Args:
            settings: The table to export, and the folder.
            stopping: Any thread may set this event. It ends this call, and ends ``advance`` after the current
                file.

        Raises:
            InterruptedError: ``stopping`` was set.
            InvalidRequest: The entity type is unknown, or ``since`` is not a published version.
            FolderTaken: The folder holds something else.
            ImagesMissing: A record lacks an image that the export needs.
            PositionCompacted: The log no longer has the versions that are to be read.
            LogUnreadable, LogCorrupted: The log cannot be opened.
        """
        with ExitStack() as stack:
            # 1. Is the folder free, or does it hold an earlier part of the same stream?
            log = open_catalog(settings.log, settings.catalog)
            reader = stack.enter_context(BatchReader(log.path))
            records = EntityRecords(log, reader, settings.entity_type)
            folder = StreamFolder(settings.output)
            wanted = _wanted(settings, log, records)
            found = folder.identity()
            if found is not None:
                folder.refuse_other(found, wanted)
            # 2. Does the log reach back far enough? A snapshot is folded from the log's beginning, so it
            #    needs version 1 until it has been written.
            frontier = folder.frontier()
            if frontier > log.view.published + 1:
                raise FolderTaken(
                    folder.path,
                    f"has the versions up to {frontier - 1}, but the log ends at {log.view.published}; "
                    "the log was probably restored from an older copy",
                )
            _refuse_other_history(folder, log.view, frontier)
            records.require(1 if frontier <= wanted.since else frontier)
            # 3. Check every version, also those that are in the folder: whether an UPSERT without ``before``
            #    is an insert depends on all records before it.
            published = log.view.published
            known = records.columns_in(log.view.schema_of(published))
            check, seen = ImageCheck(records), dict.fromkeys([known])
            stopping = stopping or Event()
            for version in records.versions(log.view.oldest.version, published + 1):
                if stopping.is_set():
                    raise InterruptedError("stopped before the first message")
                check.see(version)
                seen[version.columns] = None
            # 4. Fix the columns. They never change once the folder has an identity, since all files of a
            #    stream share one schema.
            columns: Sequence[Column] = _columns_of(known, seen, first_stated(log.view.schemas()))
            if found is not None:
                columns = found.stream_columns()
            if settings.like is not None:
                like = _like(settings.like, wanted)
                if found is not None and like != columns:
                    raise FolderTaken(folder.path, f"has other columns than {settings.like}")
                columns = like
            # 5. Claim the folder. If another exporter was faster, use the identity that it has written.
            schema = AvroForm.of_data(RowForm(columns).avro_record()).text.encode() + b"\n"
            documents = [ColumnDocument.of(column) for column in columns]
            identity = folder.begin(structs.replace(wanted, columns=documents), schema)
            export = cls(log, records, folder, identity, check, published, stopping)
            export._open = stack.pop_all()
            return export

    def __enter__(self) -> Cdcv2Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log's files."""
        self._open.close()

    def advance(
        self, tell: Callable[[ExportProgress], None] = lambda written: None
    ) -> ExportProgress:
        """Write the published versions that are not in the folder yet.

        Args:
            tell: Called after each file with the progress so far.

        Raises:
            ImagesMissing, ImageUnfit: A version cannot be exported; the versions before it have been written.
            FolderTaken, LogFull: The folder cannot be written.
            CatalogReplaced, PositionCompacted, LogCorrupted: The log cannot be read.
        """
        self.log.refresh()
        schema = self.log.view.schema_of(self.log.view.published)
        self._form.unavailable = unavailable(schema.placeholders)
        failure = self._check_new(self.log.view.published)
        written = ExportProgress(self._folder.frontier())
        for interval in self._intervals(written.frontier, self._checked + 1):
            lower, upper = interval.lower, interval.upper
            created = self._folder.publish(lower, upper, partial(self._write, interval))
            written = ExportProgress(
                upper, written.updates + interval.updates, written.files + created
            )
            tell(written)
            if self._stopping.is_set():
                return written
        # Raise only now: the versions before the faulty one have been exported.
        if failure is not None:
            raise failure
        return written

    def _check_new(self, published: int) -> ImagesMissing | None:
        """Check the new versions; return the error for the first version that cannot be exported, or None."""
        for version in self._records.versions(self._checked + 1, published + 1):
            try:
                self._check.see(version)
            except ImagesMissing as error:
                return error
            self._checked = version.number
        self._checked = published
        return None

    def _intervals(self, lower: int, stop: int) -> Iterator[_Interval]:
        """Yield the intervals from ``lower`` to ``stop`` (exclusive); each becomes a file.

        Raises:
            ImageUnfit: An image does not fit the schema; the versions before it have been yielded.
        """
        writer: Writer[int] = Writer(start=(lower,))
        # A snapshot cannot be divided, whatever its size: all of its updates have one time.
        if lower <= self._since != 0:
            _write_version(writer, self._since, self._differences.collection(self._since))
            yield _closed(writer, self._since + 1)
            lower = self._since + 1
        failure, updates = None, 0
        try:
            for version, rows in self._differences.between(max(lower, 1), stop):
                _write_version(writer, version, rows)
                updates += len(rows)
                if updates >= UPDATES_MAX:
                    yield _closed(writer, version + 1)
                    lower, updates = version + 1, 0
        except ImageUnfit as error:
            # First close the interval of the versions that do fit. The frontier then says where an export into
            # a new folder has to continue.
            failure, stop = error, error.version
        if lower < stop:
            yield _closed(writer, stop)
        if failure is not None:
            raise failure

    def _write(self, interval: _Interval, file: BinaryIO) -> None:
        committed = self.log.view.known_timestamp_of(interval.upper - 1) or 0
        metadata = {_COMMITTED: str(committed).encode()}
        write_container(self._avro, file, interval.statements, metadata=metadata)


@dataclass(frozen=True, slots=True)
class _Interval:
    """The contents of one file."""

    lower: int
    """The first version, inclusive."""
    upper: int
    """The end of the interval, exclusive."""
    statements: list[Statement[int]]
    """The updates in the order of their times, then one progress statement."""
    updates: int
    """Number of updates."""


def _write_version(writer: Writer[int], version: int, rows: Rows) -> None:
    writer.write(Update(row, version, diff) for row, diff in rows.items())


def _closed(writer: Writer[int], upper: int) -> _Interval:
    (lower,) = writer.frontier
    statements = writer.advance((upper,))
    updates = sum(len(each) for each in statements if not isinstance(each, Progress))
    return _Interval(lower, upper, statements, updates)


def _refuse_other_history(folder: StreamFolder, view: LogView, frontier: int) -> None:
    """Raise if the last version in the folder has another commit time than in the log.

    Raises:
        FolderTaken: The times differ: the log was restored from an older copy and then written differently.
    """
    path = folder.newest(frontier)
    found = view.known_timestamp_of(frontier - 1)
    if path is None or not found:
        return
    with path.open("rb") as file:
        written = int(ContainerReader(file).metadata.get(_COMMITTED, b"0"))
    if written and written != found:
        raise FolderTaken(
            folder.path,
            f"has version {frontier - 1} as committed at {written}, but the log's was committed at "
            f"{found}; the log was probably restored from an older copy and written again",
        )


def _wanted(settings: ExportSettings, log: CommitLog, records: EntityRecords) -> StreamIdentity:
    """Return the identity of the stream that the settings describe, without columns.

    Raises:
        InvalidRequest: ``since`` is not a published version.
    """
    published = log.view.published
    if settings.since is not None and not 1 <= settings.since <= published:
        raise InvalidRequest(
            f"--since {settings.since}: the published versions are 1 to {published}"
        )
    known = records.columns_in(log.view.schema_of(published))
    return StreamIdentity(
        catalog_uuid=str(log.uuid),
        entity_type=settings.entity_type,
        entity_id=known[0].id if known else 0,
        since=settings.since or 0,
        columns=[],
    )


def _columns_of(
    known: tuple[Column, ...],
    seen: Collection[tuple[Column, ...]],
    stated: Mapping[int, Column],
) -> tuple[Column, ...]:
    """Return the columns of a new stream: the known columns, each with a type that can hold its whole history.

    A column is nullable if it ever was nullable or absent, or is dropped.

    Args:
        known: The columns as of the published version.
        seen: The columns as of each version.
        stated: Each column as it was first declared, by column id.
    """
    history: dict[int, list[Column]] = {}
    for column in chain(*seen, known):
        history.setdefault(column.id, []).append(read_as(column, stated.get(column.id)))
    # Columns that were present and not nullable in every version.
    always = set.intersection(
        *({column.id for column in each if not column.nullable} for each in seen)
    )
    return tuple(
        replace(
            _holding(column, history[column.id]),
            nullable=column.dropped or column.id not in always,
        )
        for column in under_own_names(known)
    )


def _holding(column: Column, history: Sequence[Column]) -> Column:
    """Return a column with a type that can hold all of the values in its history."""
    found = common_type([(each.sql_type, each.encoding) for each in history])
    if found == (column.sql_type, column.encoding):
        return column
    sql_type, encoding = found
    return replace(column, sql_type=sql_type, encoding=encoding, origin=Origin.DECLARED)


def _like(folder: Path, wanted: StreamIdentity) -> Sequence[Column]:
    """Return the columns of another export of the same stream.

    Raises:
        InvalidRequest: The folder holds no export, or an export of another stream.
    """
    other = StreamFolder(folder).identity()
    if other is None:
        raise InvalidRequest(f"--like {folder}: there is no export in this folder")
    if not other.same_start(wanted):
        raise InvalidRequest(f"--like {folder} holds {other}, but this export is {wanted}")
    return other.stream_columns()
