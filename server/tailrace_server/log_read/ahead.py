"""Several iterators of batches, read by threads and yielded one after another, with a bounded look-ahead.

::

    parts      1   2   3   4   5 …
    threads    └ a ┘   └ b ┘            each fills the buffer of one part at a time
    yielded    1 ─ 1 ─ 2 ─ 2 ─ 3 …      part by part, while later buffers fill

A full buffer stops its thread until the part's turn. An error is raised in the place of its part.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

_BUFFER_BYTES: Final = 32 << 20
"""A buffer that holds as many bytes takes no further batch."""


def read_ahead(
    parts: Sequence[Callable[[], Iterator[pa.RecordBatch]]], threads: int, *, in_order: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of all parts.

    Args:
        parts: Functions that return the batches of a part; each is called once, in a thread.
        threads: Number of threads; with one, the caller's thread reads.
        in_order: True to yield part by part; False to yield each batch as soon as it is read.
    """
    if threads < 2 or len(parts) < 2:
        for part in parts:
            yield from part()
        return
    pool = ThreadPoolExecutor(threads, "read")
    filling: deque[_Buffer] = deque()
    try:
        if not in_order:
            filling.append(_Buffer(len(parts)))
            for part in parts:
                pool.submit(filling[0].fill, part)
            yield from filling[0].batches()
            return
        for part in parts:
            buffer = _Buffer(1)
            filling.append(buffer)
            pool.submit(buffer.fill, part)
            if len(filling) > threads:
                yield from filling[0].batches()
                filling.popleft()
        while filling:
            yield from filling[0].batches()
            filling.popleft()
    finally:
        # The caller may stop early: wake the threads that wait for room, so that they end.
        for buffer in filling:
            buffer.stop()
        pool.shutdown(cancel_futures=True)


class _Buffer:
    """The batches of some parts between the threads that read them and the one that yields them."""

    def __init__(self, parts: int) -> None:
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._parts = parts
        """Number of parts that are not read to their end; an error ends all."""
        self._is_stopped = False
        self._error: BaseException | None = None

    def fill(self, part: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """Read a part, and wait whenever the buffer is full."""
        try:
            for batch in part():
                with self._changed:
                    self._changed.wait_for(self._has_room)
                    if self._is_stopped:
                        return
                    self._batches.append(batch)
                    self._bytes += batch.nbytes
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._parts -= 1
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._bytes < _BUFFER_BYTES or self._is_stopped

    def _is_over(self) -> bool:
        return not self._parts or self._error is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the part, and raise its error after them."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._is_over())
                if not self._batches:
                    break
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread that fills the buffer at its next batch."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
