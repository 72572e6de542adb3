"""The reader's side of a catalog's log: newest checkpoint, then entries and publications as they appear.

The order of reading is what makes a view right: the publication first, then the entries. An entry is
durable before a publication that names it exists, so everything up to the published version has been read
when it is shown.

An entry that publishes itself is visible a moment before its writer has made its name durable. Nobody may be
told of a version that a power cut could still take back. So what it publishes is shown only once its writer
has marked it, or the reader has made the name durable itself. A follower reads the entry while it waits for
the mark.
"""

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
    CheckpointBody,
    CheckpointHeader,
    PublicationDocument,
    ReadEntry,
    RemovedFiles,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import object_name, object_numbers, unseal
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
from tailrace_server.wal.state.arriving_entry import ArrivingEntry
from tailrace_server.wal.state.batch_table import LAST_VERSION, end_of_rows
from tailrace_server.wal.state.expired_bodies import ExpiredBodies
from tailrace_server.wal.state.schema_history import SchemaHistory
from tailrace_server.wal.state.state import LogState
from tailrace_server.wal.state.view import LogView

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

    Prepare = Callable[[LogView, ReadEntry | None], None]
    """Makes ready what a view shows anew; is given the entry that was read last for it, if there was one."""
    Wait = Callable[[str, Callable[[], bool]], bool]
    """Waits until a condition of the file at a path holds, or as long as a writer should take to make its name
    durable; returns whether it holds."""

_HEADER_BYTES_MAX: Final = 4_096
"""A checkpoint's header is shorter than this."""
_PAST_COMMITS_MAX: Final = 1 << 18
"""How many commits below the oldest position a log that only reads keeps after a trim, the newest ones: 4 MiB.
What was read before the trim may be delivered after it, and needs its commit timestamp."""


