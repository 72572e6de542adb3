"""Writes lines to stdout from the event loop without blocking it on a reader that is slow, as a pager is.

A pipe that polls as writable takes PIPE_BUF bytes without blocking (POSIX; 4,096 on Linux), so writes of
that size after a poll never wait, and what waits is an event, which Ctrl-C can cancel. Switching the
pipe to non-blocking instead would switch it for every process that shares it. Files and terminals are
written to directly.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from typing import Final

_PIPE_BUF: Final = select.PIPE_BUF
_STDOUT: Final = 1


class LineWriter:
    """Whole lines to a file descriptor, in order, each call complete before the next."""

    def __init__(self, descriptor: int = _STDOUT) -> None:
        """Write to a descriptor that stays somebody else's to close."""
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        self._pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write and flush; a cancelled call may have written a part.

        Raises:
            BrokenPipeError: The reader has gone.
        """
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
