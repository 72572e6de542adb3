"""Batches of a log, read ahead by several threads and yielded in order; also selected records of many batches.

::

    batches    1   2   3   4   5   6 …
    threads    └ a ┘   │   └ b ┘         each takes the next one that no thread has
    given      1 ─ 2 ─ 3 …               waits for the next one, whichever thread reads it

The batches that were read and not yielded yet are bounded, by number and by bytes. An error is raised in the
place of its batch: the batches before it are yielded, and a caller that stops earlier does not get the error.
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
"""Threads of one reading, however many are asked for."""
_AHEAD_BYTES: Final = 32 << 20
"""Bytes that are read ahead at most, beside one batch."""


class ReadBatch(NamedTuple):
    """A batch with its head and the bodies that were read."""

    ref: BatchRef
    head: BatchHead
    bodies: Mapping[str, pa.BinaryArray] | None
    """None: none of its records is wanted, or they are not read yet."""


def read_batches(
    reader: BatchReader,
    refs: Iterable[BatchRef],
    columns: Collection[str],
    wanted: Callable[[BatchHead], Sized],
    threads: int,
) -> Generator[ReadBatch, None, None]:
    """Yield batches in order. With one thread each is read as it is asked for, by the caller, and no bodies.

    Args:
        reader: Reads their files.
        refs: The batches; gone through by the caller.
        columns: Which bodies are needed.
        wanted: Returns the records of a batch whose bodies are; called by the threads.
        threads: How many read at once.

    Raises:
        LogCorrupted: As ``BatchReader.head``; so SegmentMissing.
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
            while waiting and (len(waiting) >= count or ahead + size > _AHEAD_BYTES):
                read_size, batch = waiting.popleft()
                ahead -= read_size
                yield batch.result()
            waiting.append((size, pool.submit(read, ref)))
            ahead += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _size(ref: BatchRef, columns: Collection[str]) -> int:
    lengths = zip(BODY_COLUMNS, ref.body_lengths, strict=True)
    return ref.head_length + sum(length for name, length in lengths if name in columns)


class RecordColumns(Protocol):
    """The columns that a batch's head and taken records share; columns of equal length."""

    @property
    def versions(self) -> NDArray[np.int64]:
        """Not falling."""

    @property
    def indexes(self) -> NDArray[np.int32]:
        """Places in the versions."""

    @property
    def operations(self) -> NDArray[np.uint8]:
        """Numbers of ``Operation``."""

    @property
    def primary_keys(self) -> pa.StringArray:
        """Null where there is none."""

    @property
    def changed(self) -> pa.Array:
        """Null if the changed columns are unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenRecords:
    """Some records with bodies."""

    versions: NDArray[np.int64]
    indexes: NDArray[np.int32]
    operations: NDArray[np.uint8]
    primary_keys: pa.StringArray
    changed: pa.BooleanArray
    """True or null: the names are left out, as each segment has other codes for them."""
    bodies: Mapping[str, pa.BinaryArray]

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def nbytes(self) -> int:
        """Bytes of the bodies."""
        return sum(body.nbytes for body in self.bodies.values())

    @classmethod
    def of(
        cls, columns: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> TakenRecords:
        """Take some records out of a batch, with the bodies that were read of it."""
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
        """Return those of several, at least one, in their order."""
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