class CommitLog:
    """One catalog's log, read as far as it goes. Thread-safe; every call does I/O, the attributes do none."""

    def __init__(self, path: Path, uuid: UUID, name: str, *, reads_only: bool = False) -> None:
        """Hold the empty log of a catalog; use ``open``."""
        self._reads_only = reads_only
        self.path = path
        self.store: ObjectStore = LocalFiles(path)
        """The objects of the catalog's folder."""
        self.state = LogState(name, uuid)
        self._name = name
        self.opening: Final = object()
        """Identifies this opening of the log among all openings in the process."""
        self._lock = threading.RLock()
        self._identity: Hashable = None
        """Stamp of the catalog.json whose uuid was found to be this log's; None before the first look."""
        self._seen: tuple[Hashable, ...] = ()
        """Numbers and stamps of the last entry and checkpoint when their content was last compared."""
        self._durable_entry = 0
        """The names of the entries up to this one are durable for certain."""
        self._marks = True
        """Whether the writer marks entries as durable. False after it did not, until a mark is seen again."""
        self._arriving: ArrivingEntry | None = None
        """The entry that has been read ahead."""
        self.schemas = SchemaHistory()
        """Those of all versions that are committed."""
        self.committed = 0
        """Newest committed version; it moves also where there is no new view, as nothing was published."""
        self.view: LogView

    @classmethod
    def open(cls, path: Path, *, reads_only: bool = False) -> CommitLog:
        """Open a catalog's folder: one checkpoint and the entries after it.

        Args:
            path: The catalog's folder.
            reads_only: Forget what only a maker of checkpoints needs, the names of the files that wait for
                their deletion: at 200 commits a second 120,000 of them, 30 MB. Keep what no checkpoint may
                have, when trimmed versions were committed.

        Raises:
            LogUnreadable: It is not a catalog, may not be read, or has a newer format.
            LogCorrupted: One of its objects is damaged.
        """
        document = read_catalog(path)
        check_folders(path)
        log = cls(path, document.uuid, document.name, reads_only=reads_only)
        log.check_folder()
        newest = max(object_numbers(log.store.names(CHECKPOINTS)), default=0)
        if newest:
            log._load_checkpoint(newest)
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
        """What publication waits for, to be shown: a name and a place; empty where no gate stands."""
        gate = self.state.gate
        return "" if gate is None else f"{gate.name} at {gate.place}"

    def refresh(
        self,
        prepare: Prepare = lambda view, read: None,
        *,
        new_entries: int | None = None,
        wait: Wait | None = None,
    ) -> LogView | None:
        """Read what is new; return the view of it, or None if nothing is that readers can see.

        Args:
            prepare: Called with the view before it is shown. It must not raise.
            new_entries: How many entries have appeared, if the watch reported nothing else; None: read
                everything that may have changed.
            wait: How to wait for the writer's mark; None: the name is made durable here, at once.

        Raises:
            CatalogReplaced: Another log stands in this one's place, or none does.
            LogCorrupted: An object is damaged, or does not continue the chain.
            LogUnreadable: No permission any more, or a newer format.
        """
        with self._lock:
            if new_entries is None:
                self._refuse_replaced()
                read = self.advance()
                # An entry that is lost has successors, which nobody would ever come to.
                self._refuse_hole()
            else:
                read = self.follow_entries(new_entries)
            before, state = self.view, self.state
            seen = (before.published, before.revision, before.oldest)
            if seen == (state.published, state.revision, state.oldest):
                self.committed = state.last_version
                return None
            view = self._make_view()
            # The view is prepared first, then made durable, then shown: what is read ahead overlaps with the
            # writer's sync, and nobody sees a version that a power cut could take back.
            prepare(view, read)
            self._show(view, wait)
            return view

    def advance(self) -> ReadEntry | None:
        """Read what is new to the end: checkpoints, publications, entries; return the last entry of them.

        Errors as ``refresh``.
        """
        with self._lock:
            # 1. If another catalog stands here now, nothing below may be applied to this one's state.
            self.check_folder()
            # 2. Checkpoints before entries: a new revision replaces the tables, entries are added to them.
            self.follow_checkpoints()
            # 3. Publications before entries. An entry exists before the publication that names it, so the
            #    last step finds all that this one released. The other way round, a version could be released
            #    and not be read yet.
            self._follow_publications()
            return self.follow_entries()

    def read_entry(self, number: int) -> ReadEntry | None:
        """Return one entry, or None where there is none yet."""
        return documents.read_entry(self.store, number)

    def check_folder(self) -> None:
        """Notice that another catalog is here now, or none: its catalog.json is another file, or missing.

        Raises:
            CatalogReplaced, LogMissing: Another log is here, this one was dropped, or its folder is gone.
        """
        identity = self.store.stamp(CATALOG_FILE)
        if identity is None:
            raise missing_catalog(self.path, self.uuid)
        if identity != self._identity:
            found = read_catalog(self.path).uuid
            if found != self.uuid:
                raise CatalogReplaced(self._name, self.uuid, found)
            self._identity = identity

    def _refuse_replaced(self) -> None:
        """Notice that a copy was put in this log's place, or that the last entry or checkpoint is lost.

        Both are never deleted. So readers of what is gone would wait for its successor, and miss without a word
        what is written in its place. A copy that has the same last entry may have an older checkpoint, and its
        records in other files.
        """
        entry, checkpoint = self.state.last_entry, self.state.checkpoint
        paths = [self._last_path, _checkpoint_path(checkpoint)]
        seen = (entry, checkpoint, *map(self.store.stamp, paths))
        if seen == self._seen:
            return
        # The stamps are others, as at the first look, so the content decides. A checkpoint loses its body when
        # it is old; its time stays.
        read = self.read_entry(entry) if entry else None
        if entry and (read is None or read.crc != self.state.last_entry_crc):
            self._refuse(paths[0], missing=read is None)
        header = self.checkpoint_header(checkpoint) if checkpoint else None
        if checkpoint and (header is None or header.timestamp != self.state.checkpoint_time):
            self._refuse(paths[1], missing=header is None)
        self._seen = seen

    def _refuse(self, path: str, *, missing: bool) -> None:
        self.check_folder()
        what = "missing" if missing else "not the one that was read"
        raise LogCorrupted(path, 0, f"it is {what}: the log was restored from a copy, or damaged")

    def follow_checkpoints(self) -> None:
        """Take the newest checkpoint if it changes what the entries do not say: a compaction or a trim."""
        number, newest = self.state.checkpoint, None
        while (header := self.checkpoint_header(number + 1)) is not None:
            number, newest = header.number, header
        if newest is None:
            return
        if newest.revision != self.state.revision:
            self._load_checkpoint(newest.number)
        else:
            self.state.note_checkpoint(newest, None)

    def read_newest_checkpoint(self) -> None:
        """Read what only a maker of checkpoints needs of the newest one: its CRC, and the files to delete."""
        assert not self._reads_only
        with self._lock:
            if self.state.checkpoint_crc is None:
                path = _checkpoint_path(self.state.checkpoint)
                _, body, crc = self._read_checkpoint(path)
                self.state.removed = _removed(path, body) | self.state.removed
                self.state.checkpoint_crc = crc

    def checkpoint_header(self, number: int) -> CheckpointHeader | None:
        """Return a checkpoint's header without reading the rest; the checksum is checked when it is used."""
        path = _checkpoint_path(number)
        found = self.store.read(path, _HEADER_BYTES_MAX)
        if found is None:
            return None
        header = documents.parse(path, found.data.partition(b"\n")[0], CheckpointHeader)
        if header.number != number:
            raise LogCorrupted(path, 0, f"it says that it is number {header.number}")
        return header

    def _read_checkpoint(self, path: str) -> tuple[CheckpointHeader, CheckpointBody, int]:
        found = self.store.read(path)
        if found is None:
            raise LogCorrupted(path, 0, "the checkpoint is missing")
        text, crc = unseal(path, memoryview(found.data))  # a large one is not copied
        end = found.data.find(b"\n") + 1
        header = documents.parse(path, text[:end], CheckpointHeader)
        body = documents.parse(path, text[end:], CheckpointBody, end)
        if header.uuid != self.uuid:
            raise CatalogReplaced(self._name, self.uuid, header.uuid)
        return header, body, crc

    def _load_checkpoint(self, number: int) -> None:
        path = _checkpoint_path(number)
        header, body, crc = self._read_checkpoint(path)
        self._durable_entry = max(self._durable_entry, header.last_entry)
        state = LogState.from_checkpoint(path, self._name, header, body, crc)
        if not self._reads_only:
            state.removed = _removed(path, body)
        # Its tables replace those of this state, which nothing compares: the log must still be the same.
        self._refuse_replaced()
        self.state.adopt(state, past_commits_max=_PAST_COMMITS_MAX if self._reads_only else 0)

    def make_durable(self, wait: Wait | None = None) -> None:
        """Make sure that the names of the entries read so far are durable, even if their writer was killed.

        Raises:
            LogError: The device failed.
        """
        entry = self.state.last_entry
        if self._durable_entry >= entry:
            return
        # 1. The mark says it at no cost. A mark of the last entry covers all before it: names in one folder.
        marked = self._is_marked()
        # 2. Give the writer its time, for its sync is under way. One that does not mark is waited for only
        #    once.
        if not marked and self._marks and wait is not None:
            marked = self._marks = wait(self._last_path, self._is_marked)
        # 3. It was killed in between, or marks nothing: sync the names here.
        if not marked:
            self.store.make_durable(ENTRIES)
            marked = self._is_marked()  # its writer, too, has synced by now
        self._note_durable(entry, marked=marked)

    def _note_durable(self, entry: int, *, marked: bool) -> None:
        self._durable_entry = entry
        self._marks = self._marks or marked

    def _show(self, view: LogView, wait: Wait | None = None) -> None:
        # What a publication releases is durable already: its writer synced the entries before it was created.
        if view.published == self.state.published_by_entry:
            self.make_durable(wait)
        self.committed = view.committed
        self.view = view

    def _is_marked(self) -> bool:
        """Return whether the writer of the last entry has said that its name is durable."""
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
            if found is None:
                return
            state.apply_publication(path, *found)

    def follow_entries(self, count_max: int | None = None) -> ReadEntry | None:
        """Read the entries that are new, to the end or as many as are known of; return the last of them."""
        state, last = self.state, None
        # 1. Apply what is there. With a known count, the miss at the end, a system call, is spared.
        for _ in itertools.count() if count_max is None else range(count_max):
            found = self._next_entry()
            if found is None:
                break
            state.apply(found.path, found.entry, found.crc)
            last = found
        # 2. The mark of the last entry was read with it; it covers the entries before.
        if last is not None and last.marked:
            self._note_durable(last.entry.number, marked=True)
        if self._reads_only:
            state.removed.clear()
        # 3. Entries exist before what publishes them, are read after it, and are never deleted. So one that is
        #    missing now is lost, unless the catalog was replaced meanwhile.
        released = state.publication
        if released is not None and released.entry > state.last_entry:
            self.check_folder()
            raise LogCorrupted(
                f"{ENTRIES}/{object_name(state.last_entry + 1)}",
                0,
                f"the entry is missing, and publication {released.number} goes up to {released.entry}",
            )
        # 4. Views look schemas up by version in memory. A schema is durable before the entry that names it.
        self.read_schemas()
        return last

    def read_schemas(self) -> SchemaHistory:
        """Read the schemas that are named and not read yet; return all.

        Raises:
            LogCorrupted: One is missing or damaged.
            LogUnreadable: One has a newer format version.
        """
        for version, id in self.state.schemas[len(self.schemas) :]:
            self.schemas.read(self.store, version, id)
        return self.schemas

    def _next_entry(self) -> ReadEntry | None:
        number, found = self.state.last_entry + 1, None
        if self._arriving is not None and self._arriving.read.entry.number == number:
            found = self._arriving.arrived()
        if found is None:
            found = self.read_entry(number)
        if found is not None:
            self._arriving = None
        return found

    def read_ahead(self, name: str) -> ReadEntry | None:
        """Read the next entry by its temporary name, so that it need not be read once it is there.

        Return it, or None if it is not the next one. Nothing that it says is true yet.
        """
        with self._lock:
            number = self.state.last_entry + 1
            if not ArrivingEntry.may_be(name, number):
                return None
            self._arriving = ArrivingEntry.find(self.store.arrivals, name, number)
            return None if self._arriving is None else self._arriving.read

    def forget_arriving(self) -> None:
        """Release the entry that ``read_ahead`` has read and keeps open; called when following ends."""
        with self._lock:
            self._arriving = None

    def _refuse_hole(self) -> None:
        """Notice at opening that the next entry or publication is lost: what can only come after it is there.

        Publications tell how far the entries must go, but entries that publish themselves have none.
        """
        while True:
            state = self.state
            what, missing = "entry", f"{ENTRIES}/{object_name(state.last_entry + 1)}"
            after_next = f"{ENTRIES}/{object_name(state.last_entry + 2)}"
            next_epoch = f"{SEGMENTS}/{state.epoch + 1}"
            found = next(filter(self.store.exists, (after_next, next_epoch)), None)
            if found is None:
                what, missing = "publication", _publication_path(state.last_publication + 1)
                found = _publication_path(state.last_publication + 2)
                if not self.store.exists(found):
                    return
            if not self.store.exists(missing):
                raise LogCorrupted(missing, 0, f"the {what} is missing, and {found} is there")
            self.advance()

    def committed_view(self) -> LogView:
        """Return a view of all that is committed, published or not.

        For the catalog's writer, who computes what comes next from what there is. Nothing that it shows above
        ``view.published`` may be told to anybody.
        """
        with self._lock:
            self.read_schemas()
            return self._make_view(self.state.last_version)

    def published_view(self) -> LogView:
        """Return a view of what is published as far as is known here; a writer's ``view`` is as it opened it.

        For times and bytes: its newest schemas may not be read.
        """
        with self._lock:
            return self._make_view()

    def durable_view(self) -> tuple[LogView, int]:
        """Read what is new; return a view of all that is committed and durable, and its last entry.

        For what a gate brings up to date: nobody else may be shown what is not published. Errors as
        ``refresh``.
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


def _checkpoint_path(number: int) -> str:
    return f"{CHECKPOINTS}/{object_name(number)}"


def _publication_path(number: int) -> str:
    return f"{PUBLICATIONS}/{object_name(number)}"


def _removed(path: str, body: CheckpointBody) -> dict[str, int]:
    return dict(documents.parse(path, body.removed, RemovedFiles))


__all__ = ["BatchRef", "CommitLog", "LogView", "SegmentRef"]
