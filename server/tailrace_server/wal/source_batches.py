"""Numbered batches of a source, such as a Spark stream: the log takes each of them once.

Spark counts the batches of one checkpoint, and a program may number its writes. Neither number identifies a
batch by itself: two streams and a program may use one writer, and a new checkpoint begins with batch 0 again.
So a batch is identified by its stream and its number, and a repeat must have the same content.

The log notes this in source positions, which a commit writes together with the rows::

    stream:WRITER      id of the stream whose batches the writer takes; a stream before it is fenced
    batch:STREAM       NUMBER:ROWS:CHECKSUM of the newest batch of a stream
    batch:of:WRITER    the same for the numbers that a program gives
    batch-ids:WRITER   last batch id of the writer before it had any of these notes; -1 for none. Up to there
                       the ids in its entries are Spark's or the program's, without the stream and the content
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from tailrace.errors import InvalidRequest, UnknownWriter
from tailrace_server.wal.state.commit_notes import BATCH_NOTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.wal.files.documents import CommitEntry, KnownCommit
    from tailrace_server.wal.state.state import LogState

_STREAM: Final = "stream:"
_IDS: Final = "batch-ids:"
_ADVICE: Final = (
    "permit take_over, which goes on with the rows of this one and fences the stream before it"
)

Notes = dict[str, int | str]
"""Source positions that the commit of a batch writes."""


class BatchContent(NamedTuple):
    """The content of a batch, independent of the order of its rows."""

    rows: int = 0
    checksum: int = 0
    """Sum of the checksums of its rows, below 2^64."""

    def plus(self, other: BatchContent) -> BatchContent:
        """Return the content of both together."""
        return BatchContent(self.rows + other.rows, (self.checksum + other.checksum) % (1 << 64))

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self.checksum:x}"


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """One batch of a source."""

    stream: str
    """Id of Spark's query, which is part of its checkpoint; empty for a number that a program gives."""
    number: int
    content: BatchContent
    consecutive: bool = False
    """True if the numbers of the stream begin with 0 and leave none out."""
    take_over: bool = False
    """Permission to take a stream that the log does not know, and to leave out batches."""

    def admit(self, state: LogState, writer: str) -> Notes | None:
        """Return what its commit notes; None if the log has its number, and ``repeats`` finds the entry.

        Raises:
            UnknownWriter: The writer takes the batches of another stream, or the log lacks batches before it.
            InvalidRequest: An older tailrace may have committed it and kept no checksum.
        """
        positions = state.source_positions
        refuse_other_stream(positions, writer, self.stream, take_over=self.take_over)
        before = _ids_before(state, writer)
        newest = positions.get(self.place(writer))
        if newest is not None:
            last = int(str(newest).partition(":")[0])
        elif self.stream:
            self._check_first(writer, before)
            last = self.number - 1  # from here on, its numbers are followed
        else:
            last = before
        if self.number <= last:
            return None
        if self.consecutive and self.number > last + 1 and not self.take_over:
            self._refuse_gap(writer, last)
        newest = f"{self.number}:{self.content.rows}:{self.content.checksum:x}"
        notes = {self.place(writer): newest, **ids_note(state, writer)}
        return notes | ({f"{_STREAM}{writer}": self.stream} if self.stream else {})

    def repeats(self, entry: CommitEntry, state: LogState, writer: str) -> bool:
        """Return whether an entry committed this batch.

        Raises:
            InvalidRequest: It committed the batch's number with other content.
        """
        noted = entry.source_positions.get(self.place(writer))
        if noted is not None:
            return self._is_noted(noted, writer, entry)
        # An entry of an older tailrace has the program's number as its batch id, and no checksum.
        is_older = not self.stream and entry.writer == writer and entry.batch_id == self.number
        if not is_older or entry.batch_id > _ids_before(state, writer):
            return False
        held_rows = sum(sum(each.counts.values()) for each in entry.segments)
        # Records of the schema are counted too, and only a commit with a new schema has any.
        if held_rows < self.content.rows or (held_rows > self.content.rows and not entry.schemas):
            self._refuse_content(writer, entry, f"{held_rows} rows")
        return True

    def newest_repeated(self, state: LogState, writer: str) -> KnownCommit | None:
        """Return the commit of this batch if it is the newest one of its source; errors as ``repeats``."""
        place = self.place(writer)
        (known,) = state.known_commits.get(place, (None,))
        if known is None or not self._is_noted(state.source_positions[place], writer, known):
            return None
        return known

    def _is_noted(self, noted: int | str, writer: str, commit: CommitEntry | KnownCommit) -> bool:
        """Return True if a note is of this batch; raise InvalidRequest if it has other content."""
        number, rows, checksum = str(noted).split(":")
        if int(number) != self.number:
            return False
        held = BatchContent(int(rows), int(checksum, 16))
        if held != self.content:
            self._refuse_content(writer, commit, str(held))
        return True

    def name(self, writer: str) -> str:
        """Return how an error names the batch."""
        stream = f" of checkpoint {self.stream}" if self.stream else ""
        return f"batch {self.number}{stream} of writer {writer!r}"

    def place(self, writer: str) -> str:
        """Return the source position that notes the newest batch."""
        return f"{BATCH_NOTES}{self.stream}" if self.stream else f"{BATCH_NOTES}of:{writer}"

    def _check_first(self, writer: str, before: int) -> None:
        """Refuse the first batch of a stream whose earlier batches the log may have, or lack."""
        # A new stream begins with batch 0, and one of an older tailrace with the number after its last.
        if self.take_over or self.number == before + 1:
            return
        if before >= 0 and self.number == before:
            raise InvalidRequest(
                f"{self.name(writer)} may be in the log: an older tailrace committed a batch {before} and kept "
                "no checksum. If the log lacks its rows, run it once with take_over, which writes them; if the "
                "log has them, give the stream a new checkpoint that begins behind them, and take_over"
            )
        if before >= 0 or self.consecutive:
            self._refuse_gap(writer, before)

    def _refuse_gap(self, writer: str, last: int) -> NoReturn:
        held = f"has batches up to {last}" if last >= 0 else "has no batch"
        raise UnknownWriter(
            f"{writer}, batch {self.number} of checkpoint {self.stream}",
            [f"{writer}, batch {last + 1}"],
            f"the log {held} of this writer, so the checkpoint is another one, or log or checkpoint were "
            f"restored; put back those that belong together, or {_ADVICE}",
        )

    def _refuse_content(self, writer: str, entry: CommitEntry | KnownCommit, held: str) -> NoReturn:
        versions = f"versions {entry.first_version} to {entry.last_version}"
        held_in = versions if entry.first_version else "without rows"
        raise InvalidRequest(
            f"{self.name(writer)} is in the log ({held_in}) with other "
            f"content: it has {held}, and now {self.content}. Nothing was written. A repeated batch must have "
            "the same rows, so a program may not use uuid(), rand() or the present time; rows that are new "
            "take a new number, or a new checkpoint with take_over"
        )


