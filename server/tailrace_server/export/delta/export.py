"""The exporter: tables of a catalog as Delta tables in a folder, brought up to date as the log grows.

::

    published                       advance            gated: committed
        │                              │                   │
        ▼            tables at V,      ▼                   ▼        tables at V, then
    newest view ──▶  in steps   ──▶  wait for more     newest view ──▶ V is published

Nothing but the tables is kept between runs: each says which version it has (`table`). So the run after a kill
continues, at whatever moment it came.
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
"""Name of the gate of this export."""
_STEP_RECORDS: Final = 200_000
"""Records of the log, about, that go into one commit of a table while it is behind."""
_log = logging.getLogger("tailrace.delta")
_CHECK_S: Final = 1.0
_POLL_S: Final = 0.05
_TRIES: Final = 5
_ESCAPED: Final = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings:
    """The export's source and target."""

    log: Path
    catalog: str
    target: Path
    """Folder of the tables' folders."""
    entity_types: tuple[str, ...] = ()
    """Empty: all, those too that come later."""
    gate: bool = False
    """True if publication waits for the tables."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    tidy_every: int = 100
    """Commits of a table after which its small files are joined and old ones deleted; 0: never."""
    keep_hours: int = 168
    """Files that a version of the last hours has are kept."""


@dataclass(frozen=True, slots=True)
class DeltaProgress:
    """How far the tables are, and what the last step did."""

    version: int
    """Of the catalog, that all tables show."""
    published: bool
    """True if the gate has published it now."""
    steps: tuple[TableStep, ...] = ()
    """Of the tables that had changes."""


class DeltaExport:
    """One export, a context manager. Make it with `begin`. Its methods block; use one thread at a time."""

    def __init__(self, settings: DeltaSettings, log: CommitLog, clock: Clock) -> None:
        """Callers use `begin`."""
        self._settings = settings
        self.log = log
        self._clock = clock
        self._run = uuid4().hex
        self._tables: dict[int | str, TableExport] = {}
        """By identity of the entity type."""
        self._gated = False
        """True if the gate is up, as this process knows."""
        self._notified = False
        """True if changes of the log are reported; otherwise it is looked at."""
        self._stopping = Event()
        self._watcher, self._waits = LocalWatcher(), FileWait()
        self._open = ExitStack()
        self._open.callback(self._watcher.close)
        self._open.callback(self._waits.close)
        self._reader = self._open.enter_context(BatchReader(log.path))

    @classmethod
    def begin(cls, settings: DeltaSettings, clock: Clock | None = None) -> DeltaExport:
        """Open the log and the tables that there are. Nothing is written.

        Raises:
            InvalidRequest: An entity type is unknown, or there is another gate.
            FolderTaken: A table's folder holds something else.
            LakeTableChanged: Somebody else has written to a table.
            LakeUnwritable: A table cannot be read.
            LogUnreadable, LogCorrupted: As ``CommitLog.open``.
        """
        if _ESCAPED.search(str(settings.target)):
            raise InvalidRequest(
                f"--to {settings.target}: the Delta library reads % and two digits in a path as another "
                "character; choose a path without"
            )
        if settings.gate and settings.catalog == SYSTEM_CATALOG:
            raise InvalidRequest(
                f"{SYSTEM_CATALOG!r} is the log of catalogs, and waits for no gate"
            )
        log = open_catalog(settings.log, settings.catalog)
        known = log.view.schema_of(log.state.last_version).entity_types
        for name in settings.entity_types:
            if name not in known:
                raise InvalidRequest(
                    f"--type {name}: catalog {settings.catalog!r} has no such entity type; known: "
                    f"{', '.join(sorted(known)) or 'none yet'}"
                )
        export = cls(settings, log, clock or SystemClock())
        with export._open:
            gate = log.state.gate
            if gate is not None and settings.gate:
                refuse_other_gate(log, GATE, export._place, settings.entity_types)
                export._gated = True
            elif gate is not None and (gate.name, gate.place) == (GATE, export._place):
                raise InvalidRequest(
                    f"publication of catalog {settings.catalog!r} waits for the tables in {gate.place}: add "
                    f"--gate, or take the gate away first with tailrace catalog gate {settings.catalog} "
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
        """Close the log's files. A gate stays."""
        self._open.close()

    def stop(self) -> None:
        """End ``advance`` behind the current step and ``follow`` at once; any thread may call it."""
        self._stopping.set()
        self._watcher.wake()

    def advance(
        self, tell: Callable[[DeltaProgress], None] = lambda progress: None
    ) -> DeltaProgress:
        """Bring the tables to the newest version, published, or committed where the gate is up; publish that.

        Args:
            tell: Called after each step that wrote something, with the progress so far.

        Raises:
            LakeValueUnfit, LakeColumnUnfit: A row or a column cannot be written.
            LakeTableChanged, LakeUnwritable: A table cannot be written, or, behind the gate, somebody else has
                written to any of them: nothing is published then.
            CatalogReplaced, PositionCompacted, LogCorrupted: The log cannot be read.
            LogFull: No room for the publication.
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
                # Also those that had no changes: whoever is told of the version reads them too.
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
        """Go on until `stop`: bring the tables up to date, then put up the gate if there is to be one.

        Args:
            tell: Called when the tables have a new version.
            every_s: Begin to write at most this often. Ignored where the gate is up.

        Raises:
            InvalidRequest: Another gate has been put up meanwhile.
            As ``advance``.
        """
        try:
            self.log.store.watch(self._watcher, self)
            self._notified = True
        except InotifyUnavailable as error:
            if error.is_shortage:
                _log.warning("catalog %s %s", self._settings.catalog, polled_because(error))
        if self._settings.gate and not self._gated:
            # The tables come close before the gate stands, so that publication does not wait while they are
            # written for the first time, which may take long.
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
        """Wait until there is more than a version."""
        while not self._stopping.is_set():
            self._refresh()
            newest = self.log.state.last_version if self._gated else self.log.view.published
            # The gate is asked too: who took it away expects no more publications of this process.
            if newest > done or (self._gated and self.log.state.gate is None):
                return
            self._watcher.wait(_CHECK_S if self._notified else _POLL_S)

    def _refresh(self) -> None:
        """Read what is new; a writer that makes the name of an entry durable is waited for a moment."""

        def marked(path: str, is_marked: Callable[[], bool]) -> bool:
            return self._waits.wait_until(f"{self.log.path}/{path}", is_marked, MARK_PATIENCE_S)

        self.log.refresh(wait=marked if self._notified else None)

    def _newest(self) -> tuple[LogView, int]:
        """Return a view up to the version that the tables are to have, and its last entry."""
        if self._gated:
            found = self.log.durable_view()
            if self.log.state.gate is None:
                raise InvalidRequest(
                    f"the gate of catalog {self._settings.catalog!r} was taken away; start the export again, "
                    "with --gate to put it up anew, or without"
                )
            return found
        self._refresh()
        return self.log.view, self.log.state.last_entry

    def _versions(self, view: LogView) -> Iterator[int]:
        """Yield the versions to bring the tables to, one after the other: few records lie between."""
        if not self._tables:
            return
        # A table that is yet to be written is written at the end, as is one that the log has no changes for.
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
        """Bring all tables to a version."""
        steps, is_last = [], version == view.published
        for each in self._tables.values():
            if each.seen >= version and each.table.version is not None:
                continue
            for left in reversed(range(_TRIES)):
                try:
                    step = each.bring_to(view, self._reader, version, is_last=is_last)
                    break
                except SegmentMissing:
                    # A compaction has taken a file since the view was made; a newer one has what replaced it.
                    if not left:
                        raise
                    view, _ = self._newest()
            if step.how:
                steps.append(step)
        return DeltaProgress(version, published=False, steps=tuple(steps))

    def _note_tables(self, view: LogView) -> None:
        """Open the tables of entity types that are new."""
        schema = view.schema_of(view.published)
        for name, columns in schema.entity_types.items():
            identity = columns[0].id if columns else name
            if identity in self._tables:
                continue
            if self._settings.entity_types and name not in self._settings.entity_types:
                continue
            app_id = f"tailrace/{view.uuid}/{identity}"
            # By the name that it had first, so that a rename leaves the table where it is.
            first = EntityNames(schema, name).first_name(view)
            table = LakeTable(self._settings.target / folder_of(first), app_id, self._run)
            export = TableExport(table, schema, name, self._settings.on_misfit)
            # Behind a gate it may show what is committed and not published.
            if export.seen > (newest := self.log.state.last_version):
                reason = f"it shows version {export.seen}, and the log ends at {newest}, as one does that was "
                raise LakeTableChanged(table.path, f"{reason}restored from an older copy")
            # The number may be another version's: one that was written anew was committed at another time.
            found = self.log.committed_view().known_timestamp_of(export.seen)
            if found and table.committed and found != table.committed:
                raise LakeTableChanged(
                    table.path,
                    f"it shows version {export.seen} as committed at {table.committed}, and the log's was at "
                    f"{found}, as in one that was restored from an older copy and written anew",
                )
            self._tables[identity] = export

    def _tidy(self) -> None:
        """Join small files and delete old ones, of tables that have had enough commits since."""
        every = self._settings.tidy_every
        for each in self._tables.values() if every else ():
            each.tidy(every, self._settings.keep_hours)


def folder_of(entity_type: str) -> str:
    """Return the name of the folder of an entity type's table.

    A byte that is no ASCII letter, digit, space, dot, hyphen or underscore becomes ``~`` and two hexadecimal
    digits. ``%`` would not do: the Delta library decodes it. Other readers skip names that begin with a dot or
    an underscore, so neither is left at the beginning.
    """
    found = quote(entity_type, safe=" ").replace("~", "%7E")
    if found.startswith((".", "_")):
        found = f"%{ord(found[0]):02X}{found[1:]}"
    return found.replace("%", "~")
