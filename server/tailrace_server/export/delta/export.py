"""The exporter: it writes tables of a catalog as Delta tables in a folder, and updates them as the log grows.

::

    published                       advance            gated: committed
        │                              │                   │
        ▼            tables at V,      ▼                   ▼        tables at V, then
    newest view ──▶  in steps   ──▶  wait for more     newest view ──▶ V is published

The tables are the only state between runs: each table stores the version that it shows (`table`). So an export
that was killed at any moment continues in the next run.
"""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from uuid import uuid4

from tailrace.clock import SystemClock
from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace.position import Position
from tailrace_server.export.delta.table import LakeTable
from tailrace_server.export.delta.tables import TableExport, TableStep
from tailrace_server.export.errors import LakeTableChanged
from tailrace_server.failpoints import reach
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.catalog import SYSTEM_CATALOG, open_catalog
from tailrace_server.wal.files.local_watch import (
    FileWait,
    InotifyUnavailable,
    LocalWatcher,
    polled_because,
)
from tailrace_server.wal.gate import publish_behind, put_up_gate, refuse_other_gate
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames
from tailrace_server.wal.state.tailer import MARK_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.clock import Clock
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

GATE: Final = "delta"
"""Name of the gate that this export uses."""
_STEP_RECORDS: Final = 200_000
"""Approximate number of log records that one commit of a table covers while the table catches up."""
_log = logging.getLogger("tailrace.delta")
_CHECK_S: Final = 1.0
_POLL_S: Final = 0.05
_TRIES: Final = 5
_ESCAPED: Final = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings:
    """The source and the target of an export."""

    log: Path
    catalog: str
    target: Path
    """The folder that contains the folders of the tables."""
    entity_types: tuple[str, ...] = ()
    """The entity types to export; empty: all, also future ones."""
    gate: bool = False
    """True if publication waits for the tables."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    tidy_every: int = 100
    """Number of commits to a table after which its small files are joined and old files are deleted; 0:
    never.
    """
    keep_hours: int = 168
    """Hours for which the files of a table's former versions are retained."""


@dataclass(frozen=True, slots=True)
class DeltaProgress:
    """The version that the tables show, and the result of the last step."""

    version: int
    """The version of the catalog that all tables show."""
    published: bool
    """True if the gate has now published the version."""
    steps: tuple[TableStep, ...] = ()
    """The steps of the tables that had changes."""


