"""The rows that the tasks of a large batch exchange: rows of `FRAME`, and their contents.

Updates do not travel as rows of Spark. A row of `FRAME` is a *piece*: an Arrow table of tens of
thousands of updates in one binary value, or a pickled result. So Spark's exchange, cache and retries
are used, and Spark pays per piece and not per update. The pieces of a share are joined where they land.
"""

from __future__ import annotations

import pickle
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tailrace_server.pipeline.cdcv2.updates import joined, share_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.state import StateFile
    from tailrace_server.pipeline.cdcv2.times import Contradiction, Interval
    from tailrace_server.wal.segment.writer import SegmentReceipt

FRAME: Final = pa.schema(
    [
        pa.field("share", pa.int32(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("piece", pa.binary(), nullable=False),
    ]
)
"""``share`` is the task that gets the row next, ``kind`` a `Kind`, ``piece`` the content."""


class Kind(IntEnum):
    """The kind of a piece."""

    SEED = auto()
    """Empty. It makes a share run that gets nothing else."""
    FAILURE = auto()
    """A pickled error."""
    PART_READ = auto()
    """A pickled `PartRead`."""
    NEW_UPDATES = auto()
    """Updates of the batch, of `UPDATES`."""
    ANNOUNCED = auto()
    """Counts of progress statements, of `COUNTS`."""
    COVERED = auto()
    """Intervals of progress statements, of `INTERVALS`."""
    DEDUPLICATED = auto()
    """A pickled `DeduplicatedShare`."""
    RECEIVED = auto()
    """How many updates are new at each time, of `COUNTS`."""
    OPEN_UPDATES = auto()
    """Distinct updates from the old frontier on, of `UPDATES`."""
    TIMES_UPDATED = auto()
    """A pickled `TimesOfShare`."""
    OPEN_TIMES = auto()
    """Times from the old frontier on, of `TIMES`."""
    FINISHED_UPDATES = auto()
    """Updates below the new frontier, of `FINISHED`; without a folding of `UPDATES`."""
    STATE_FILE = auto()
    """A pickled `StateOfShare`."""
    EFFECTS_OF_RANGE = auto()
    """Effects of a range of time, of `EFFECTS`."""
    SEGMENT_WRITTEN = auto()
    """A pickled `WrittenSegment`."""


Piece = tuple[int, int, bytes]
"""A row of `FRAME`."""

Pieces = dict[int, list[bytes]]
"""Contents of the pieces of a share, by kind."""


class PartRead(NamedTuple):
    """The result of reading a part of a file."""

    ordinal: int
    """Number of the file."""
    messages: int
    """Messages read, refused ones included."""
    updates: int
    """Updates read, repeated and dropped ones included."""
    dropped: int
    """Updates of times that were finished already."""
    duplicates: int
    """Updates that repeat another one of the part."""
    refused: list[RefusedMessage]


class DeduplicatedShare(NamedTuple):
    """The result of deduplicating a share of the updates."""

    duplicates: int
    conflicts: int
    """Updates that contradict an earlier one in their diff."""
    conflict: tuple[dict[str, Any], dict[str, Any]] | None
    """The first two updates that contradict each other, as rows of `UPDATES`."""


class TimesOfShare(NamedTuple):
    """The result of updating a share of the times."""

    lowest: int | None
    """The first time of the share that misses updates; None where none does."""
    contradiction: Contradiction | None
    coverage: list[Interval] | None
    """All that is covered now. From share 0 only, since every share computes the same; else None."""
    sample: list[tuple[int, int]]
    """Times, rising, each with the number of the share's updates since the time before it."""


class StateOfShare(NamedTuple):
    """A state file that a task wrote."""

    state: StateFile
    ordinals: set[int]
    """Ordinals of the files that its rows point to."""


class WrittenSegment(NamedTuple):
    """A segment that a task wrote."""

    task: int
    receipts: list[SegmentReceipt]
    versions: int


def encoded(rows: pa.RecordBatch) -> bytes:
    """Return a table as the content of a piece."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()  # type: ignore[no-any-return]


def decoded(piece: bytes) -> pa.RecordBatch:
    """Return the table of a piece; it shares the piece's memory."""
    with pa.ipc.open_stream(piece) as stream:
        return stream.read_next_batch()


def take_table(pieces: Pieces, kind: Kind, schema: pa.Schema) -> pa.RecordBatch:
    """Remove the pieces of a kind, and return their tables joined."""
    return joined([decoded(piece) for piece in pieces.pop(kind, [])], schema)


def by_share(
    kind: Kind,
    rows: pa.RecordBatch,
    shares: int,
    hashed: npt.NDArray[np.uint64] | None = None,
) -> Iterator[Piece]:
    """Yield rows as pieces for the shares of their hashes, by default those of column ``hash``."""
    if hashed is None:
        hashed = rows.column("hash").to_numpy()
    for share, some in share_out(rows, hashed, shares):
        yield share, kind, encoded(some)


def pass_on(share: int, pieces: Pieces) -> Iterator[Piece]:
    """Yield the pieces that a step did not use, for a later one; seeds have done their work."""
    for kind, held in pieces.items():
        if kind != Kind.SEED:
            for piece in held:
                yield share, kind, piece


def failure(error: Exception) -> Piece:
    """Return an error as a piece: raised in a task, it would reach the driver as text only."""
    return 0, Kind.FAILURE, pickle.dumps(error)


def frame(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Return pieces as a table of `FRAME`."""
    shares, kinds, values = zip(*pieces, strict=True)
    binary = pa.array([pa.py_buffer(value).to_pybytes() for value in values], pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array(shares, pa.int32()), pa.array(kinds, pa.int32()), binary], schema=FRAME
    )
