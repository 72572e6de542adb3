"""Answers that are streamed to a reader who may be slow, may stop, or may leave.

A chunk is written when the transport has room. One that had none for the send deadline cuts the connection, and
so does an error for which the format has no words: a cut body is seen by every client, while a body that merely
ended early would be taken for whole.
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
"""Key in the scope under which server/http.py hands in the connection that is answered."""


class StreamedAnswer(Guarded):
    """An ASGI response of chunks that are made while they are sent."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes | memoryview, None],
        sockets: Sockets,
        headers: dict[str, str],
        *,
        whole_bytes: int = 0,
        on_age: Callable[[], None] | None = None,
    ) -> None:
        """Keep what to send; ``chunks`` is closed whatever happens.

        Args:
            chunks: What is sent.
            sockets: All connections, with the guard of this one.
            headers: Of the answer.
            whole_bytes: Bytes of an answer that is whole already and kept until it is read.
            on_age: Ends chunks that would not end by themselves, when the connection has reached its age.
        """
        super().__init__()
        self._chunks = chunks
        self._sockets = sockets
        self._whole_bytes = whole_bytes
        self._on_age = on_age
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._connection: AnsweredConnection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the chunks end, the reader leaves or its deadline passes."""
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
            async with aclosing(self._chunks), asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(_until_gone(receive), name="watch reader")
                await self._send_all(send)
                watcher.cancel()
        except* ReaderGone as gone:
            forget_frames(gone)  # a task group's own frame keeps the error that it raises
        finally:
            guard.forget(self)
            self._sockets.answers.hold(holder, 0)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        try:
            async for chunk in self._chunks:
                await self._write(send, chunk, more=True)
                del chunk  # the next one may wait for its turn, which this one would delay
        except ReaderGone:
            raise
        except Exception as error:
            self._cut(logged(error, _log))
            raise ReaderGone from error
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, data: bytes | memoryview, *, more: bool) -> None:
        self.blocked_since = asyncio.get_running_loop().time()
        try:
            # A large chunk is many readers' own, and has gone only when the kernel has taken all of it.
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
        await asyncio.sleep(0)  # a fast reader would keep the loop to itself

    def _cut(self, error: TailraceError) -> None:
        _log.error("answer cut", error=str(error), code=error.code)
        self._sockets.count_error("http", error.code)
        self._abort()

    def _end_stream(self) -> None:
        seconds = self._sockets.guard.deadline_s
        self._end(TOO_SLOW, f"a chunk stayed unread for {seconds:g} s")

    def _drop(self) -> None:
        self._end(MEMORY, "a chunk stayed unread while others waited for its memory")

    def _end(self, guard: str, why: str) -> None:
        self._sockets.count(guard)
        _log.warning("subscriber too slow", error=str(SubscriberTooSlow(why)), guard=guard)
        self._abort()

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


async def made_for(request: Request, making: Awaitable[_T]) -> _T | None:
    """Return what is made for a reader who is there; None where he left before, which ends the making."""
    found: _T | None = None
    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(_until_gone(request.receive), name="watch reader")
            try:
                found = await making
            except Exception as error:  # it would leave the group as one of several
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
