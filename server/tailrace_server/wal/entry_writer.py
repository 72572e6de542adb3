"""Creating entries and publications: the right to do so, and the begin of an epoch.

Two rules decide which writer may create entry n + 1: every entry up to n has been read, and none has a higher
epoch than ours. If the name is taken meanwhile, its holder is read and checked by the same rules, never
skipped. A publication releases to readers what is committed up to the end of an entry.
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
    """Creates the entries of one log under one epoch."""

    def __init__(self, log: CommitLog, *, epoch: int, writer: str, clock: Clock) -> None:
        """Write under an epoch that is open; with 0, call ``open_epoch`` first."""
        self.epoch = epoch
        self._writer = writer
        self._log = log
        self._create_object = log.store.create
        self._clock = clock

    def open_epoch(
        self, run_id: str, *, take_over: bool, may_be_fenced: bool, stream: str = ""
    ) -> None:
        """Create an OPEN entry: from then on every older writer finds a higher epoch than its own.

        Raises:
            UnknownWriter: The catalog belongs to other names or another stream, and ``take_over`` is False.
            WriterFenced: ``may_be_fenced``, and another name holds the catalog.
        """
        while True:
            # 1. Read to the end. After a failed attempt that includes the entry that took the number.
            self._log.advance()
            state = self._log.state
            last = state.writers.get(self._writer)
            # 2. Decide anew in each turn: the entry that took the number may be the OPEN entry of another name.
            if may_be_fenced and last is not None and state.holder.writer != self._writer:
                found = self._log.read_entry(last.entry)
                epoch = found.entry.epoch if found is not None else 0
                raise WriterFenced(epoch, state.epoch, str(state.holder))
            if state.writers and self._writer not in state.writers and not take_over:
                raise UnknownWriter(
                    self._writer,
                    sorted(state.writers),
                    "if it is a new writer, or one that lost its checkpoint, give it leave with --take-over "
                    "(take_over=True): it goes on behind what was committed, and older writers are fenced",
                )
            refuse_other_stream(state.source_positions, self._writer, stream, take_over=take_over)
            # 3. The number is free only if nothing was written since step 1: the creation decides.
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
        # 4. The folder of the epoch's segments comes after the entry: a reader that finds the folder and not
        #    the entry knows that the entry was lost.
        self._log.store.make_folder(f"{SEGMENTS}/{self.epoch}")

    def create(self, entry: Entry, carried: bytes = b"") -> bool:
        """Create an entry and apply it; False when another has its place, which is then to be read."""
        # 1. An entry that publishes itself states so by its mark, once its name is durable: readers that follow
        #    the log wait for the mark in place of a second object.
        path = f"{ENTRIES}/{object_name(entry.number)}"
        text, crc = documents.sealed(entry)
        data = with_records(carried, text)
        publishes = isinstance(entry, CommitEntry) and entry.published
        mark = entry.timestamp if publishes else None
        if not self._create_object(path, data, failpoint="entry", mark=mark):
            # 2. Taken by another writer, or by this one: an attempt may fail after it has become visible. Only
            #    equal bytes prove that it is ours; to create it again under n + 1 would commit it twice.
            found = self._log.store.read(path)
            if found is None or found.data != data:
                return False
        # 3. The number may be free because upkeep has deleted its entry while this process was paused. Look
        #    before the state takes the entry: the state never goes back.
        if self._log.withdraws(path, crc):
            return self._is_covered(entry)
        self._log.state.apply(path, entry, crc)
        return True

    def _is_covered(self, entry: Entry) -> bool:
        """Read the log to its end; return True if it has an entry that was created here and is gone.

        That is so if this process was paused after the creation until a checkpoint covered the entry. The
        commit timestamp of its first version identifies it.
        """
        self._log.advance()
        if not isinstance(entry, CommitEntry) or entry.first_version is None:
            return False  # to create such an entry once more changes nothing
        commits = self._log.state.commits
        found = commits.columns[:, : len(commits)]
        return [entry.first_version, entry.timestamp] in found.T.tolist()

    def check_fence(self) -> None:
        """Raise WriterFenced if the log, as far as it has been read, has a newer epoch."""
        if self._log.state.epoch != self.epoch:
            raise WriterFenced(self.epoch, self._log.state.epoch, str(self._log.state.holder))

    def next_timestamp(self) -> int:
        """Return the timestamp, µs, of an entry that is created now; later than every one before."""
        return max(self._clock.now(), self._log.state.last_timestamp + 1)


def create_publication(
    log: CommitLog,
    *,
    now: int,
    up_to: tuple[int, int] | None = None,
    state_versions: Mapping[str, int] | None = None,
) -> PublicationDocument | None:
    """Create the publication that comes next, and apply it; None when another has its number.

    Args:
        log: The log as far as it has been read.
        now: µs since the epoch.
        up_to: Number and last version of the entry to release, whose name is durable; None: the last one.
        state_versions: Version of each state table that shows the catalog as it is released.

    Raises:
        LogFull: No room.
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
    if log.withdraws(path, crc):
        return None
    state.apply_publication(path, publication, crc)
    return publication
