"""Making a base: the state of every entity type at a version, read and written part by part.

A base is made from the newest one below it and the log in between, so the whole past is read once only. A
table without records in between keeps its files. Rows are read by key hash in bounded memory (reading.py), and
written as they come (base_files.py), so nothing grows with the tables.

The files have no name in the log until bases/<n + 1>.json is created, exclusively. What is killed before that
leaves files which no object names and none will once n + 1 exists: they go with the next deletion.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.errors import LogError
from tailrace.position import FIRST, Position
from tailrace_server.wal.base.base_files import BaseWriter
from tailrace_server.wal.base.bases import (
    KnownBases,
    bases_path,
    newest_bases,
    paths_in,
    superseded,
    table_in,
    write_bases,
)
from tailrace_server.wal.base.reading import state_over
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.sealed import object_numbers
from tailrace_server.wal.files.sequence_documents import (
    BASE_ROWS,
    BASES,
    BaseDocument,
    BasesDocument,
    BaseTableDocument,
)
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.batch_table import FIRST_ROW, find_position
from tailrace_server.wal.state.checkpoint import DELETE_GRACE_S
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.state import LogState
    from tailrace_server.wal.state.view import LogView

_ATTEMPTS: Final = 8
_DUE_RECORDS: Final = 1 << 20
"""Records behind the newest base before another is due, …"""
_DUE_SHARE: Final = 2
"""… and at least one for so many of its rows."""
_KEPT: Final = 2
"""Newest objects that keep what they name whatever their age."""


class MadeBase(NamedTuple):
    """The result: the bases that were made."""

    version: int
    tables: int
    kept_tables: int
    """Of these, those whose files the base before had already."""
    rows: int
    files: int
    bytes: int


def base_is_due(log: CommitLog) -> bool:
    """Return whether so much was committed since the newest base that state is slow to read."""
    state = log.state
    known = newest_bases(log.store, log.uuid)
    first = known.first_readable(state.oldest)
    if first is None:
        return False  # nothing says what the rows were
    newest = known.bases[-1] if known.bases else None
    rows = 0 if newest is None else sum(table.rows for table in newest.tables)
    behind = _records_behind(state, first if newest is None else newest.version)
    return behind >= max(_DUE_RECORDS, rows // _DUE_SHARE)


def _records_behind(state: LogState, version: int) -> int:
    """Return how many records are behind a version, those of the batch that it ends in included."""
    columns, count = state.batches.columns, len(state.batches)
    place = find_position(columns, count, Position(version + 1, 0))
    return 0 if place == count else state.end_row - int(columns[FIRST_ROW, place])


def make_base(
    path: Path,
    now: int,
    version: int | None = None,
    *,
    anew: bool = False,
    reserve: bool = False,
) -> MadeBase | None:
    """Make the base of a version, by default the newest; None where there is one, or nothing to make it from.

    Any process may, at any time.

    Args:
        path: The catalog's folder.
        now: µs since the epoch.
        version: A published one.
        anew: Make it from the log alone, also if there is one. Others stay only if state begins with them.
        reserve: Keep the base until the next checkpoint exists, which may rely on it: see ``keeps_state``. If
            the base cannot be made, this keeps the first one behind the version.

    Raises:
        LogCorrupted: What it is made from is damaged; nothing was changed.
        LogFull: No room; nothing was changed.
    """
    for _ in range(_ATTEMPTS):
        # 1. Choose by what is there now: another process may have made it meanwhile.
        log = CommitLog.open(path)
        view = log.view
        at = view.published if version is None else version
        known = newest_bases(log.store, view.uuid)
        below = None if anew else known.below(view, at)
        if at == 0:
            return None
        if (below is None and view.oldest.version > 1) or (
            below is not None and below.version == at
        ):
            if not reserve or _reserve(log, known, at, now):
                return None
            continue
        # 2. Write the files. Nothing names them, so a failure or a kill changes nothing that readers see.
        # 3. Name them all by one object. If that failed, delete them: they were written for its number.
        maker = _Maker(view, below, at, known.number + 1)
        named = False
        try:
            base = maker.make(path)
            others = [each for each in known.bases if each.version != at]
            bases = sorted([*others, base], key=lambda each: each.version)
            named = _name(log, known, bases, now, made=at, reserve=at if reserve else None)
        except SegmentMissing:
            # Another process has replaced or trimmed a file of the log or of the base below. Begin anew.
            if (
                CommitLog.open(path).state.revision == log.state.revision
                and newest_bases(log.store, view.uuid).number == known.number
            ):
                raise
        finally:
            if not named:
                _delete_unnamed_of(log, maker.written)
        if named:
            return maker.made(base)
    return None


def _delete_unnamed_of(log: CommitLog, files: Sequence[str]) -> None:
    """Delete files that were written for an object that was not created; all stay if that is not certain."""
    # A fault of the device may come after the object was created: then it names them, and they stay.
    with suppress(LogError):
        named = set(paths_in(newest_bases(log.store, log.uuid).bases))
        for each in files:
            if each not in named:
                log.store.delete(each)


def keeps_state(log: CommitLog, first: int) -> bool:
    """Return True if state stays readable once the next checkpoint gives up what is below a version.

    Either a base with the rows of before is reserved for that checkpoint, or no state can be read as it is.

    Args:
        log: As it is now: the checkpoint is the one after its newest.
        first: The first version that the checkpoint keeps, or keeps the bodies of.
    """
    known = newest_bases(log.store, log.uuid)
    readable = known.first_readable(log.state.oldest)
    if readable is None or first <= FIRST.version:
        return True
    behind = next((each.version for each in known.bases if each.version >= first - 1), None)
    return (
        behind is not None
        and behind <= max(readable, first - 1)
        and (behind, log.state.checkpoint + 1) in known.reserved
    )


def _reserve(log: CommitLog, known: KnownBases, version: int, now: int) -> bool:
    """Reserve the first base from a version on for the next checkpoint, if there is one; False: begin anew."""
    base = next((each.version for each in known.bases if each.version >= version), None)
    log.advance()
    return (
        base is None
        or (base, log.state.checkpoint + 1) in known.reserved
        or _name(log, known, known.bases, now, reserve=base)
    )


def _name(
    log: CommitLog,
    known: KnownBases,
    bases: Sequence[BaseDocument],
    now: int,
    *,
    made: int | None = None,
    reserve: int | None = None,
) -> bool:
    """Create the next list of bases; False if another list came first, or a wanted base is of no use.

    Args:
        log: The log, which is read to its end here.
        known: The list that is to be followed.
        bases: By version; those that nothing needs are left out.
        now: µs since the epoch.
        made: Version of the base that was made for this list. It is of no use once the log begins above it.
        reserve: Version of the base that stays until the next checkpoint exists.
    """
    # 1. The log is read after ``known``, however long the work between took. So a checkpoint that relies on one
    #    of the bases has either been read, or ``known`` reserves that base for it (bases.py).
    log.advance()
    reserved = _reserved(known, log.state)
    if reserve is not None:
        reserved.add((reserve, log.state.checkpoint + 1))
    # 2. Leave out what nothing needs, but never a base that a coming checkpoint may rely on. If the log was
    #    trimmed past a wanted base meanwhile, the caller has to begin with another one.
    needed = _needed(bases, log.state, {version for version, _ in reserved} | {made})
    versions = {each.version for each in needed}
    if not {made, reserve} - {None} <= versions:
        return False
    # 3. The number decides: the list is created only if no other process has followed ``known``.
    reserved = {each for each in reserved if each[0] in versions}
    return write_bases(log.store, log.uuid, known, needed, reserved, now)


def _reserved(known: KnownBases, state: LogState) -> set[tuple[int, int]]:
    """Return the versions that are reserved, each with its checkpoint, which does not exist yet."""
    return {each for each in known.reserved if each[1] > state.checkpoint}


def _needed(
    bases: Sequence[BaseDocument], state: LogState, kept: Collection[int | None]
) -> list[BaseDocument]:
    """Return the bases that stay: the newest, and those that state begins with.

    State begins with a base where the log is trimmed, and where an entity type lacks its old bodies.

    Args:
        bases: By version.
        state: The log.
        kept: Versions of others that stay.
    """
    oldest = state.oldest
    of_use = [each for each in bases if each.version >= oldest.version - 1]
    floors = [] if oldest == FIRST else [oldest.version]
    floors += [version for _, version in state.bodies_from]
    begins = {
        next((each.version for each in of_use if each.version >= floor - 1), None)
        for floor in floors
    }
    newest = of_use[-1].version if of_use else None
    return [each for each in of_use if each.version in (*begins, *kept, newest)]


def drop_unneeded(path: Path, now: int) -> None:
    """Name no longer the bases that a trim has made useless.

    Raises:
        LogFull: No room; they go with the next base.
    """
    log = CommitLog.open(path)
    for _ in range(_ATTEMPTS):
        known = newest_bases(log.store, log.uuid)
        log.advance()
        kept = {version for version, _ in _reserved(known, log.state)}
        if len(_needed(known.bases, log.state, kept)) == len(known.bases):
            return
        if _name(log, known, known.bases, now):
            return


class _Maker:
    """Makes one base's files."""

    def __init__(
        self, view: LogView, below: BaseDocument | None, version: int, number: int
    ) -> None:
        self._view = view
        self._below = below
        self._version = version
        self._number = number
        self._kept = 0
        self.written: list[str] = []
        """The files that are there."""

    def make(self, path: Path) -> BaseDocument:
        """Write the files of all tables."""
        schema = self._view.schema_of(self._version)
        # Where the images of an entity type begin above, no state of it is promised here: it has no table.
        begins = self._view.bodies.by_name(self._version)
        with BatchReader(path) as reader:
            tables = [
                self._table(reader, EntityNames(schema, name), name)
                for name in schema.entity_types
                if begins.get(name, 0) <= self._version + 1
            ]
        return BaseDocument(self._version, tables)

    def made(self, base: BaseDocument) -> MadeBase:
        """Return what was made."""
        files = {file.path: file for table in base.tables for file in table.files}
        return MadeBase(
            base.version,
            len(base.tables),
            self._kept,
            sum(table.rows for table in base.tables),
            len(files),
            sum(file.bytes for file in files.values()),
        )

    def _table(self, reader: BatchReader, names: EntityNames, name: str) -> BaseTableDocument:
        below = self._below
        state = state_over(self._view, reader, names, name, self._version, below)
        if below is not None and not state.has_changes():
            held = table_in(below, names.name_in(self._view.schema_of(below.version)))
            if held is not None:
                self._kept += 1
                return BaseTableDocument(name, held.hashed_as, held.counted, held.rows, held.files)
        writer = BaseWriter(reader.store, self._number)
        try:
            for rows in state.parts():
                writer.write(rows)
            files = writer.close()
        finally:
            writer.abandon()
            self.written += [file.path for file in writer.files]
        return BaseTableDocument(
            name, state.hashed_as, state.counted, sum(file.rows for file in files), files
        )