def refuse_other_stream(
    positions: Mapping[str, int | str], writer: str, stream: str, *, take_over: bool
) -> None:
    """Refuse a stream unless the writer takes its batches, or may take them from here on.

    Raises:
        UnknownWriter: The writer takes those of another one, and this one is new, or was taken over from.
    """
    current = positions.get(f"{_STREAM}{writer}")
    if not stream or current in (None, stream):
        return
    names = f"{writer}, checkpoint {stream}", [f"{writer}, checkpoint {current}"]
    if f"{BATCH_NOTES}{stream}" in positions:
        # Its permission was for its own beginning. With it, two programs would take over in turns.
        raise UnknownWriter(
            *names, "a stream with another checkpoint has taken over: stop this one"
        )
    if not take_over:
        raise UnknownWriter(
            *names,
            "the checkpoint is new or was lost, and a stream that reads its source from the beginning would "
            f"double what the log holds; give a second stream a writer of its own, or {_ADVICE}",
        )


def ids_note(state: LogState, writer: str) -> Notes:
    """Return the note of the writer's batch ids before it had notes; every commit without an id makes it."""
    return {f"{_IDS}{writer}": _ids_before(state, writer)}


def _ids_before(state: LogState, writer: str) -> int:
    noted = state.source_positions.get(f"{_IDS}{writer}")
    if noted is not None:
        return int(noted)
    last = state.writers.get(writer)
    return -1 if last is None else last.batch_id
