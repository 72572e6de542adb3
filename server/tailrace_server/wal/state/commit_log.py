"""The reader's side of a catalog's log: the newest checkpoint, then entries and publications as they appear.

Views are complete because publications are read before entries. A publication is created only after the entries
that it names are durable, so the entries that are read next include all that it publishes.

An entry that publishes itself can be read a moment before its name is durable. A version that a power cut could
still undo must not become visible. So the versions of such an entry become visible only after its writer has
marked the entry, or the reader has made its name durable itself. A follower prepares the entry's view while it
waits for the mark.
"""

# Long: the steps of following a log share one lock and one state, and their order is explained at each.

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.catalog_folder import check_folders, missing_catalog, read_catalog
from tailrace_server.wal.files.documents import (
    CATALOG_FILE,
    CHECKPOINTS,
    ENTRIES,
    PUBLICATIONS,
    SEGMENTS,
    PublicationDocument,
    ReadEntry,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.numbered import newest_number
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
from tailrace_server.wal.state.arriving_entry import ArrivingEntry
from tailrace_server.wal.state.batch_table import LAST_VERSION, end_of_rows
from tailrace_server.wal.state.expired_bodies import ExpiredBodies
from tailrace_server.wal.state.last_objects import (
    continues,
    is_there,
    last_objects,
    read_checkpoint,
    read_header,
    read_state,
    removed_files,
    withdraw_repeated,
)
from tailrace_server.wal.state.schema_history import SchemaHistory
from tailrace_server.wal.state.state import LogState
from tailrace_server.wal.state.view import LogView

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

    Prepare = Callable[[LogView, ReadEntry | None], None]
    """Prepares a new view before it becomes visible; called with the view and the last entry that was read for
    it, None if none was read."""
    Wait = Callable[[str, Callable[[], bool]], bool]
    """Waits until a condition on the file at a path holds, but no longer than a writer should need to make the
    file's name durable; returns True if the condition holds."""

_PAST_COMMITS_MAX: Final = 1 << 18
"""The most commits below the oldest position that a log opened with ``reads_only`` retains after a trim: 4 MiB.
Records that were read before the trim may be delivered after it, and need their commit timestamps."""


class CommitLog:
    """One catalog's log, read up to its end. Thread-safe. Methods do I/O; attributes and properties do none."""

    def __init__(self, path: Path, uuid: UUID, name: str, *, reads_only: bool = False) -> None:
        """Begin with an empty state; callers use ``open``."""
        self._reads_only = reads_only
        self.path = path
        self.store: ObjectStore = LocalFiles(path)
        """The objects of the catalog's folder."""
        self.state = LogState(name, uuid)
        self._name = name
        self.opening: Final = object()
        """Identifies this opening of the log among all openings in the process."""
        self._lock = threading.RLock()
        self.identity: Hashable = None
        """Stamp of catalog.json when it was last found to have this log's uuid; None before the first check."""
        self._seen: tuple[Hashable, ...] = ()
        """Numbers and stamps of the last entry, publication and checkpoint when these were last verified."""
        self._durable_entry = 0
        """Number of the newest entry that is known to be durable; all entries before it are durable too."""
        self._marks = True
        """True if the writer marks entries as durable. False after it did not, until a mark is seen again."""
        self._arriving: ArrivingEntry | None = None
        """The entry that was read under its temporary name; None if there is none."""
        self.schemas = SchemaHistory()
        """The schemas of all committed versions."""
        self.committed = 0
        """Newest committed version, which may be above the newest published version of ``view``."""
        self.view: LogView

    @classmethod
    def open(cls, path: Path, *, reads_only: bool = False) -> CommitLog:
        """Open the log in a catalog's folder: read the newest checkpoint and the entries after it.

        Args:
            path: The catalog's folder.
            reads_only: True for a log that writes no checkpoints. It drops the names of files that wait for
                their deletion, and retains the commit timestamps of trimmed versions.

        Raises:
            LogUnreadable: The folder is not a catalog, lacks read permission, or has a newer format.
            LogCorrupted: An object of the log is damaged.
        """
        document = read_catalog(path)
        check_folders(path)
        log = cls(path, document.uuid, document.name, reads_only=reads_only)
        log.check_folder()
        if (newest := log._newest_state()) is not None:
            log._adopt(newest)
        log.advance()
        log._refuse_hole()
        log._show(log._make_view())
        return log

    @property
    def uuid(self) -> UUID:
        """The log's identity."""
        return self.state.uuid

    @property
    def gate(self) -> str:
        """The gate of publication as text, ``name at place``; empty without a gate."""
        gate = self.state.gate
        return "" if gate is None else f"{gate.name} at {gate.place}"

    def refresh(
        self,
        prepare: Prepare = lambda view, read: None,
        *,
        new_entries: int | None = None,
        wait: Wait | None = None,
    ) -> LogView | None:
        """Read the new objects; return the new view, or None if readers can see no change.

        Args:
            prepare: Called with the view before it becomes visible. It must not raise.
            new_entries: Number of new entries, if the watch has reported nothing else; None: read everything
                that may have changed.
            wait: Waits until the writer marks the last entry as durable; None: make its name durable at once.

        Raises:
            CatalogReplaced: The folder has another log, or none.
            LogCorrupted: An object is damaged, or does not continue the chain.
            LogUnreadable: The read permission was withdrawn, or an object has a newer format.
        """
        with self._lock:
            if new_entries is None:
                read = self.advance()
                self._refuse_hole()  # no reader gets past a lost entry
            else:
                # Entries only: this spares the system calls for checkpoints and publications at each commit.
                read = self.follow_entries(new_entries)
            before, state = self.view, self.state
            seen = (before.published, before.revision, before.oldest)
            if seen == (state.published, state.revision, state.oldest):
                self.committed = state.last_version
                return None
            view = self._make_view()
            # Preparing overlaps with the writer's sync. The view becomes visible after that, when a power cut
            # cannot undo its versions.
            prepare(view, read)
            self._show(view, wait)
            return view

    def advance(self) -> ReadEntry | None:
        """Read all new checkpoints, publications and entries; return the last entry that was read.

        Errors as ``refresh``.
        """
        with self._lock:
            # 1. If the folder has another catalog now, its objects must not be applied to this state. If this
            #    log was not read for long, the next objects may have been deleted: a checkpoint covers them.
            self.check_folder()
            self._check_last()
            # 2. Checkpoints before entries: a new revision replaces the tables, and entries are added to these.
            self.follow_checkpoints()
            # 3. Publications before entries. Entries exist before the publication that names them, so the
            #    last step reads all entries that this step has published.
            self._follow_publications()
            return self.follow_entries()

    def read_entry(self, number: int) -> ReadEntry | None:
        """Return the entry with a number; None if it does not exist yet, or was deleted."""
        return documents.read_entry(self.store, number)

    def check_folder(self) -> None:
        """Check that the folder still has this catalog, by the uuid in catalog.json.

        Raises:
            CatalogReplaced, LogMissing: The folder has another log, the log was dropped, or the folder is gone.
        """
        identity = self.store.stamp(CATALOG_FILE)
        if identity is None:
            raise missing_catalog(self.path, self.uuid)
        # The file is read again only if its stamp has changed.
        if identity != self.identity:
            found = read_catalog(self.path).uuid
            if found != self.uuid:
                raise CatalogReplaced(self._name, self.uuid, found)
            self.identity = identity

    def _check_last(self) -> None:
        """Continue from the newest checkpoint if the last objects that were read have been deleted since.

        Upkeep deletes objects in the order of their numbers. So if the last object that was read is gone, its
        successor may be gone too. Without this check, the reader would take the gap for the end of the log.

        Raises:
            LogCorrupted: No checkpoint covers the missing objects: the log was restored or damaged.
        """
        # 1. Usually the files are the same as at the last check, which costs one system call for each.
        last = last_objects(self.state)
        seen = tuple((each.number, self.store.stamp(each.path)) for each in last)
        if seen == self._seen:
            return
        # 2. The stamps differ, so compare the contents: retention may have replaced an entry by one without
        #    its records, with the same checksum.
        lost = [each for each in last if not self.has_last(each.folder)]
        if not lost:
            self._seen = seen
            return
        # 3. If the newest checkpoint continues from a lost object, upkeep has deleted that object. Otherwise
        #    the folder has another history, such as a restored copy's, which must not be mixed with this state.
        newer = self._newest_state()
        for each in lost:
            is_gone = not self.store.exists(each.path)
            if not is_gone or newer is None or not continues(newer, self.state, each):
                if not each.number:
                    return  # the first object of a sequence is missing: its reader raises the error
                self._refuse(each.path)
        if newer is not None:
            self._adopt(newer)

    def has_last(self, folder: str) -> bool:
        """Return True if the last object that was read from a folder still exists, with the same content.

        Then no later object of the folder has been deleted, since upkeep deletes in the order of the numbers.
        """
        return is_there(self.store, self.state, folder)

    def withdraws(self, path: str, crc: int) -> bool:
        """Delete a just created object if its number had been used before; return True if it was deleted."""
        folder = path.partition("/")[0]
        return not self.has_last(folder) and withdraw_repeated(self.store, path, crc)

    def _newest_state(self) -> LogState | None:
        """Return the state in the newest checkpoint; None if there is no checkpoint."""
        while newest := newest_number(self.store, CHECKPOINTS):
            try:
                return self._state_of(newest)
            except LogCorrupted:
                # The checkpoint may have been deleted after the folder was listed. Then a newer one exists.
                if newest == newest_number(self.store, CHECKPOINTS):
                    raise
        return None

    def _refuse(self, path: str) -> None:
        self.check_folder()
        what = "not the one that was read before" if self.store.exists(path) else "missing"
        raise LogCorrupted(path, 0, f"it is {what}: the log was restored from a copy, or damaged")

    def follow_checkpoints(self) -> None:
        """Read the new checkpoints; adopt the newest one if it contains a compaction or a trim.

        Otherwise its tables equal those of this state, and only its header is read.
        """
        number, newest = self.state.checkpoint, None
        while (header := read_header(self.store, number + 1)) is not None:
            number, newest = header.number, header
        # If the last checkpoint that was read is gone, the next numbers may have been used again by a process
        # that was paused. The next check of the last objects decides.
        if newest is None or not self.has_last(CHECKPOINTS):
            return
        if newest.revision != self.state.revision:
            state = self._state_of(newest.number)
            self._check_last()  # nothing compares its tables with ours, so it must be the same log
            self._adopt(state)
        else:
            self.state.note_checkpoint(newest, None)

    def read_newest_checkpoint(self) -> None:
        """Read the CRC and the files to delete from the newest checkpoint; the next one needs both."""
        assert not self._reads_only
        with self._lock:
            if self.state.checkpoint_crc is None:
                number = self.state.checkpoint
                _, body, crc = read_checkpoint(self.store, number, self._name, self.uuid)
                self.state.removed = removed_files(number, body) | self.state.removed
                self.state.checkpoint_crc = crc

    def _state_of(self, number: int) -> LogState:
        """Return the state that the checkpoint with a number holds."""
        state = read_state(self.store, number, self._name, self.uuid)
        if self._reads_only:
            state.removed.clear()
        return state

    def _adopt(self, state: LogState) -> None:
        """Replace the tables of this log's state by those of a checkpoint; ignore an older checkpoint."""
        if state.checkpoint >= self.state.checkpoint:
            # A checkpoint is made only after the entries that it covers are durable.
            self._durable_entry = max(self._durable_entry, state.last_entry)
            past = _PAST_COMMITS_MAX if self._reads_only else 0
            self.state.adopt(state, past_commits_max=past)

    def make_durable(self, wait: Wait | None = None) -> None:
        """Make sure that the names of all entries that were read are durable, even if their writer was killed.

        Args:
            wait: Waits until the writer marks the last entry as durable; None: do not wait.

        Raises:
            LogError: The device failed.
        """
        entry = self.state.last_entry
        if self._durable_entry >= entry:
            return
        # 1. A mark on the last entry covers all entries before it: one fsync of their folder makes all names
        #    durable.
        marked = self._is_marked()
        # 2. Without a mark, the writer's fsync is probably in progress. Do not wait again for a writer that has
        #    once failed to mark its entry: each commit would be late by the whole time of waiting.
        if not marked and self._marks and wait is not None:
            marked = self._marks = wait(self._last_path, self._is_marked)
        # 3. The writer was killed before the mark, or does not mark its entries: sync the folder here.
        if not marked:
            self.store.make_durable(ENTRIES)
            marked = self._is_marked()  # the writer may have synced and marked meanwhile
        self._note_durable(entry, marked=marked)

    def _note_durable(self, entry: int, *, marked: bool) -> None:
        self._durable_entry = entry
        self._marks = self._marks or marked

    def _show(self, view: LogView, wait: Wait | None = None) -> None:
        # Versions that a publication has published are durable already: the publisher synced the entries before
        # it created the publication. Only an entry that published itself may still lack its fsync.
        if view.published == self.state.published_by_entry:
            self.make_durable(wait)
        self.committed = view.committed
        self.view = view

    def _is_marked(self) -> bool:
        """Return True if the writer has marked the name of the last entry as durable."""
        arrivals = self.store.arrivals
        return (
            arrivals is not None and arrivals.mark_of(self._last_path) == self.state.last_timestamp
        )

    @property
    def _last_path(self) -> str:
        """Path of the last entry."""
        return f"{ENTRIES}/{object_name(self.state.last_entry)}"

    def _follow_publications(self) -> None:
        state = self.state
        while True:
            path = _publication_path(state.last_publication + 1)
            found = documents.read(self.store, path, PublicationDocument)
            if found is None or not self.has_last(PUBLICATIONS):
                return
            state.apply_publication(path, *found)

    def follow_entries(self, count_max: int | None = None) -> ReadEntry | None:
        """Read and apply the new entries, at most ``count_max`` if given; return the last one, or None.

        Raises:
            LogCorrupted: An entry is missing that a publication names, or an entry or schema is damaged.
        """
        state, last = self.state, None
        # 1. Apply the existing entries. A known count saves the system call for an entry that does not exist.
        for _ in itertools.count() if count_max is None else range(count_max):
            found = self._next_entry()
            if found is None:
                break
            state.apply(found.path, found.entry, found.crc)
            last = found
        # 2. The mark of the last entry was read together with it, and covers the entries before it.
        if last is not None and last.marked:
            self._note_durable(last.entry.number, marked=True)
        if self._reads_only:
            state.removed.clear()
        # 3. Entries exist before the publication that names them. So an entry that is still missing is lost,
        #    unless the catalog was replaced meanwhile, or a checkpoint covers the entry.
        released = state.publication
        if released is not None and released.entry > state.last_entry:
            self.check_folder()
            self._check_last()
            if released.entry <= self.state.last_entry:
                return self.follow_entries()
            raise LogCorrupted(
                f"{ENTRIES}/{object_name(state.last_entry + 1)}",
                0,
                f"the entry is missing, but publication {released.number} goes up to "
                f"{released.entry}",
            )
        # 4. Read the schemas before a view needs them: views look them up in memory. A schema is durable before
        #    the entry that names it.
        self.read_schemas()
        return last

    def read_schemas(self) -> SchemaHistory:
        """Read the schemas that entries have named since the last call; return all schemas.

        Raises:
            LogCorrupted: A schema is missing or damaged.
            LogUnreadable: A schema has a newer format version.
        """
        for version, id in self.state.schemas[len(self.schemas) :]:
            self.schemas.read(self.store, version, id)
        return self.schemas

    def _next_entry(self) -> ReadEntry | None:
        number, found = self.state.last_entry + 1, None
        # An entry that was read ahead only has to be found under its final name: nothing is read again.
        if self._arriving is not None and self._arriving.read.entry.number == number:
            found = self._arriving.arrived()
        if found is None:
            found = self.read_entry(number)
        if found is not None:
            self._arriving = None
            if not self.has_last(ENTRIES):
                return None  # a paused writer has used the number of a deleted entry again
        return found

    def read_ahead(self, name: str) -> ReadEntry | None:
        """Read the next entry under its temporary name, so that it is already read when it gets its final name.

        Return the entry, or None if the name does not belong to the next entry. The entry is not valid yet: it
        may never become part of the log.
        """
        with self._lock:
            number = self.state.last_entry + 1
            if not ArrivingEntry.may_be(name, number):
                return None
            self._arriving = ArrivingEntry.find(self.store.arrivals, name, number)
            return None if self._arriving is None else self._arriving.read

    def forget_arriving(self) -> None:
        """Close the entry that ``read_ahead`` has read; called when the log is no longer followed."""
        with self._lock:
            self._arriving = None

    def _refuse_hole(self) -> None:
        """Raise LogCorrupted if the next entry or publication is missing, but an object after it exists."""
        while True:
            state = self.state
            last = last_objects(state)
            # 1. Is there an object after the next one? A new epoch also proves an entry, the writer's OPEN.
            what, missing = "entry", f"{ENTRIES}/{object_name(state.last_entry + 1)}"
            after_next = f"{ENTRIES}/{object_name(state.last_entry + 2)}"
            next_epoch = f"{SEGMENTS}/{state.epoch + 1}"
            found = next(filter(self.store.exists, (after_next, next_epoch)), None)
            if found is None:
                what, missing = "publication", _publication_path(state.last_publication + 1)
                found = _publication_path(state.last_publication + 2)
                if not self.store.exists(found):
                    return
            # 2. The next object may have been created since it was last read. So read on: it is lost only if it
            #    was missing while its successor existed, and reading on does not get past it either.
            is_missing = not self.store.exists(missing)
            self.advance()
            if is_missing and last_objects(state) == last:
                raise LogCorrupted(missing, 0, f"the {what} is missing, but {found} exists")

    def committed_view(self) -> LogView:
        """Return a view of all committed versions, published or not; only for the catalog's writer."""
        with self._lock:
            self.read_schemas()
            return self._make_view(self.state.last_version)

    def published_view(self) -> LogView:
        """Return a view of the published versions without reading schemas: use it for times and sizes only."""
        with self._lock:
            return self._make_view()

    def durable_view(self) -> tuple[LogView, int]:
        """Read the new objects; return a view of all committed versions, and the last commit entry's number.

        All these versions are durable. Only the tables that a gate waits for may be written from such a view:
        other readers must not see unpublished versions. Raises the same errors as ``refresh``.
        """
        with self._lock:
            self.refresh()
            self.make_durable()
            return self.committed_view(), self.state.last_commit_entry

    def _make_view(self, published: int | None = None) -> LogView:
        state = self.state
        if published is None:
            published = state.published
        count = state.batches.count_up_to(LAST_VERSION, published)
        commits = state.commits.columns
        commit_count = state.commits.count_up_to(0, published)
        return LogView(
            uuid=state.uuid,
            opening=self.opening,
            name=state.name,
            published=published,
            oldest=state.oldest,
            end_row=end_of_rows(state.batches, count, state.end_row),
            committed=state.last_version,
            newest_timestamp=commits.item(1, commit_count - 1) if commit_count else 0,
            revision=state.revision,
            entry=state.last_entry,
            unknown_changes=state.unknown_changes,
            whole_removals=state.whole_removals,
            bodies=ExpiredBodies(state.bodies_from, self.schemas),
            _batches=state.batches.columns,
            _batch_count=count,
            _segments=state.batches.segments,
            _commits=commits,
            _commit_count=commit_count,
            _schemas=self.schemas,
        )


def _publication_path(number: int) -> str:
    return f"{PUBLICATIONS}/{object_name(number)}"


__all__ = ["BatchRef", "CommitLog", "LogView", "SegmentRef"]