def delete_unnamed_rows(path: Path, now: int, *, grace_s: float = DELETE_GRACE_S) -> list[str]:
    """Delete files that no base names any more and that had their grace, and orphans; return their paths.

    Any process may, at any time.

    Raises:
        LogError: The device failed; what is left goes the next time.
    """
    log = CommitLog.open(path)
    known = newest_bases(log.store, log.uuid)
    before = now - int(grace_s * 1e6)
    gone = unnamed_rows(log.store, known.document, before)
    deleted = [file for file in gone if log.store.delete(file)]
    # Old lists become stubs: the newest one names what is left of their files. They are superseded from the
    # lowest number on, so all below one that is superseded need not be read.
    old: list[BasesDocument] = []
    for number in reversed(object_numbers(log.store.names(BASES))[:-_KEPT]):
        found = documents.read(log.store, bases_path(number), BasesDocument)
        if found is not None and found[0].superseded:
            break
        if found is not None and found[0].timestamp <= before:
            old.append(found[0])
    for document in reversed(old):
        log.store.replace(bases_path(document.number), superseded(document))
    return deleted


def deletion_of_rows_is_due(log: CommitLog, before: int) -> bool:
    """Return whether files are there that no base names since a time, µs, or longer."""
    document = newest_bases(log.store, log.uuid).document
    return document is not None and any(
        since <= before and log.store.exists(path) for path, since in document.removed
    )


def unnamed_rows(
    store: ObjectStore, document: BasesDocument | None, before: int | None = None
) -> list[str]:
    """Return the files that no base names: those named once, and orphans, whose number exists without them.

    Args:
        store: The catalog's objects.
        document: The newest that names bases.
        before: Those alone that were named no longer at this time, µs; None: all.
    """
    if document is None:
        return []
    named = set(paths_in(document.bases))
    removed = dict(document.removed)
    found = []
    for name in store.names(BASE_ROWS):
        path = f"{BASE_ROWS}/{name}"
        number = name.partition("-")[0]
        if path in named or not (number.isdecimal() and int(number) <= document.number):
            continue
        if before is None or removed.get(path, before) <= before:
            found.append(path)
    return found
