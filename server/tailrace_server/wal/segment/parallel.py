"""Record batches read ahead by several threads and yielded in order; also selected records of many batches.

::

    batches    1   2   3   4   5   6 …
    threads    └ a ┘   │   └ b ┘         each takes the next one that no thread has
    given      1 ─ 2 ─ 3 …               waits for the next one, whichever thread reads it

The number and the bytes of batches that are read and not yielded yet are bounded. An error is raised in the
place of its batch: the batches before it are yielded first, and a caller that stops earlier does not get the
error.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tailrace_server.wal.record.columns import BODY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence, Sized
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace_server.wal.segment.reader import BatchHead, BatchReader
    from tailrace_server.wal.segment.refs import BatchRef

_THREADS_MAX: Final = 16
"""Maximum number of threads of one scan, even if more are requested."""
_AHEAD_BYTES: Final = 32 << 20
"""Maximum number of bytes to read ahead, in addition to one batch."""


class ReadBatch(NamedTuple):
    """A batch with its head and the bodies that were read."""

    ref: BatchRef
    head: BatchHead
    bodies: Mapping[str, pa.BinaryArray] | None
    """Body column → bodies; None if no record of the batch is wanted, or if bodies are not read yet."""


def read_batches(
    reader: BatchReader,
    refs: Iterable[BatchRef],
    columns: Collection[str],
    wanted: Callable[[BatchHead], Sized],
    threads: int,
) -> Generator[ReadBatch, None, None]:
    """Yield batches in order, with their bodies if ``threads`` is at least 2.

    With one thread the caller's own thread reads each head on demand, and no bodies.

    Args:
        reader: Reader of the catalog's files.
        refs: The batches; iterated in the caller's thread.
        columns: The body columns to read.
        wanted: Returns the records whose bodies are needed, given a batch's head; called by the reading
            threads.
        threads: Number of threads that read at once.

    Raises:
        LogCorrupted, SegmentMissing: As ``BatchReader.head``.
    """
    if threads < 2:
        for ref in refs:
            yield ReadBatch(ref, reader.head(ref), None)
        return

    def read(ref: BatchRef) -> ReadBatch:
        head = reader.head(ref)
        return ReadBatch(ref, head, reader.body(ref, columns) if len(wanted(head)) else None)

    waiting: deque[tuple[int, Future[ReadBatch]]] = deque()
    ahead, count = 0, min(threads, _THREADS_MAX)
    pool = ThreadPoolExecutor(count, "scan")
    try:
        for ref in refs:
            size = _size(ref, columns)
            # Yield the oldest batch before reading further ahead: this bounds the number and the bytes of
            # waiting batches.
            while waiting and (len(waiting) >= count or ahead + size > _AHEAD_BYTES):
                read_size, batch = waiting.popleft()
                ahead -= read_size
                yield batch.result()
            waiting.append((size, pool.submit(read, ref)))
            ahead += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        # Cancel reads that have not begun: a caller that stops early does not wait for them.
        pool.shutdown(cancel_futures=True)


def _size(ref: BatchRef, columns: Collection[str]) -> int:
    lengths = zip(BODY_COLUMNS, ref.body_lengths, strict=True)
    return ref.head_length + sum(length for name, length in lengths if name in columns)


class RecordColumns(Protocol):
    """The columns that `BatchHead` and `TakenRecords` have in common; all have one length."""

    @property
    def versions(self) -> NDArray[np.int64]:
        """Version of each record, ascending."""

    @property
    def indexes(self) -> NDArray[np.int32]:
        """Index of each record in its version."""

    @property
    def operations(self) -> NDArray[np.uint8]:
        """Operation of each record, by the numbers of ``Operation``."""

    @property
    def primary_keys(self) -> pa.StringArray:
        """Primary key of each record; null if it has none."""

    @property
    def changed(self) -> pa.Array:
        """Null for each record whose changed columns are unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenRecords:
    """Selected records with their bodies."""

    versions: NDArray[np.int64]
    indexes: NDArray[np.int32]
    operations: NDArray[np.uint8]
    primary_keys: pa.StringArray
    changed: pa.BooleanArray
    """True if the changed columns are known, else null. Their names are omitted, as their codes differ by
    segment."""
    bodies: Mapping[str, pa.BinaryArray]

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def nbytes(self) -> int:
        """Size of the bodies in bytes."""
        return sum(body.nbytes for body in self.bodies.values())

    @classmethod
    def of(
        cls, columns: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> TakenRecords:
        """Copy some records of a batch, with the bodies that were read."""
        places = pa.array(rows)
        unsaid = columns.changed.take(places).is_null().to_numpy(zero_copy_only=False)
        return cls(
            columns.versions[rows],
            columns.indexes[rows],
            columns.operations[rows],
            columns.primary_keys.take(places),
            pa.array(np.ones(len(rows), np.bool_), mask=unsaid),
            {name: body.take(places) for name, body in bodies.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[TakenRecords]) -> TakenRecords:
        """Concatenate at least one part, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([each.versions for each in parts]),
            np.concatenate([each.indexes for each in parts]),
            np.concatenate([each.operations for each in parts]),
            pa.concat_arrays([each.primary_keys for each in parts]),
            pa.concat_arrays([each.changed for each in parts]),
            {
                name: pa.concat_arrays([each.bodies[name] for each in parts])
                for name in parts[0].bodies
            },
        )


def are_between(
    versions: NDArray[np.int64], indexes: NDArray[np.int32], done: Position, end: Position
) -> NDArray[np.bool_]:
    """Return a mask of the records between two positions, both exclusive."""
    rows: NDArray[np.bool_]
    rows = (versions > done.version) | ((versions == done.version) & (indexes > done.index))
    rows &= (versions < end.version) | ((versions == end.version) & (indexes < end.index))
    return rows
