"""The send deadline over gRPC: a stream whose client leaves a message unread for too long ends with an error.

C-core answers keepalive pings even while the application above does not read, and a client's window cannot be
shortened. So a stalled stream would live for ever without a deadline of ours. The timer is `api.send_guard`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio

from tailrace_server.api.send_guard import Guarded, ReaderGone

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace_server.api.send_guard import SendGuard


class SendDeadlineExceeded(Exception):
    """A write stayed blocked past the deadline; the message is still on its way."""


class GuardedSender(Guarded):
    """Writes the messages of one stream, one after the other, from one task."""

    __slots__ = ("_context", "_guard", "_task", "_time", "_write")

    def __init__(self, guard: SendGuard, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Bind to the current task, which is the one to be interrupted."""
        super().__init__()
        task = asyncio.current_task()
        assert task is not None
        self._guard = guard
        self._task = task
        self._time = asyncio.get_running_loop().time
        self._context = context
        self._write = context.write

    def __enter__(self) -> GuardedSender:
        self._guard.watch(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say why a write did not end, once for all writes: nothing but that is left to do for each.

        Raises:
            SendDeadlineExceeded: It was not taken in time.
            ReaderGone: The client has gone.
        """
        self._guard.forget(self)
        if self.blocked_since is None:
            return
        self.blocked_since = None
        if isinstance(error, asyncio.CancelledError) and self.expired and not self._task.uncancel():
            raise SendDeadlineExceeded from None
        if isinstance(error, grpc.aio.InternalError):
            raise ReaderGone from error

    async def begin(self) -> None:
        """Send the headers, which no window holds back.

        grpc.aio would send them with the first message, and again with a status if that message is stuck: core
        refuses the second time, and the call would be left without any status.
        """
        self.blocked_since = self._time()
        await self._context.send_initial_metadata(())
        self.blocked_since = None

    async def send(self, data: bytes) -> None:
        """Write a message; what goes wrong leaves the sender's context by its name."""
        await self.write(data)
        self.rest()

    def write(self, data: bytes) -> Awaitable[None]:
        """Return the write of a message, to be awaited at once: the next one follows it, or ``rest``."""
        self.blocked_since = self._time()
        return self._write(data)

    def rest(self) -> None:
        """Note that no write is under way."""
        self.blocked_since = None

    def _end_stream(self) -> None:
        self._task.cancel()
