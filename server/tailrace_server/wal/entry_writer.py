"""Creation of entries and publications, and the start of an epoch.

A writer may create entry n + 1 under two conditions: it has read every entry up to n, and none of them has an
epoch higher than its own. If another writer creates n + 1 first, this writer reads that entry and checks it by
the same conditions. It never skips an entry. A publication releases all commits up to one entry to readers.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tailrace.errors import UnknownWriter, WriterFenced
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import (
    ENTRIES,
    FORMAT_VERSION,
    PUBLICATIONS,
    SEGMENTS,
    CommitEntry,
    Entry,
    OpenEntry,
    PublicationDocument,
)
from tailrace_server.wal.files.sealed import object_name, with_records
from tailrace_server.wal.source_batches import refuse_other_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.clock import Clock
    from tailrace_server.wal.state.commit_log import CommitLog


class EntryWriter:
    """Creates entries of one log under one epoch."""

    def __init__(self, log: CommitLog, *, epoch: int, writer: str, clock: Clock) -> None:
        """Write under an open epoch; if ``epoch`` is 0, call ``open_epoch`` first."""
        self.epoch = epoch
        self._writer = writer
        self._log = log
        self._create_object = log.store.create
        self._clock = clock

    def open_epoch(
        self, run_id: str, *, take_over: bool, may_be_fenced: bool, stream: str = ""
    ) -> None:
        """Create an OPEN entry with a new epoch, which fences every older writer.

        Raises:
            UnknownWriter: The catalog belongs to other names or another stream, and ``take_over`` is False.
            WriterFenced: ``may_be_fenced`` is True, and a writer of another name holds the catalog.
        """
        while True:
            # 1. Read the log to its end. After a failed attempt this includes the entry that took the number.
            self._log.advance()
            state = self._log.state
            last = state.writers.get(self._writer)
            # 2. Repeat these checks in each turn: the new entry may be the OPEN entry of a writer of another
            #    name.
            if may_be_fenced and last is not None and state.holder.writer != self._writer:
                found = self._log.read_entry(last.entry)
                epoch = found.entry.epoch if found is not None else 0
                raise WriterFenced(epoch, state.epoch, str(state.holder))
            if state.writers and self._writer not in state.writers and not take_over:
                raise UnknownWriter(
                    self._writer,
                    sorted(state.writers),
                    "to start a new writer, or one that lost its checkpoint, use --take-over "
                    "(take_over=True): it continues after the committed rows, and older writers "
                    "are fenced",
                )
            refuse_other_stream(state.source_positions, self._writer, stream, take_over=take_over)
            # 3. The number is free only if nothing was written since step 1. Exclusive creation checks that.
            entry = OpenEntry(
                format_version=FORMAT_VERSION,
                number=state.last_entry + 1,
                uuid=state.uuid,
                previous_crc32c=state.last_entry_crc,
                epoch=state.epoch + 1,
                timestamp=self.next_timestamp(),
                writer=self._writer,
                run_id=run_id,
                host=socket.gethostname(),
                take_over=take_over,
            )
            if self.create(entry):
                break
        self.epoch = entry.epoch
        # 4. Make the folder of the epoch's segments after the entry: a reader that sees the folder without the
        #    entry then knows that the entry was lost.
        self._log.store.make_folder(f"{SEGMENTS}/{self.epoch}")

    def create(self, entry: Entry, carried: bytes = b"") -> bool:
        """Create an entry and apply it to the state; return False if the number is taken by another entry.

        After False the caller must read that entry.
        """
        # 1. An entry that publishes itself is marked once its name is durable. Readers that follow the log wait
        #    for this mark in place of a second object.
        path = f"{ENTRIES}/{object_name(entry.number)}"
        text, crc = documents.sealed(entry)
        data = with_records(carried, text)
        publishes = isinstance(entry, CommitEntry) and entry.published
        mark = entry.timestamp if publishes else None
        if not self._create_object(path, data, failpoint="entry", mark=mark):
            # 2. The number is taken: by another writer, or by an attempt of this writer that failed after its
            #    object became visible. Only equal bytes prove that the entry is ours. Creating it again under n
            #    + 1 would commit it twice.
            found = self._log.store.read(path)
            if found is None or found.data != data:
                return False
        # 3. The number may have been free because upkeep deleted its entry while this process was paused. Check
        #    this before the state applies the entry: the state cannot be rolled back.
        if self._log.withdraws(path, crc):
            return self._is_covered(entry)
        self._log.state.apply(path, entry, crc)
        return True

    def _is_covered(self, entry: Entry) -> bool:
        """Read the log to its end; return True if it has the versions of an entry that is gone again.

        This happens if the process is paused after the creation until a checkpoint covers the entry. The entry
        is identified by its first version and commit timestamp.
        """
        self._log.advance()
        if not isinstance(entry, CommitEntry) or entry.first_version is None:
            return False  # creating such an entry again is harmless
        commits = self._log.state.commits
        found = commits.columns[:, : len(commits)]
        return [entry.first_version, entry.timestamp] in found.T.tolist()

    def check_fence(self) -> None:
        """Raise WriterFenced if the part of the log that has been read has a newer epoch."""
        if self._log.state.epoch != self.epoch:
            raise WriterFenced(self.epoch, self._log.state.epoch, str(self._log.state.holder))

    def next_timestamp(self) -> int:
        """Return the timestamp for a new entry, in microseconds; always later than that of the last entry."""
        return max(self._clock.now(), self._log.state.last_timestamp + 1)


def create_publication(
    log: CommitLog,
    *,
    now: int,
    up_to: tuple[int, int] | None = None,
    state_versions: Mapping[str, int] | None = None,
) -> PublicationDocument | None:
    """Create the next publication and apply it to the state; return None if its number is taken.

    Args:
        log: The log; new objects are not read here.
        now: Time of the publication, in microseconds since 1970.
        up_to: Number and last version of the entry to release, whose name must be durable. None: the last entry
            with versions.
        state_versions: State table → its version that shows the catalog as it is released.

    Raises:
        LogFull: The file system is full.
    """
    state = log.state
    entry, version = up_to or (state.last_commit_entry, state.last_version)
    publication = PublicationDocument(
        format_version=FORMAT_VERSION,
        number=state.last_publication + 1,
        uuid=state.uuid,
        previous_crc32c=state.publication_crc,
        epoch=state.epoch,
        entry=entry,
        version=version,
        timestamp=now,
        state_versions=dict(state_versions or {}),
    )
    path = f"{PUBLICATIONS}/{object_name(publication.number)}"
    data, crc = documents.sealed(publication)
    if not log.store.create(path, data, failpoint="publication"):
        return None
    # The number may have been free only because upkeep deleted its publication: then ours is withdrawn.
    if log.withdraws(path, crc):
        return None
    state.apply_publication(path, publication, crc)
    return publication
