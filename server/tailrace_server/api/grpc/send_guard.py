"""The send deadline: who leaves a message unread for too long is told so and let go.

C-core answers keepalive pings even while the application above does not read, and a client's window cannot be
shortened, so a stalled stream would live for ever. One timer looks after all streams: a stream notes when its
write began, which costs nothing a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio

from tailrace_server.api.send_guard import Guarded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from tailrace_server.api.send_guard import SendGuard


class SendDeadlineExceeded(Exception):
    """A write stayed blocked past the deadline; the message is still on its way."""


class ReaderGone(Exception):
    """The call has ended under the write: the client left, or its connection did."""


class GuardedSender(Guarded):
    """Writes the messages of one stream, one after the other, from one task."""

    __slots__ = ("_context", "_guard", "_task", "_time")

    def __init__(self, guard: SendGuard, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Bind to the current task, which is the one to be interrupted."""
        super().__init__()
        task = asyncio.current_task()
        assert task is not None
        self._guard = guard
        self._task = task
        self._time = asyncio.get_running_loop().time
        self._context = context

    def __enter__(self) -> GuardedSender:
        self._guard.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.forget(self)

    async def begin(self) -> None:
        """Send the headers, which no window holds back.

        grpc.aio would send them with the first message, and again with a status if that message is stuck: core
        refuses the second time, and the call would be left without any status.
        """
        await self._call(self._context.send_initial_metadata(()))

    def send(self, data: bytes) -> Coroutine[Any, Any, None]:
        """Write a message; to be awaited at once.

        Raises:
            SendDeadlineExceeded: It was not taken in time.
            ReaderGone: Nobody is there any more.
        """
        return self._call(self._context.write(data))

    async def _call(self, operation: Awaitable[None]) -> None:
        self.blocked_since = self._time()
        try:
            await operation
        except asyncio.CancelledError:
            if self.expired and self._task.uncancel() == 0:
                raise SendDeadlineExceeded from None
            raise
        except grpc.aio.InternalError as error:
            raise ReaderGone from error
        finally:
            self.blocked_since = None

    def _let_go(self) -> None:
        self._task.cancel()
