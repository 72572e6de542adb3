"""Streamed responses to a reader that may be slow, stop reading, or disconnect.

A chunk is written when the transport has room. If a chunk has no room for the whole send deadline, the
connection is cut. It is also cut after an error that the format cannot express: every client notices a cut
body, but would take a body that just ends early for complete.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from tailrace.errors import SubscriberTooSlow, forget_frames
from tailrace_server.api.byte_budget import UnreadAnswer
from tailrace_server.api.errors import logged
from tailrace_server.api.send_guard import (
    MEMORY,
    ON_ITS_WAY_BYTES,
    TOO_SLOW,
    Guarded,
    ReaderGone,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from tailrace.errors import TailraceError
    from tailrace_server.api.http.protocol import AnsweredConnection
    from tailrace_server.api.websocket import Sockets

_log = structlog.get_logger("tailrace.rest")
_T = TypeVar("_T")

CONNECTION: Final = "tailrace.connection"
"""Key in the ASGI scope; its value is the `AnsweredConnection`, set by server/http.py."""


CHUNK_SIZE: Final = 64 << 10
"""Size in bytes of the pieces of a large body."""


async def in_chunks(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces, so that the send deadline applies to each piece."""
    for start in range(0, len(body), CHUNK_SIZE):
        yield body[start : start + CHUNK_SIZE]


class StreamedAnswer(Guarded):
    """An ASGI response whose chunks are produced while it is sent."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes | memoryview, None],
        sockets: Sockets,
        headers: dict[str, str],
        *,
        whole_bytes: int = 0,
        on_age: Callable[[], None] | None = None,
    ) -> None:
        """Store the parts of the response; sending it always closes ``chunks``.

        Args:
            chunks: The body.
            sockets: All connections of the server, with their send guard and budgets.
            headers: The header fields.
            whole_bytes: Size of a body that is already complete in memory until it is read; 0 for a stream.
            on_age: Function that ends endless chunks when the connection reaches its age.
        """
        super().__init__()
        self._chunks = chunks
        self._sockets = sockets
        self._whole_bytes = whole_bytes
        self._on_age = on_age
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._connection: AnsweredConnection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the chunks end, the reader disconnects, or the send deadline passes."""
        self._connection = scope.get(CONNECTION)
        if self._connection is not None:
            self._connection.begin()
            if self._on_age is not None:
                self._connection.at_age(self._on_age)
        guard = self._sockets.guard
        guard.watch(self)
        holder = UnreadAnswer(self.interrupt)
        self._sockets.answers.hold(holder, self._whole_bytes)
        try:
            # The watcher raises `ReaderGone` when the peer disconnects, also while the next chunk is awaited.
            async with aclosing(self._chunks), asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(_until_gone(receive), name="watch reader")
                await self._send_all(send)
                watcher.cancel()
        except* ReaderGone as gone:
            # The frame of the task group refers to the error that it raises: break the cycle.
            forget_frames(gone)
        finally:
            guard.forget(self)
            self._sockets.answers.hold(holder, 0)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        try:
            async for chunk in self._chunks:
                await self._write(send, chunk, more=True)
                # Free the chunk before waiting: the next chunk may wait for memory that this one holds.
                del chunk
        except ReaderGone:
            raise
        except Exception as error:
            self._cut(logged(error, _log))
            raise ReaderGone from error
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, data: bytes | memoryview, *, more: bool) -> None:
        self.blocked_since = asyncio.get_running_loop().time()
        try:
            # A large chunk may be shared by many readers: write it uncopied, and return only when the kernel
            # has taken all of it.
            if len(data) > ON_ITS_WAY_BYTES and more and self._connection is not None:
                await self._connection.write_uncopied(data)
            else:
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except OSError as error:
            raise ReaderGone from error
        finally:
            self.blocked_since = None
        if self.expired:
            raise ReaderGone
        # Yield: with a fast reader nothing above waits, and it would monopolise the event loop.
        await asyncio.sleep(0)

    def _cut(self, error: TailraceError) -> None:
        _log.error("answer cut", error=str(error), code=error.code)
        self._sockets.count_error("http", error.code)
        self._abort()

    def _end_stream(self) -> None:
        seconds = self._sockets.guard.deadline_s
        self._end(TOO_SLOW, f"a chunk stayed unread for {seconds:g} s")

    def _drop(self) -> None:
        self._end(MEMORY, "a chunk stayed unread while other answers waited for its memory")

    def _end(self, guard: str, why: str) -> None:
        self._sockets.count(guard)
        _log.warning("subscriber too slow", error=str(SubscriberTooSlow(why)), guard=guard)
        self._abort()

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


async def made_for(request: Request, making: Awaitable[_T]) -> _T | None:
    """Await ``making`` and return its result; if the reader disconnects first, cancel it and return None."""
    found: _T | None = None
    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(_until_gone(request.receive), name="watch reader")
            try:
                found = await making
            except Exception as error:  # The task group would wrap it in an exception group.
                failed = error
            watcher.cancel()
    except* ReaderGone as gone:
        forget_frames(gone)
    if failed is not None:
        raise failed
    return found


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ReaderGone
