"""The program of a process that computes statements one after the other; `frames.py` has its messages.

A limit applies to all memory of the process, also to memory that DuckDB does not count. The process exits when
its parent is gone, even during a computation.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import duckdb
import pyarrow as pa

from tailrace_server.sql.duck.frames import FrameKind, batch_of, bytes_of, read_frame, write_frame
from tailrace_server.sql.duck.sandbox import LockedDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLACK_BYTES: Final = 128 << 20
"""Memory on top of a statement's limit: one batch of each table and of the answer, and the program itself."""
_SCORE: Final = "/proc/self/oom_score_adj"


class Child:
    """The work of the process, all in its main thread."""

    def __init__(self, asked: SimpleQueue[tuple[FrameKind, bytes]], answers: BinaryIO) -> None:
        """Take requests from a queue, and write answers to a stream."""
        self._asked = asked
        self._answers = answers
        self._database: LockedDatabase | None = None
        self._bounds: tuple[int, int] | None = None
        self._reader: pa.RecordBatchReader | None = None

    def serve(self) -> None:
        """Answer requests forever."""
        while True:
            try:
                answer = self._answered(*self._asked.get())
            except (duckdb.OutOfMemoryException, MemoryError):
                answer = FrameKind.MEMORY, b""
            except Exception as error:
                # Arrow wraps DuckDB's error about memory in a class of its own: only the text tells.
                out = "Out of Memory Error" in str(error) or "bad_alloc" in str(error)
                kind = type(error).__name__ if isinstance(error, duckdb.Error) else "Error"
                told = f"{kind}\n{error}".encode()
                answer = (FrameKind.MEMORY, b"") if out else (FrameKind.FAILED, told)
            if answer is not None:
                self._answer(*answer)

    def _answer(self, kind: FrameKind, content: bytes | memoryview = b"") -> None:
        write_frame(self._answers, kind, content)

    def _answered(
        self, kind: FrameKind, content: bytes
    ) -> tuple[FrameKind, bytes | memoryview] | None:
        match kind:
            case FrameKind.TAKE:
                self._take(*pickle.loads(content))
                return FrameKind.DONE, b""
            case FrameKind.VALUE:
                text, values = pickle.loads(content)
                found = self._ready.connection.sql(text, params=values).to_arrow_table()
                return FrameKind.BATCH, bytes_of(found.slice(0, 1))
            case FrameKind.RUN:
                return FrameKind.SCHEMA, self._run(*pickle.loads(content))
            case FrameKind.MORE:
                assert self._reader is not None
                with suppress(StopIteration):
                    return FrameKind.BATCH, bytes_of(self._reader.read_next_batch())
                return FrameKind.END, b""
            case _:
                self._reader = None
                self._ready.empty()
                return None

    @property
    def _ready(self) -> LockedDatabase:
        assert self._database is not None
        return self._database

    def _take(self, memory_bytes: int, threads: int) -> None:
        if self._bounds != (memory_bytes, threads):
            self._database = LockedDatabase(memory_bytes, threads)
            self._bounds = memory_bytes, threads
            with suppress(FileNotFoundError):  # Linux alone says how much there is already
                bound = _data_bytes() + memory_bytes + _SLACK_BYTES
                resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        self._ready.begin()

    def _run(self, text: str, values: dict[str, object] | None, tables: dict[str, bytes]) -> bytes:
        for alias, schema in tables.items():
            read = pa.ipc.read_schema(pa.py_buffer(schema))
            batches = self._batches_of(alias)
            self._ready.register(alias, pa.RecordBatchReader.from_batches(read, batches))
        self._reader = self._ready.run(text, values)
        return bytes(self._reader.schema.serialize())

    def _batches_of(self, alias: str) -> Iterator[pa.RecordBatch]:
        while True:
            # This runs inside DuckDB: the parent answers it before it expects the answer to its own request.
            self._answer(FrameKind.TABLE, alias.encode())
            kind, content = self._asked.get()
            if kind is FrameKind.END:
                return
            batch = batch_of(content)
            if batch is not None:
                yield batch


def _data_bytes() -> int:
    """Return the memory of the process that RLIMIT_DATA counts, in bytes."""
    with open("/proc/self/status") as status:
        found = next(line for line in status if line.startswith("VmData"))
    return int(found.split()[1]) << 10


def main() -> None:
    """Serve over stdin and stdout."""
    # If the machine runs out of memory, the kernel should kill this process first, not the writer of a log.
    with suppress(OSError), open(_SCORE, "w") as score:
        score.write("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the stream of answers
    asked: SimpleQueue[tuple[FrameKind, bytes]] = SimpleQueue()

    def read() -> None:
        with suppress(EOFError):
            while True:
                asked.put(read_frame(sys.stdin.buffer))
        os._exit(0)  # the parent is gone; do not wait for DuckDB, which may be computing

    # A thread of its own reads requests, so that the end of the parent is noticed during a computation.
    threading.Thread(target=read, daemon=True).start()
    served: Any = Child(asked, answers)
    with suppress(BrokenPipeError):
        served.serve()


if __name__ == "__main__":
    main()
