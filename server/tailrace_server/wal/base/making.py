"""The maker of bases: reads the state of every entity type at a version, and writes it part by part.

A base is made from the newest base below it and the log in between, so the whole past is read only once. A
table without records in between keeps its files. Rows are read by key hash in bounded memory (reading.py) and
written as they come (base_files.py), so memory does not grow with the tables.

The files are not part of the log until bases/<n + 1>.json, which is created exclusively, names them. If the
process is killed before that, the next deletion removes the files once another bases/<n + 1>.json exists.
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
"""Records after the newest base before another is due, …"""
_DUE_SHARE: Final = 2
"""… and at least one for so many of its rows."""
_KEPT: Final = 2
"""Newest objects that keep what they name whatever their age."""


class MadeBase(NamedTuple):
    """A base that was made, in numbers."""

    version: int
    tables: int
    kept_tables: int
    """Number of tables whose files were taken over from the base before."""
    rows: int
    files: int
    bytes: int


def base_is_due(log: CommitLog) -> bool:
    """Return True if so much was committed since the newest base that state is slow to read."""
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
        now: µs since the epoch.
        version: A published version; None: the newest.
        anew: Make the base from the log alone, even if it exists.
        reserve: Retain the base until the next checkpoint exists, which may rely on it: see ``keeps_state``. If
            the base exists or cannot be made, this retains the first base at or after the version.

    Raises:
        LogCorrupted: The log or a base to make it from is damaged; nothing was changed.
        LogFull: No room; nothing was changed.
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
    """Delete files that were written for an object that was not created; keep all if that is not certain."""
    # A fault of the device may come after the object was created: then it names them, and they stay.
    with suppress(LogError):
        named = set(paths_in(newest_bases(log.store, log.uuid).bases))
        for each in files:
            if each not in named:
                log.store.delete(each)


def keeps_state(log: CommitLog, first: int) -> bool:
    """Return True if the next checkpoint may give up all below a version and state stays as readable as it is.

    That is so if a base with the earlier rows is reserved for that checkpoint, or if no state is readable now.

    Args:
        log: The log as it is now; the next checkpoint follows the log's newest one.
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
    """Reserve the first base at or after a version, if any, for the next checkpoint; False: begin anew."""
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
    """Create the next list of bases; return False if another list came first, or if a wanted base is useless.

    Args:
        log: The log, which is read to its end here.
        known: The list that the new one follows.
        bases: The bases, by version; unneeded bases are left out.
        now: µs since the epoch.
        made: Version of the base that was made for this list. It is useless if the log now begins above it.
        reserve: Version of the base that is retained until the next checkpoint exists.
    """
    # 1. The log is read after ``known``, however long the work between took. So a checkpoint that relies on one
    #    of the bases has either been read, or ``known`` reserves that base for it (bases.py).
    log.advance()
    reserved = _reserved(known, log.state)
    if reserve is not None:
        reserved.add((reserve, log.state.checkpoint + 1))
    # 2. Leave out unneeded bases; keep each base that a coming checkpoint may rely on. If the log was trimmed
    #    past a wanted base meanwhile, the caller has to begin with another one.
    needed = _needed(bases, log.state, {version for version, _ in reserved} | {made})
    versions = {each.version for each in needed}
    if not {made, reserve} - {None} <= versions:
        return False
    # 3. The number decides: the list is created only if no other process has followed ``known``.
    reserved = {each for each in reserved if each[0] in versions}
    return write_bases(log.store, log.uuid, known, needed, reserved, now)


def _reserved(known: KnownBases, state: LogState) -> set[tuple[int, int]]:
    """Return the reserved versions of bases, each with the number of a checkpoint that does not exist yet."""
    return {each for each in known.reserved if each[1] > state.checkpoint}


def _needed(
    bases: Sequence[BaseDocument], state: LogState, kept: Collection[int | None]
) -> list[BaseDocument]:
    """Return the needed bases: the newest one, each base with which reading a state begins, and ``kept``.

    Reading begins with a base if the log is trimmed, or if an entity type lacks its old bodies.

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
    """Remove from the list the bases that a trim has made useless.

    Raises:
        LogFull: No room; the next base removes them.
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
        """Paths of the files that were written."""

    def make(self, path: Path) -> BaseDocument:
        """Write the files of all tables."""
        schema = self._view.schema_of(self._version)
        # If the images of an entity type begin above the version, its state is not promised: no table.
        begins = self._view.bodies.by_name(self._version)
        with BatchReader(path) as reader:
            tables = [
                self._table(reader, EntityNames(schema, name), name)
                for name in schema.entity_types
                if begins.get(name, 0) <= self._version + 1
            ]
        return BaseDocument(self._version, tables)

    def made(self, base: BaseDocument) -> MadeBase:
        """Return the base in numbers."""
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
    """Delete unnamed files whose grace period is over, and orphans; return the paths of these files.

    Any process may call this at any time.

    Raises:
        LogError: The device failed; the next call deletes the remaining files.
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
    """Return True if there are files that no base has named since a time, µs, or longer."""
    document = newest_bases(log.store, log.uuid).document
    return document is not None and any(
        since <= before and log.store.exists(path) for path, since in document.removed
    )


def unnamed_rows(
    store: ObjectStore, document: BasesDocument | None, before: int | None = None
) -> list[str]:
    """Return the files that no base names: those named earlier, and orphans, whose object exists without them.

    Args:
        store: The catalog's objects.
        document: The newest object of the sequence of bases.
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