class DeltaExport:
    """One export; a context manager, created by `begin`. Its methods block; use one thread at a time."""

    def __init__(self, settings: DeltaSettings, log: CommitLog, clock: Clock) -> None:
        """Store the parts of an export; callers use `begin`."""
        self._settings = settings
        self.log = log
        self._clock = clock
        self._run = uuid4().hex
        self._tables: dict[int | str, TableExport] = {}
        """The tables, by the id of the entity type's first column, or by its name if it has no columns."""
        self._gated = False
        """True if the gate is set, as far as this process knows."""
        self._notified = False
        """True if the system reports changes of the log; otherwise the log is polled."""
        self._stopping = Event()
        self._watcher, self._waits = LocalWatcher(), FileWait()
        self._open = ExitStack()
        self._open.callback(self._watcher.close)
        self._open.callback(self._waits.close)
        self._reader = self._open.enter_context(BatchReader(log.path))

    @classmethod
    def begin(cls, settings: DeltaSettings, clock: Clock | None = None) -> DeltaExport:
        """Open the log and the existing tables. Nothing is written.

        Raises:
            InvalidRequest: An entity type is unknown, or there is another gate.
            FolderTaken: The folder of a table holds something else.
            LakeTableChanged: Another writer has changed a table.
            LakeUnwritable: A table cannot be read.
            LogUnreadable, LogCorrupted: The log cannot be opened.
        """
        if _ESCAPED.search(str(settings.target)):
            raise InvalidRequest(
                f"--to {settings.target}: the Delta library reads % and two digits in a path as another "
                "character; choose a path without them"
            )
        if settings.gate and settings.catalog == SYSTEM_CATALOG:
            raise InvalidRequest(
                f"{SYSTEM_CATALOG!r} is the log of catalogs, which cannot have a gate"
            )
        log = open_catalog(settings.log, settings.catalog)
        known = log.view.schema_of(log.state.last_version).entity_types
        for name in settings.entity_types:
            if name not in known:
                raise InvalidRequest(
                    f"--type {name}: catalog {settings.catalog!r} has no such entity type{nearest(name, known)}"
                )
        export = cls(settings, log, clock or SystemClock())
        with export._open:
            gate = log.state.gate
            if gate is not None and settings.gate:
                refuse_other_gate(log, GATE, export._place, settings.entity_types)
                export._gated = True
            elif gate is not None and (gate.name, gate.place) == (GATE, export._place):
                raise InvalidRequest(
                    f"publication of catalog {settings.catalog!r} waits for the tables in {gate.place}: "
                    f"add --gate, or first remove the gate with tailrace catalog gate {settings.catalog} "
                    "--remove"
                )
            export._note_tables(log.view)
            export._open = export._open.pop_all()
        return export

    def __enter__(self) -> DeltaExport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log's files. A gate remains set."""
        self._open.close()

    def stop(self) -> None:
        """End ``advance`` after the current step, and ``follow`` at once. Any thread may call this."""
        self._stopping.set()
        self._watcher.wake()

    def advance(
        self, tell: Callable[[DeltaProgress], None] = lambda progress: None
    ) -> DeltaProgress:
        """Update the tables to the newest published version.

        With a gate, update them to the newest committed version, and then publish that version.

        Args:
            tell: Called after each step that wrote something, with the progress so far.

        Raises:
            LakeValueUnfit, LakeColumnUnfit: A row or a column cannot be written.
            LakeTableChanged, LakeUnwritable: A table cannot be written. With a gate also: another writer has
                changed any table. Nothing is published then.
            CatalogReplaced, PositionCompacted, LogCorrupted: The log cannot be read.
            LogFull: There is no space for the publication.
        """
        view, entry = self._newest()
        self._note_tables(view)
        progress = DeltaProgress(view.published, published=False)
        for version in self._versions(view):
            progress = self._step(view, version)
            if progress.steps:
                tell(progress)
            if self._stopping.is_set() and version < view.published:
                return progress
        if self._gated:
            reach("delta.before_publish")
            if self.log.state.published < view.published:
                # Check all tables, also those without changes: after publication readers use them too.
                for each in self._tables.values():
                    each.table.refuse_foreign()
            states = {each.name: each.table.delta_version for each in self._tables.values()}
            made = publish_behind(self.log, (entry, view.published), states, self._clock)
            progress = DeltaProgress(
                view.published, published=made is not None, steps=progress.steps
            )
            reach("delta.after_publish")
        self._tidy()
        return progress

    def follow(
        self, tell: Callable[[DeltaProgress], None] = lambda progress: None, every_s: float = 0.0
    ) -> None:
        """Update the tables until `stop`.

        If there is to be a gate, set it once the tables are close to the log's end.

        Args:
            tell: Called when the tables show a new version.
            every_s: Least seconds between two starts of writing; ignored with a gate.

        Raises:
            InvalidRequest: Another gate has been set in the meantime.
            TailraceError: The errors of ``advance``.
        """
        try:
            self.log.store.watch(self._watcher, self)
            self._notified = True
        except InotifyUnavailable as error:
            if error.is_shortage:
                _log.warning("catalog %s %s", self._settings.catalog, polled_because(error))
        if self._settings.gate and not self._gated:
            # Update the tables before setting the gate. Their first write may take long, and publication would
            # wait for it. The second round covers the versions that came during the first.
            for _ in range(2):
                tell(self.advance())
            if self._stopping.is_set():
                return
            types = self._settings.entity_types
            put_up_gate(self.log, GATE, self._place, types, self._clock)
            self._gated = True
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            done = self.advance()
            tell(done)
            self._wait(done.version)
            rest = begun + every_s - self._clock.monotonic()
            if not self._gated and rest > 0:
                self._stopping.wait(rest)

    # The parts of a step.

    @property
    def _place(self) -> str:
        return str(self._settings.target)

    def _wait(self, done: int) -> None:
        """Wait until the log has a version after ``done``."""
        while not self._stopping.is_set():
            self._refresh()
            newest = self.log.state.last_version if self._gated else self.log.view.published
            # Return also if the gate has been removed: this process must not publish any more.
            if newest > done or (self._gated and self.log.state.gate is None):
                return
            self._watcher.wait(_CHECK_S if self._notified else _POLL_S)

    def _refresh(self) -> None:
        """Read new entries. If a writer is just making an entry durable, wait briefly for it."""

        def marked(path: str, is_marked: Callable[[], bool]) -> bool:
            return self._waits.wait_until(f"{self.log.path}/{path}", is_marked, MARK_PATIENCE_S)

        self.log.refresh(wait=marked if self._notified else None)

    def _newest(self) -> tuple[LogView, int]:
        """Return a view up to the version that the tables should show, and the view's last entry."""
        if self._gated:
            found = self.log.durable_view()
            if self.log.state.gate is None:
                raise InvalidRequest(
                    f"the gate of catalog {self._settings.catalog!r} was removed; start the export "
                    "again, with --gate to create it again, or without"
                )
            return found
        self._refresh()
        return self.log.view, self.log.state.last_entry

    def _versions(self, view: LogView) -> Iterator[int]:
        """Yield the version of each step to take; steps are cut by their number of records."""
        if not self._tables:
            return
        # Ignore tables that do not exist yet: they are written in the last step.
        behind = min(
            (each.seen for each in self._tables.values() if each.seen), default=view.published
        )
        behind = max(behind, view.oldest.version - 1)
        records = 0
        for place in range(view.find(Position(behind + 1, 0)), len(view)):
            records += view.rows(place)
            if records >= _STEP_RECORDS:
                version = view.batch(place).last.version
                if version < view.published:
                    yield version
                records = 0
        yield view.published

    def _step(self, view: LogView, version: int) -> DeltaProgress:
        """Update all tables to a version."""
        steps, is_last = [], version == view.published
        for each in self._tables.values():
            # After a restart some tables may be ahead of others.
            if each.seen >= version and each.table.version is not None:
                continue
            for left in reversed(range(_TRIES)):
                try:
                    step = each.bring_to(view, self._reader, version, is_last=is_last)
                    break
                except SegmentMissing:
                    # A compaction has removed a file since the view was made. A newer view has its replacement.
                    if not left:
                        raise
                    view, _ = self._newest()
            if step.how:
                steps.append(step)
        return DeltaProgress(version, published=False, steps=tuple(steps))

    def _note_tables(self, view: LogView) -> None:
        """Open the tables of new entity types."""
        schema = view.schema_of(view.published)
        for name, columns in schema.entity_types.items():
            identity = columns[0].id if columns else name
            if identity in self._tables:
                continue
            if self._settings.entity_types and name not in self._settings.entity_types:
                continue
            app_id = f"tailrace/{view.uuid}/{identity}"
            # Name the folder after the entity type's first name, so that a rename does not move the table.
            first = EntityNames(schema, name).first_name(view)
            table = LakeTable(self._settings.target / folder_of(first), app_id, self._run)
            export = TableExport(table, schema, name, self._settings.on_misfit)
            # With a gate, a table may show committed versions that are not published.
            if export.seen > (newest := self.log.state.last_version):
                reason = f"it has version {export.seen}, but the log ends at {newest}; the log was probably "
                raise LakeTableChanged(table.path, f"{reason}restored from an older copy")
            # If the log was restored and written again, the same number means another version, with another
            # commit time.
            found = self.log.committed_view().known_timestamp_of(export.seen)
            if found and table.committed and found != table.committed:
                raise LakeTableChanged(
                    table.path,
                    f"it has version {export.seen} as committed at {table.committed}, but the log's was "
                    f"committed at {found}; the log was probably restored from an older copy and written "
                    "again",
                )
            self._tables[identity] = export

    def _tidy(self) -> None:
        """Join small files and delete old ones, in tables that have had enough commits since the last time."""
        every = self._settings.tidy_every
        for each in self._tables.values() if every else ():
            each.tidy(every, self._settings.keep_hours)


def folder_of(entity_type: str) -> str:
    """Return the name of the folder for an entity type's table.

    Each byte that is not an ASCII letter, digit, space, dot, hyphen or underscore becomes ``~`` and two
    hexadecimal digits. ``%`` is not used, since the Delta library would decode it. Other readers skip names
    that begin with a dot or an underscore, so the first character is never one of these.
    """
    found = quote(entity_type, safe=" ").replace("~", "%7E")
    if found.startswith((".", "_")):
        found = f"%{ord(found[0]):02X}{found[1:]}"
    return found.replace("%", "~")
