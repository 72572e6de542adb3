"""The maker of bases: reads the state of every entity type at a version, and writes it part by part.

A base is made from the newest base below it and the log between the two, so each record is read only once. A
table without records between the two keeps its files. Rows are read in the order of their key hashes, in
bounded memory (reading.py), and written at once (base_files.py). So memory does not grow with the tables.

The files become part of the log when bases/<n + 1>.json, which is created exclusively, names them. If the
process is killed before that, its files are deleted after another process has created bases/<n + 1>.json.
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
"""The least number of records after the newest base for another base to be due."""
_DUE_SHARE: Final = 2
"""A base is due only after one record for each 2 rows of the newest base."""
_KEPT: Final = 2
"""Number of newest lists of bases that are never reduced to stubs, whatever their age."""


class MadeBase(NamedTuple):
    """The figures of a base that was made."""

    version: int
    tables: int
    kept_tables: int
    """Number of tables that reuse the files of the base before."""
    rows: int
    files: int
    bytes: int


def base_is_due(log: CommitLog) -> bool:
    """Return True if so many records were committed since the newest base that reading state is slow."""
    state = log.state
    known = newest_bases(log.store, log.uuid)
    first = known.first_readable(state.oldest)
    if first is None:
        # The log is trimmed and has no base: no state can be read, so no base can be made.
        return False
    newest = known.bases[-1] if known.bases else None
    rows = 0 if newest is None else sum(table.rows for table in newest.tables)
    behind = _records_behind(state, first if newest is None else newest.version)
    return behind >= max(_DUE_RECORDS, rows // _DUE_SHARE)


def _records_behind(state: LogState, version: int) -> int:
    """Return the number of records after a version, counting the whole batch in which the version ends."""
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
    """Make the base of a version; return None if it exists, or if the log does not reach far enough back.

    Any process may call this at any time.

    Args:
        path: The catalog's folder.
        now: Current time, µs since the epoch.
        version: A published version; None: the newest.
        anew: Make the base from the log alone, even if the base exists.
        reserve: Retain the base until the next checkpoint exists, which may rely on it (``keeps_state``). If
            the base exists or cannot be made, retain the first base at or after the version instead.

    Raises:
        LogCorrupted: The log, or the base below, is damaged; nothing was changed.
        LogFull: The device has no room; nothing was changed.
    """
    for _ in range(_ATTEMPTS):
        # 1. Read the log and the bases anew: another process may have made this base meanwhile.
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
        # 2. Write the files. No object names them yet, so a failure or a kill changes nothing for readers.
        # 3. Name all of them by one object. If that fails, delete them: their names contain the number of that
        #    object, which another process has used.
        maker = _Maker(view, below, at, known.number + 1)
        named = False
        try:
            base = maker.make(path)
            others = [each for each in known.bases if each.version != at]
            bases = sorted([*others, base], key=lambda each: each.version)
            named = _name(log, known, bases, now, made=at, reserve=at if reserve else None)
        except SegmentMissing:
            # If another process has compacted or trimmed the log, or changed the bases, begin anew. Otherwise
            # the file is lost.
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
    """Delete the files that were written for a list of bases, except those that the newest list names.

    If the newest list cannot be read, delete nothing.
    """
    # The device may fail after the list was created. Then the list names the files, and they must stay.
    with suppress(LogError):
        named = set(paths_in(newest_bases(log.store, log.uuid).bases))
        for each in files:
            if each not in named:
                log.store.delete(each)


def keeps_state(log: CommitLog, first: int) -> bool:
    """Return True if the next checkpoint can remove all below a version without making any state unreadable.

    That is so if a base with the earlier rows is reserved for that checkpoint, or if no state is readable now.

    Args:
        log: The log, read up to its newest checkpoint.
        first: The first version that the checkpoint retains, or whose bodies it retains.
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
    """Reserve the first base at or after a version, if any, for the next checkpoint.

    Return False if another process has created the next list of bases first: then the caller has to begin anew.
    """
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
    """Create the next list of bases.

    Return False if another process has created that list first, or if the log was trimmed so far that ``made``
    or ``reserve`` is useless.

    Args:
        log: The log; this call reads it to its end.
        known: The list that the new one follows.
        bases: The bases, by version; those that are not needed are left out.
        now: Current time, µs since the epoch.
        made: Version of the base that was made for this list.
        reserve: Version of the base to retain until the next checkpoint exists.
    """
    # 1. Read the log after ``known``. So for each checkpoint that relies on one of the bases, either the
    #    checkpoint has been read here, or ``known`` has its reservation (rule 3 of bases.py).
    log.advance()
    reserved = _reserved(known, log.state)
    if reserve is not None:
        reserved.add((reserve, log.state.checkpoint + 1))
    # 2. Leave out the bases that are not needed, but retain each base on which a coming checkpoint may rely. If
    #    the log was meanwhile trimmed past ``made`` or ``reserve``, the caller has to choose another base.
    needed = _needed(bases, log.state, {version for version, _ in reserved} | {made})
    versions = {each.version for each in needed}
    if not {made, reserve} - {None} <= versions:
        return False
    # 3. Create the list. This fails if another process has created the one after ``known``.
    reserved = {each for each in reserved if each[0] in versions}
    return write_bases(log.store, log.uuid, known, needed, reserved, now)


