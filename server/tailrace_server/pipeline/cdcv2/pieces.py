"""The kinds of pieces (`spark.pieces`) that the tasks of a large batch exchange, and the results in them."""

from __future__ import annotations

import pickle
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace_server.pipeline.cdcv2.updates import joined, share_out
from tailrace_server.pipeline.spark.pieces import decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.state import StateFile
    from tailrace_server.pipeline.cdcv2.times import Contradiction, Interval
    from tailrace_server.pipeline.spark.pieces import Piece
    from tailrace_server.wal.segment.writer import SegmentReceipt


class Kind(IntEnum):
    """The kind of a piece."""

    SEED = auto()
    """An empty piece. It makes Spark run a partition that gets no other piece."""
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
    """The number of new updates at each time, of `COUNTS`."""
    OPEN_UPDATES = auto()
    """Distinct updates at or after the old frontier, of `UPDATES`."""
    TIMES_UPDATED = auto()
    """A pickled `TimesOfShare`."""
    OPEN_TIMES = auto()
    """Times at or after the old frontier, of `TIMES`."""
    FINISHED_UPDATES = auto()
    """Updates before the new frontier: of `FINISHED`, or of `UPDATES` if no folding is given."""
    STATE_FILE = auto()
    """A pickled `StateOfShare`."""
    EFFECTS_OF_RANGE = auto()
    """The effects of a range of times, of `EFFECTS`."""
    SEGMENT_WRITTEN = auto()
    """A pickled `WrittenSegment`."""


Pieces = dict[int, list[bytes]]
"""The contents of the pieces of one partition, by kind."""


class PartRead(NamedTuple):
    """The result of reading a part of a file."""

    ordinal: int
    """Ordinal of the file."""
    messages: int
    """Number of messages, including refused ones."""
    updates: int
    """Number of updates, including repeated and dropped ones."""
    dropped: int
    """Number of updates whose times were already finished."""
    duplicates: int
    """Number of updates that repeat another update of the same part."""
    refused: list[RefusedMessage]


class DeduplicatedShare(NamedTuple):
    """The result of deduplicating the updates of one hash partition."""

    duplicates: int
    conflicts: int
    """Number of updates that have another diff than an earlier update of the same data and time."""
    conflict: tuple[dict[str, Any], dict[str, Any]] | None
    """The first two updates that contradict each other, as rows of `UPDATES`; None: there are none."""


class TimesOfShare(NamedTuple):
    """The result of updating the times of one hash partition."""

    lowest: int | None
    """The first time of the partition that lacks updates; None if no time does."""
    contradiction: Contradiction | None
    coverage: list[Interval] | None
    """All covered intervals, from partition 0; None from other partitions, since all compute the same."""
    sample: list[tuple[int, int]]
    """A sample of the times, rising; each with the number of the partition's updates since the sampled time
    before it.
    """


class StateOfShare(NamedTuple):
    """A state file that a task wrote."""

    state: StateFile
    ordinals: set[int]
    """Ordinals of the files that the rows of the state file refer to."""


class WrittenSegment(NamedTuple):
    """A segment that a task wrote."""

    task: int
    receipts: list[SegmentReceipt]
    versions: int


def take_table(pieces: Pieces, kind: Kind, schema: pa.Schema) -> pa.RecordBatch:
    """Remove the pieces of a kind from ``pieces``, and return their tables joined."""
    return joined([decoded(piece) for piece in pieces.pop(kind, [])], schema)


def by_share(
    kind: Kind,
    rows: pa.RecordBatch,
    shares: int,
    hashed: npt.NDArray[np.uint64] | None = None,
) -> Iterator[Piece]:
    """Yield rows as pieces, one for each hash partition.

    Args:
        kind: The kind of the pieces.
        rows: The rows.
        shares: The number of partitions.
        hashed: The hash of each row; None: the column ``hash``.
    """
    if hashed is None:
        hashed = rows.column("hash").to_numpy()
    for share, some in share_out(rows, hashed, shares):
        yield share, kind, encoded(some)


def pass_on(share: int, pieces: Pieces) -> Iterator[Piece]:
    """Yield the pieces that a step did not use, for later steps.

    Seeds are dropped: they are no longer needed.
    """
    for kind, held in pieces.items():
        if kind != Kind.SEED:
            for piece in held:
                yield share, kind, piece


def failure(error: Exception) -> Piece:
    """Return an error as a piece. An error raised in a Spark task would reach the driver only as text."""
    return 0, Kind.FAILURE, pickle.dumps(error)
