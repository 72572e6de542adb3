r"""The listener of gRPC: a grpc.aio server that survives any path that a call names, and a probe of it.

grpc.aio has one loop for the calls of all methods. It decodes the path of a call to a method that is not
registered as UTF-8, outside any ``try`` (``AioServer._server_main_loop``, grpcio 1.85.1). So one HEADERS frame
with the path ``/x\x92`` ends the loop, core closes the listener, and no call is accepted any more, while open
streams continue. Calls to registered methods come with the name they were registered by, and decode nothing.

So every method of the services is registered, and this server answers all other calls itself, before the loop
sees them: they get the same answer whatever their path is. Interceptors and generic handlers run after the
decoding, too late. docs/adr/0050 has the alternatives.

The probe makes one call to our own listener over a plain socket, without grpc's client, so that it shares only
the wire with the server. The call is ``grpc.health.v1.Health/Check`` with an empty message. Any answer is a
success::

    preface  SETTINGS  HEADERS(stream 1)  DATA(stream 1, end)   ─▶
                                   ◀─   …  HEADERS(stream 1)  …

Over TLS the same frames are sent inside. If clients must show a certificate, which the probe does not have, a
TLS handshake is a success.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # the stubs leave it out

from tailrace_server import failpoints
from tailrace_server.api.transport_security.self_probe import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.units import Address

    Handlers = Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]


_UNKNOWN: Final = "no such method; see proto/tailrace/v1, or use this server's reflection"

_PEERS_FAULT: Final = (
    "Invalid encoding on",
    "ExecuteBatchError raised in core by servicer method",
)
"""Beginnings of log messages with a traceback that grpc.aio writes for faults of a peer alone."""

_log = structlog.get_logger("tailrace.grpc")


_HEADERS: Final = 1
_SETTINGS: Final = 4
_END_HEADERS: Final = 4
_END_STREAM: Final = 1
_STREAM: Final = struct.pack(">I", 1)


class _CoreServer(cygrpc.AioServer):  # type: ignore[misc]  # it has no types
    """Core's server as grpc.aio uses it, except that it answers calls to unregistered methods itself."""

    on_crash: Callable[[BaseException], None]
    """Called once if the loop has ended with an error; the listener is still open then."""
    on_call: Callable[[str], None]
    """Called with the peer of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Tasks that wait for a call or refuse one."""

    async def _request_registered_call(self, method: bytes) -> Any:
        """Return the next call of a method.

        The request to core must not be cancelled: core would write the call into memory that is freed by then.
        So a shielded task waits for it. grpc.aio cancels this method when its loop ends with an error.
        """
        call = await asyncio.shield(self._own(super()._request_registered_call(method)))
        self.on_call(cygrpc._ServicerContext(call, None, None, None).peer())
        return call

    async def _request_call(self) -> Any:
        """Refuse calls to methods that are not registered, one after the other; never return.

        grpc.aio awaits this method as it awaits the next call of each registered method.
        """
        loop = asyncio.get_running_loop()
        while True:
            call = await asyncio.shield(self._own(super()._request_call()))
            failpoints.reach("grpc.unknown_method")
            self._own(_refuse(cygrpc._ServicerContext(call, None, None, loop)))

    def _own(self, awaited: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(awaited)
        # The event loop has only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: at a stop no other code awaits the task

    def let_go(self) -> None:
        """Drop the references that form cycles with this object."""
        self.on_crash = lambda error: None
        for task in self._tasks:
            task.cancel()

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        """Call ``on_crash``. grpc.aio would shut the server down, in a task that fails and is never awaited."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_crash(error)


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    with suppress(grpc.aio.AbortError, grpc.aio.InternalError):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _UNKNOWN)


def _is_ours_to_know(record: logging.LogRecord) -> bool:
    """Return False for tracebacks with which a peer could fill the log.

    These are a header field that is not UTF-8, which grpc.aio then reads as Latin-1, and a peer that has left
    before its answer.
    """
    return not str(record.msg).startswith(_PEERS_FAULT)


def accepting_server(
    options: Sequence[tuple[str, Any]],
    services: Mapping[str, Handlers],
    on_crash: Callable[[grpc.aio.Server, BaseException], None],
    on_call: Callable[[str], None],
) -> grpc.aio.Server:
    """Return a server with all methods registered, not started yet.

    Args:
        options: The options of core.
        services: For each service, its handlers by method.
        on_crash: Called with the server if the loop that accepts calls has ended with an error. Open streams
            continue, but new calls get no answer until the server is stopped.
        on_call: Called with the peer of each call to a registered method, before its handler.
    """
    logging.getLogger(cygrpc.__name__).addFilter(_is_ours_to_know)
    # grpc.aio has no option for the class of the server, so replace the class while the server is made. If a
    # version of grpcio no longer reads the class here, calls are accepted as grpc.aio does, and the error
    # below is logged.
    plain = cygrpc.AioServer
    cygrpc.AioServer = _CoreServer
    try:
        server = grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = plain
    core = getattr(server, "_server", None)
    if isinstance(core, _CoreServer):
        core.on_crash = partial(on_crash, server)
        core.on_call = on_call
    else:
        _log.error("one call with a bad path can stop gRPC here", grpcio=grpc.__version__)
    for service, handlers in services.items():
        server.add_registered_method_handlers(service, dict(handlers))  # type: ignore[attr-defined]  # newer
    return server


def forget(server: grpc.aio.Server) -> None:
    """Break the reference cycles of a stopped server: its callbacks and awaited calls refer to it."""
    core = getattr(server, "_server", None)
    if isinstance(core, _CoreServer):
        core.let_go()


async def knock(address: Address, tls: TlsFiles | None = None) -> None:
    """Make a call and return once an answer has begun.

    Raises:
        OSError: Nothing listens, or the connection ended without an answer.
    """
    async with opened(address, tls, "h2") as streams:
        if streams is None:
            return
        reader, writer = streams
        writer.write(_call(str(address), "http" if tls is None else "https"))
        try:
            # Skip settings, window updates and pings; headers on our stream are the answer.
            while await _frame(reader) != (_HEADERS, _STREAM):
                pass
        except EOFError as error:
            raise OSError("the connection ended without an answer") from error


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the next frame, and return its type and stream id."""
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[5:]


def _call(authority: str, scheme: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": scheme,
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Literal fields without index and without Huffman coding: RFC 7541, 6.2.2.
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _framed(_SETTINGS, 0, bytes(4), b"")
        + _framed(_HEADERS, _END_HEADERS, _STREAM, block)
        + _framed(0, _END_STREAM, _STREAM, bytes(5))
    )


def _framed(kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream + payload


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
