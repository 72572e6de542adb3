"""A gRPC proxy that repeats messages and hands them on in another order, as the world may."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from tailrace.transport.grpc import SERVICE

if TYPE_CHECKING:
    from types import TracebackType


class ManglingProxy:
    """Passes ``Subscribe`` on, window by window: each message once to three times, shuffled."""

    def __init__(self, target: str, *, seed: int, window: int = 8) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._window = window
        self.port = 0
        self.sent = 0
        """Messages handed on."""
        self.cut = False
        """Set it to have every call fail at its next window, once."""

    async def __aenter__(self) -> Self:
        self._channels = [grpc.aio.insecure_channel(self._target)]
        self._server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(self._subscribe)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Subscribe": handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._server.stop(0)
        for channel in self._channels:
            await channel.close(None)

    def turn_to(self, target: str) -> None:
        """Cut the calls at their next window, and have those to come go to another server."""
        self._channels.append(grpc.aio.insecure_channel(target))
        self.cut = True

    async def _subscribe(self, request: bytes, context: Any) -> None:
        call = self._channels[-1].unary_stream(f"/{SERVICE}/Subscribe", None, None)(request)
        try:
            await self._mangle(call, context)
        except grpc.aio.AioRpcError as error:  # the server's own end is handed on as it is
            trailers = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", trailers)

    async def _mangle(self, call: Any, context: Any) -> None:
        window: list[bytes] = []
        while isinstance(message := await call.read(), bytes):
            window.append(message)
            if len(window) < self._window:
                continue
            mangled = [each for each in window for _ in range(self._random.randint(1, 3))]
            self._random.shuffle(mangled)
            window.clear()
            if self.cut:
                self.cut = False
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            for each in mangled:
                await context.write(each)
                self.sent += 1
