"""Batches of a log, read by several threads ahead of who goes through them, in the order that was asked for.

::

    batches    1   2   3   4   5   6 …
    threads    └ a ┘   │   └ b ┘         each takes the next one that nobody has
    given      1 ─ 2 ─ 3 …               waits for the next one, whoever reads it

What is read and not given yet is bounded, by batches and by bytes. A fault is raised where its batch is due, so
what comes before it is given, and whoever stops earlier does not meet it.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.wal.record.columns import BODY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sized
    from concurrent.futures import Future

    import pyarrow as pa

    from tailrace_server.wal.segment.reader import BatchHead, BatchReader
    from tailrace_server.wal.segment.refs import BatchRef

_THREADS_MAX: Final = 16
"""Threads of one reading, however many are asked for."""
_AHEAD_BYTES: Final = 32 << 20
"""Bytes that are read ahead at most, beside one batch."""


class ReadBatch(NamedTuple):
    """A batch with what was read of it."""

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
