"""A channel over gRPC's blocking calls, each in a thread, for event loops that come and go.

grpc.aio has one queue for all event loops of a process. Once one of them is closed, its events disturb the
others. So a client whose loop ends before that of its program uses this channel.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc.experimental import ChannelOptions

from tailrace.transport.grpc import GrpcTransport

if TYPE_CHECKING:
    from collections.abc import Callable


class BlockingTransport(GrpcTransport):
    """The transport over a channel of blocking calls; it has no calls with many requests."""

    def _new_channel(self, credentials: grpc.ChannelCredentials | None) -> Any:
        # The thread that waits for a message reads it, so that calls need no thread of their own.
        options = (*self._options, (ChannelOptions.SingleThreadedUnaryStream, 1))
        if credentials is None:
            return _Channel(grpc.insecure_channel(self._target.name, options))
        return _Channel(grpc.secure_channel(self._target.name, credentials, options))


class _Channel:
    """The part of the interface of `grpc.aio.Channel` that the transport uses."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_stream(self, method: str, *_: None) -> Callable[..., _Call]:
        begin = self._channel.unary_stream(method, None, None)
        return lambda request, metadata: _Call(begin(request, metadata=metadata))

    def unary_unary(self, method: str, *_: None) -> Callable[..., Any]:
        begin = self._channel.unary_unary(method, None, None)

        async def call(request: bytes, **more: Any) -> Any:
            return await asyncio.to_thread(_raising, lambda: begin(request, **more))

        return call

    async def close(self, _: None) -> None:
        await asyncio.to_thread(self._channel.close)


class _Call:
    """The part of the interface of a call of grpc.aio that the transport uses."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> Any:
        return await asyncio.to_thread(_raising, lambda: next(self._call, None))

    def cancel(self) -> None:
        self._call.cancel()


def _raising(call: Callable[[], Any]) -> Any:
    """Return the result of a call; a failure becomes the error that grpc.aio raises."""
    try:
        return call()
    except grpc.RpcError as error:
        failed: Any = error
        trailers = grpc.aio.Metadata(*map(tuple, failed.trailing_metadata() or ()))
        given: tuple[Any, ...] = (failed.code(), grpc.aio.Metadata(), trailers, failed.details())
        raise grpc.aio.AioRpcError(*given) from error
