"""Calls that complete: a range of history, the state of an entity type, and a statement in SQL.

Both are a header, messages of the engine as they are, and an end with the place where a further read continues.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import SubscriberTooSlow, TailraceError, again
from tailrace_server.api import requests, sql_requests
from tailrace_server.api.grpc import responses
from tailrace_server.api.grpc.guard import caller
from tailrace_server.api.grpc.send_guard import GuardedSender, SendDeadlineExceeded
from tailrace_server.api.many_keys import reading
from tailrace_server.api.peers import over_grpc
from tailrace_server.codecs import PROTOBUF, PROTOBUF_DECODED

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from tailrace.v1.change_capture_pb2 import ReadChangesRequest, ReadStateRequest
    from tailrace.v1.sql_pb2 import QuerySqlRequest
    from tailrace_server.api.send_guard import SendGuard
    from tailrace_server.codecs import Codec
    from tailrace_server.engine.engine import Engine
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.history import HistoryRead
    from tailrace_server.reads.log_read import LogRead
    from tailrace_server.reads.sql_read import SqlRead
    from tailrace_server.reads.state import StateRead

    Context = grpc.aio.ServicerContext[bytes, bytes]

_Read = TypeVar("_Read", bound="LogRead")


class ClosedReads:
    """Answers such calls of one service."""

    def __init__(
        self, engine: Engine, guard: SendGuard, disconnect: Callable[[str], object]
    ) -> None:
        """Read from an engine; the guard watches who does not take what is sent; such a one may be cut."""
        self._disconnect = disconnect
        self._engine = engine
        self._guard = guard

    async def changes(self, request: ReadChangesRequest, context: Context) -> None:
        """Send a closed range of history."""
        bytes_max = requests.max_message_bytes(request, self._engine.settings.max_message_bytes)
        engine = self._engine
        async with reading(engine.turns.many_keys, requests.history_criteria, request) as criteria:
            history = await engine.history(
                caller(),
                requests.catalog(request.catalog),
                criteria,
                bounds=requests.history_bounds(request),
                reverse=request.reverse,
                content=requests.content(request.body),
                codec=_codec(decoded=requests.decoded(request.values)),
                limit=requests.limit(request),
                max_message_bytes=bytes_max,
                peer=over_grpc(context.peer(), context.invocation_metadata()),
            )
        request.ClearField("criteria")
        header = responses.history_header(history, catalog=request.catalog)

        def end(read: HistoryRead, last: tuple[int, int, int] | None, count: int) -> bytes:
            cursor = requests.next_cursor(read, last, reverse=request.reverse)
            return responses.history_end(next_cursor=cursor, captures=count)

        with history:
            await self._send(history, header, partial(_fitting, bytes_max), end, context)

    async def state(self, request: ReadStateRequest, context: Context) -> None:
        """Send the rows of an entity type as of one version."""
        bytes_max = requests.max_message_bytes(request, self._engine.settings.max_message_bytes)
        read = await self._engine.state(
            caller(),
            requests.catalog(request.catalog),
            requests.state(request),
            codec=_codec(decoded=requests.decoded(request.values)),
            max_message_bytes=bytes_max,
            peer=over_grpc(context.peer(), context.invocation_metadata()),
        )
        request.ClearField("primary_key")
        header = responses.state_header(read, catalog=request.catalog)

        def end(read: StateRead, _: object, count: int) -> bytes:
            return responses.state_end(next_page=read.next_page(), rows=count)

        with read:
            await self._send(read, header, partial(_fitting, bytes_max), end, context)

    async def sql(self, request: QuerySqlRequest, context: Context) -> None:
        """Send the answer to a statement."""
        asked = sql_requests.asked(request)
        read = await self._engine.reads.sql(
            caller(),
            over_grpc(context.peer(), context.invocation_metadata()),
            requests.catalog(request.catalog),
            asked,
            max_message_bytes=requests.max_message_bytes(
                request, self._engine.settings.max_message_bytes
            ),
        )
        with read:
            header = responses.sql_header(read, catalog=request.catalog)

            def end(_: SqlRead, __: object, count: int) -> bytes:
                return responses.sql_end(rows=count)

            await self._send(read, header, partial(responses.sql_rows, asked.form), end, context)

    async def _send(
        self,
        read: _Read,
        header: bytes,
        message: Callable[[Frames], bytes],
        end: Callable[[_Read, tuple[int, int, int] | None, int], bytes],
        context: Context,
    ) -> None:
        try:
            with GuardedSender(self._guard, context) as sender:
                read.on_end = partial(on_end, sender)
                await sender.begin()
                await sender.send(header)
                count, last = 0, None
                async for frames in read:
                    count += frames.count
                    last = frames.last
                    data = message(frames)
                    await sender.send(data)
                    del frames, data  # the next message may have to wait for the room of this one
                await sender.send(end(read, last, count))
        except SendDeadlineExceeded:
            # As for a subscription: what is unread goes with its connection alone.
            if read.error is not None:
                self._disconnect(context.peer())
                raise again(read.error) from None
            raise


def _fitting(bytes_max: int, frames: Frames) -> bytes:
    """Return a message; one capture above the bound without its bodies."""
    if frames.count > 1 or len(frames.data) <= bytes_max:
        return frames.data
    return responses.without_bodies(frames.data)


def on_end(sender: GuardedSender, error: TailraceError) -> None:
    """Stop a write for which there is no memory; any other end waits for it to be read, or for its deadline."""
    if isinstance(error, SubscriberTooSlow):
        sender.interrupt()


def _codec(*, decoded: bool) -> Codec:
    return PROTOBUF_DECODED if decoded else PROTOBUF