def _reserved(known: KnownBases, state: LogState) -> set[tuple[int, int]]:
    """Return the reservations that are still valid, because their checkpoint does not exist yet."""
    return {each for each in known.reserved if each[1] > state.checkpoint}


def _needed(
    bases: Sequence[BaseDocument], state: LogState, kept: Collection[int | None]
) -> list[BaseDocument]:
    """Return the bases to retain: the newest one, each one that replaces records or bodies, and ``kept``.

    A base replaces records that were trimmed, or bodies of an entity type that have expired: the state of the
    next versions can be read only from that base.

    Args:
        bases: The bases, by version.
        state: The log's state.
        kept: Versions of further bases to retain.
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
    """Remove from the list of bases those that a trim has made useless.

    Raises:
        LogFull: The device has no room. The next base that is made removes them.
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
    """Writes the files of one base."""

    def __init__(
        self, view: LogView, below: BaseDocument | None, version: int, number: int
    ) -> None:
        self._view = view
        self._below = below
        self._version = version
        self._number = number
        self._kept = 0
        self.written: list[str] = []
        """Paths of the files that were written."""

    def make(self, path: Path) -> BaseDocument:
        """Write the files of all tables, and return the base that names them."""
        schema = self._view.schema_of(self._version)
        # If the bodies of an entity type have expired up to and past the version, its state cannot be read: the
        # base has no table for it.
        begins = self._view.bodies.by_name(self._version)
        with BatchReader(path) as reader:
            tables = [
                self._table(reader, EntityNames(schema, name), name)
                for name in schema.entity_types
                if begins.get(name, 0) <= self._version + 1
            ]
        return BaseDocument(self._version, tables)

    def made(self, base: BaseDocument) -> MadeBase:
        """Return the figures of the base."""
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
        """Write the files of one table; reuse the files of the base below if the table has no later records."""
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
    """Delete files of dropped bases whose grace period is over, and orphans; return the paths of these files.

    Any process may call this at any time.

    Raises:
        LogError: The device failed; the next call deletes the remaining files.
    """
    log = CommitLog.open(path)
    known = newest_bases(log.store, log.uuid)
    before = now - int(grace_s * 1e6)
    gone = unnamed_rows(log.store, known.document, before)
    deleted = [file for file in gone if log.store.delete(file)]
    # Reduce old lists to stubs: the newest list names those of their files that still exist. Lists become stubs
    # in the order of their numbers. So search downwards, and stop at the first stub: all lists below are stubs.
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
    """Return True if files exist that have been unnamed at least since a time, µs."""
    document = newest_bases(log.store, log.uuid).document
    return document is not None and any(
        since <= before and log.store.exists(path) for path, since in document.removed
    )


def unnamed_rows(
    store: ObjectStore, document: BasesDocument | None, before: int | None = None
) -> list[str]:
    """Return the existing files that no base names: files of dropped bases, and orphans.

    An orphan was written for a list of bases that another process created instead, without this file.

    Args:
        store: The catalog's objects.
        document: The newest list of bases; None if there is none.
        before: Return only files that were unnamed at this time, µs; None: all.
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
