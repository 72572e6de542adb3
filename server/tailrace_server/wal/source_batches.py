"""Numbered batches of a source, such as a Spark stream: the log commits each batch once.

Spark counts the batches of one checkpoint, and a program may number its writes. Neither number identifies a
batch by itself: two streams and a program may use one writer, and a new checkpoint begins with batch 0 again.
So a batch is identified by its stream and its number, and a repeat must have the same content.

The log notes this in source positions, which a commit writes together with the rows::

    stream:WRITER      id of the stream that feeds the writer; the stream before it is fenced
    batch:STREAM       NUMBER:ROWS:CHECKSUM of the newest batch of a stream
    batch:of:WRITER    the same for batches that a program numbers
    offset:TOPIC/PARTITION    how far the log has read a partition (`source_offsets`)
    batch-ids:WRITER   last batch id of the writer before it had any of these notes; -1 for none. Up to there
                       the ids in its entries are Spark's or the program's, without the stream and the content
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from tailrace.errors import InvalidRequest, UnknownWriter
from tailrace_server.wal.source_offsets import OffsetRange, offsets_after, refuse_offsets
from tailrace_server.wal.state.commit_notes import BATCH_NOTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.wal.files.documents import CommitEntry, KnownCommit
    from tailrace_server.wal.state.state import LogState

_STREAM: Final = "stream:"
_IDS: Final = "batch-ids:"
_ADVICE: Final = (
    "set take_over, which continues with the rows of this stream and fences the stream before it"
)

Notes = dict[str, int | str]
"""The source positions that the commit of a batch writes."""


class BatchContent(NamedTuple):
    """Count and checksum of a batch's rows; independent of their order."""

    rows: int = 0
    checksum: int = 0
    """Sum of the checksums of the rows, modulo 2^64."""

    def plus(self, other: BatchContent) -> BatchContent:
        """Return the content of both batches together."""
        return BatchContent(self.rows + other.rows, (self.checksum + other.checksum) % (1 << 64))

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self.checksum:x}"


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """One numbered batch of a source."""

    stream: str
    """Id of the Spark query, which is part of its checkpoint; empty if a program numbers the batch."""
    number: int
    content: BatchContent
    consecutive: bool = False
    """True if the stream numbers its batches 0, 1, 2, … without gaps."""
    take_over: bool = False
    """Permission to accept a stream that the log does not know, and to skip batches."""
    offsets: tuple[OffsetRange, ...] = ()
    """The offsets that the lines come from, if the source has any; the log stores them (`source_offsets`)."""
    accept_gaps: bool = False
    """Permission to continue behind offsets that are missing."""

    def admit(self, state: LogState, writer: str) -> Notes | None:
        """Return the notes for this batch's commit; None if a batch of this or a higher number is committed.

        After None, ``repeats`` finds the entry of the first commit.

        Raises:
            UnknownWriter: Another stream feeds the writer, or the log lacks batches before this one.
            InvalidRequest: An older tailrace may have committed this batch, without a checksum. Or its offsets
                do not continue those of the log.
        """
        positions = state.source_positions
        refuse_other_stream(positions, writer, self.stream, take_over=self.take_over)
        before = _ids_before(state, writer)
        newest = newest_batch(state, self.stream or f"of:{writer}")
        if newest is not None:
            last = newest
        elif self.stream:
            self._check_first(writer, before)
            last = self.number - 1  # the log tracks its numbers from this batch on
        else:
            last = before
        if self.number <= last:
            return None
        if self.consecutive and self.number > last + 1 and not self.take_over:
            self._refuse_gap(writer, last)
        refuse_offsets(self.offsets, positions, self.stream, accept_gaps=self.accept_gaps)
        noted = f"{self.number}:{self.content.rows}:{self.content.checksum:x}"
        notes = {self.place(writer): noted, **ids_note(state, writer)}
        notes |= offsets_after(self.offsets, positions, self.stream)
        return notes | ({f"{_STREAM}{writer}": self.stream} if self.stream else {})

    def repeats(self, entry: CommitEntry, state: LogState, writer: str) -> bool:
        """Return True if an entry committed this batch.

        Raises:
            InvalidRequest: The entry committed a batch of this number with other content.
        """
        noted = entry.source_positions.get(self.place(writer))
        if noted is not None:
            return self._is_noted(noted, writer, entry)
        # An entry of an older tailrace has the program's number as its batch id, and no checksum.
        is_older = not self.stream and entry.writer == writer and entry.batch_id == self.number
        if not is_older or entry.batch_id > _ids_before(state, writer):
            return False
        held_rows = sum(sum(each.counts.values()) for each in entry.segments)
        # The count of an entry includes schema records, and only a commit with a new schema has any.
        if held_rows < self.content.rows or (held_rows > self.content.rows and not entry.schemas):
            self._refuse_content(writer, entry, f"{held_rows} rows")
        return True

    def newest_repeated(self, state: LogState, writer: str) -> KnownCommit | None:
        """Return the commit of this batch if it is the newest batch of its source; errors as ``repeats``."""
        place = self.place(writer)
        (known,) = state.known_commits.get(place, (None,))
        if known is None or not self._is_noted(state.source_positions[place], writer, known):
            return None
        return known

    def _is_noted(self, noted: int | str, writer: str, commit: CommitEntry | KnownCommit) -> bool:
        """Return True if a note names this batch; raise InvalidRequest if the noted content differs."""
        number, rows, checksum = str(noted).split(":")
        if int(number) != self.number:
            return False
        held = BatchContent(int(rows), int(checksum, 16))
        if held != self.content:
            self._refuse_content(writer, commit, str(held))
        return True

    def name(self, writer: str) -> str:
        """Return the batch's name for error messages."""
        stream = f" of checkpoint {self.stream}" if self.stream else ""
        return f"batch {self.number}{stream} of writer {writer!r}"

    def place(self, writer: str) -> str:
        """Return the name of the source position that notes the newest batch."""
        return f"{BATCH_NOTES}{self.stream}" if self.stream else f"{BATCH_NOTES}of:{writer}"

    def _check_first(self, writer: str, before: int) -> None:
        """Refuse the first batch of a stream if the log may have it already, or lacks batches before it."""
        # A new stream begins with batch 0. A stream that an older tailrace committed continues after its last
        # number.
        if self.take_over or self.number == before + 1:
            return
        if before >= 0 and self.number == before:
            raise InvalidRequest(
                f"{self.name(writer)} may be in the log: an older tailrace committed a batch "
                f"{before} without a checksum. If the log lacks its rows, run it once with "
                "take_over, which writes them; if the log has them, start the stream with a new "
                "checkpoint that begins after them, and take_over"
            )
        if before >= 0 or self.consecutive:
            self._refuse_gap(writer, before)

    def _refuse_gap(self, writer: str, last: int) -> NoReturn:
        held = f"has batches up to {last}" if last >= 0 else "has no batch"
        raise UnknownWriter(
            f"{writer}, batch {self.number} of checkpoint {self.stream}",
            [f"{writer}, batch {last + 1}"],
            f"the log {held} of this writer, so the checkpoint is a different one, or the log or "
            "the checkpoint was restored from a copy; restore a log and a checkpoint of the same "
            f"time, or {_ADVICE}",
        )

    def _refuse_content(self, writer: str, entry: CommitEntry | KnownCommit, held: str) -> NoReturn:
        versions = f"versions {entry.first_version} to {entry.last_version}"
        held_in = versions if entry.first_version else "without rows"
        raise InvalidRequest(
            f"{self.name(writer)} is in the log ({held_in}) with other content: the log has "
            f"{held}, the batch has {self.content}. Nothing was written. A repeated batch must "
            "have the same rows, so its program must not use uuid(), rand() or the current time; "
            "write new rows with a new batch number, or with a new checkpoint and take_over"
        )


