"""Writes lines to stdout from the event loop without blocking it on a reader that is slow, as a pager is.

A pipe that polls as writable takes PIPE_BUF bytes without blocking (POSIX; 4,096 on Linux), so writes of
that size after a poll never wait, and what waits is an event, which Ctrl-C can cancel. Such a write goes out
whole or not at all, so it holds whole lines, where they are not longer. Switching the
pipe to non-blocking instead would switch it for every process that shares it. Files and terminals are
written to directly.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.cursor import Cursor
    from tailrace_server.cli.shown.forms import OutputForm

_PIPE_BUF: Final = select.PIPE_BUF
_STDOUT: Final = 1


class LineWriter:
    """Pieces of whole lines to a file descriptor, in order, each call complete before the next."""

    def __init__(self, descriptor: int = _STDOUT) -> None:
        """Write to a descriptor, which the caller closes."""
        self._descriptor = descriptor
        self.whole = 0
        """Pieces of the latest call that have gone out."""
        mode = os.fstat(descriptor).st_mode
        self._pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Write and flush. A cancelled call may have written some pieces; ``whole`` is their number.

        Raises:
            BrokenPipeError: The reader has gone.
        """
        self.whole = 0
        while self.whole < len(pieces):
            stop, size = self.whole + 1, len(pieces[self.whole])
            while stop < len(pieces) and (not self._pipe or size + len(pieces[stop]) <= _PIPE_BUF):
                size += len(pieces[stop])
                stop += 1
            await self._write(b"".join(pieces[self.whole : stop]))
            self.whole = stop

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._pipe:
                if not self._poll.poll(0):
                    await self._writable()
                written = os.write(self._descriptor, view[:_PIPE_BUF])
            else:
                written = os.write(self._descriptor, view)
            view = view[written:]

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._descriptor)


class Shown:
    """Captures on their way to stdout: the number that has gone out, and the cursor to resume from."""

    def __init__(self, form: OutputForm) -> None:
        """Show captures in a form."""
        self._form = form
        self._writer = LineWriter()
        self.count = 0
        self.cursor: Cursor | None = None
        """Cursor of the last capture written; the caller may set a later one."""

    async def captures(self, captures: Sequence[Capture]) -> None:
        """Write their lines; what a cancelled or failed call has written is counted.

        Raises:
            BrokenPipeError: The reader has gone.
        """
        pieces = self._form.captures(captures)
        try:
            await self._writer.write(pieces)
        finally:
            if whole := self._writer.whole:
                self.count += whole
                self.cursor = captures[whole - 1].cursor

    async def state_complete(self, mark: StateComplete) -> None:
        """Write its line."""
        await self._writer.write([self._form.state_complete(mark)])

    async def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write its line."""
        await self._writer.write([self._form.heartbeat(heartbeat)])
