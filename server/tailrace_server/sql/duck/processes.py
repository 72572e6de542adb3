"""Child processes that compute statements for a server, so that a statement cannot take the server's memory.

One function call may build a value of a gigabyte, which DuckDB neither counts nor can interrupt. A child
process has a limit on all of its memory, and to interrupt a statement is to kill its process. The parent reads
the log, and sends batches over a pipe on request.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from tailrace.errors import ServerFull
from tailrace_server.sql.duck.databases import DatabaseGone
from tailrace_server.sql.duck.frames import FrameKind, batch_of, bytes_of, read_frame, write_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace_server.sql.duck.databases import Database

_CHILD: Final = "tailrace_server.sql.duck.child"
_IDLE_MAX: Final = 2
"""The most idle processes that are kept for reuse; each takes about 60 MiB."""
_PIPE_BYTES: Final = 1 << 20
"""Size of each pipe, if the system grants it: a batch then needs one turn of each side instead of ten."""
_ERRORS: Final = {
    name: kind
    for name, kind in vars(duckdb).items()
    if isinstance(kind, type) and issubclass(kind, duckdb.Error)
}


class DatabasesBeside:
    """Child processes: one for each running statement, and a few idle ones. Any thread may call this."""

    def __init__(self) -> None:
        """Start without processes."""
        self._lock = threading.Lock()
        self._idle: list[_DatabaseBeside] = []
        self._is_closed = False

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return an idle process, or a new one."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is None:
            found = _DatabaseBeside(self)
        found.bounds = memory_bytes, threads
        return found

    def put(self, database: _DatabaseBeside) -> None:
        """Keep an empty process for reuse, or end it if there are enough."""
        with self._lock:
            kept = not self._is_closed and len(self._idle) < _IDLE_MAX
            if kept:
                self._idle.append(database)
        if not kept:
            database.end()

    def close(self) -> None:
        """End the idle processes, and keep no more. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.end()


class _DatabaseBeside:
    def __init__(self, home: DatabasesBeside) -> None:
        self._home = home
        self._tables: dict[str, pa.RecordBatchReader] = {}
        self.bounds = (0, 1)
        """The bounds of the current statement: memory in bytes, and threads."""
        self._has_begun = False
        """True if the process has answered at least once."""
        self._process = self._started()

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        # Arrow's own allocators reserve a gigabyte of addresses, which RLIMIT_DATA would count as used.
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
        try:
            process = subprocess.Popen(
                (sys.executable, "-P", "-m", _CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal must reach only the server
            )
        except OSError as error:
            raise ServerFull(
                f"cannot start a process for the statement ({error.strerror}); try again"
            ) from None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            # Only Linux can do it, within a limit for all pipes of a user.
            with suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return process

    def begin(self) -> None:
        try:
            self._ready()
        except duckdb.Error:
            if not self._has_begun:
                raise
            # An idle process may have been killed by the kernel to free memory, or its answer to the last BACK
            # was an error. Replace it: the caller's statement is not to blame.
            self.end()
            self._has_begun = False
            self._process = self._started()
            self._ready()

    def _ready(self) -> None:
        self._ask(FrameKind.TAKE, self.bounds)
        self._answer()
        self._has_begun = True

    def register(self, alias: str, reader: pa.RecordBatchReader) -> None:
        self._tables[alias] = reader

    def computed(self, text: str, values: Mapping[str, object] | None) -> Any:
        self._ask(FrameKind.VALUE, (text, values))
        _, content = self._answer()
        with pa.ipc.open_stream(content) as stream:
            found = stream.read_all()
        with suppress(ValueError, OverflowError):  # of a time that no calendar has
            return found.column(0)[0].as_py() if len(found) else None
        return None

    def run(self, text: str, values: Mapping[str, object] | None) -> pa.RecordBatchReader:
        schemas = {alias: bytes(each.schema.serialize()) for alias, each in self._tables.items()}
        self._ask(FrameKind.RUN, (text, values, schemas))
        _, content = self._answer()
        schema = pa.ipc.read_schema(pa.py_buffer(content))
        return pa.RecordBatchReader.from_batches(schema, self._answers())

    def _answers(self) -> Iterator[pa.RecordBatch]:
        while True:
            self._ask(FrameKind.MORE)
            kind, content = self._answer()
            if kind is FrameKind.END:
                return
            batch = batch_of(content)
            if batch is not None:
                yield batch

    def _ask(self, kind: FrameKind, content: object = None) -> None:
        assert self._process.stdin is not None
        data = b"" if content is None else pickle.dumps(content)
        try:
            write_frame(self._process.stdin, kind, data)
        except OSError:
            raise self._gone() from None

    def _answer(self) -> tuple[FrameKind, bytes]:
        """Return the answer to the last request, and send the batches of tables that the process asks for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            while True:
                kind, content = read_frame(self._process.stdout)
                match kind:
                    # DuckDB needs rows before it can answer: read the log here, where it may be read.
                    case FrameKind.TABLE:
                        batch = next(self._tables[content.decode()], None)
                        if batch is None:
                            write_frame(self._process.stdin, FrameKind.END)
                        else:
                            write_frame(self._process.stdin, FrameKind.BATCH, bytes_of(batch))
                    case FrameKind.MEMORY:
                        raise duckdb.OutOfMemoryException
                    case FrameKind.FAILED:
                        name, _, text = content.decode(errors="replace").partition("\n")
                        raise _ERRORS.get(name, duckdb.Error)(text)
                    case _:
                        return kind, content
        except (EOFError, BrokenPipeError):
            raise self._gone() from None

    def _gone(self) -> duckdb.Error:
        """Return the error for a process that has ended.

        A process that exceeds its memory limit ends by an uncaught exception, in Python or below. A signal
        comes from elsewhere; SIGKILL may come from the kernel when the machine has no memory left.
        """
        status = self._process.wait()
        if self._has_begun and (status > 0 or status == -signal.SIGABRT):
            return duckdb.OutOfMemoryException(f"the process that computed it ended ({status})")
        why = f"by signal {-status}" if status < 0 else f"with status {status}"
        if status == -signal.SIGKILL:
            why += ", probably because the machine has no memory left"
        return DatabaseGone(f"the process of the statement was ended {why}")

    def interrupt(self) -> None:
        self._process.kill()

    def give_back(self, *, is_clean: bool) -> None:
        self._tables.clear()
        if not is_clean:
            self.end()
            return
        try:
            # Do not wait for an answer: no one could interrupt the wait. The next `begin` sees if BACK failed.
            self._ask(FrameKind.BACK)
        except duckdb.Error:
            self.end()
        else:
            self._home.put(self)

    def end(self) -> None:
        """Kill the process, and wait until it is gone. Idempotent."""
        process = self._process
        process.kill()
        for each in (process.stdin, process.stdout):
            assert each is not None
            with suppress(OSError):  # bytes in the buffer can no longer be written
                each.close()
        process.wait()