def newest_batch(state: LogState, stream: str) -> int | None:
    """Return the number of a stream's newest batch in the log; None without one."""
    noted = state.source_positions.get(f"{BATCH_NOTES}{stream}")
    return None if noted is None else int(str(noted).partition(":")[0])


def stream_of(state: LogState, writer: str) -> str | None:
    """Return the id of the stream that feeds a writer; None without one."""
    found = state.source_positions.get(f"{_STREAM}{writer}")
    return None if found is None else str(found)


def refuse_other_stream(
    positions: Mapping[str, int | str], writer: str, stream: str, *, take_over: bool
) -> None:
    """Refuse a stream unless it feeds the writer already, or may do so from now on.

    Raises:
        UnknownWriter: Another stream feeds the writer, and this stream is new without ``take_over``, or was
            taken over from.
    """
    current = positions.get(f"{_STREAM}{writer}")
    if not stream or current in (None, stream):
        return
    names = f"{writer}, checkpoint {stream}", [f"{writer}, checkpoint {current}"]
    if f"{BATCH_NOTES}{stream}" in positions:
        # This stream was taken over from. Its own ``take_over`` does not count: two programs would take over in
        # turns.
        raise UnknownWriter(
            *names, "a stream with another checkpoint has taken over the catalog: stop this one"
        )
    if not take_over:
        raise UnknownWriter(
            *names,
            "the checkpoint is new or was lost, and a stream that reads its source from the "
            "beginning would write all rows of the log a second time; give a second stream its "
            f"own writer name, or {_ADVICE}",
        )


def ids_note(state: LogState, writer: str) -> Notes:
    """Return the note of the writer's last batch id before its first notes.

    Every commit without a batch id writes this note.
    """
    return {f"{_IDS}{writer}": _ids_before(state, writer)}


def _ids_before(state: LogState, writer: str) -> int:
    noted = state.source_positions.get(f"{_IDS}{writer}")
    if noted is not None:
        return int(noted)
    last = state.writers.get(writer)
    return -1 if last is None else last.batch_id
