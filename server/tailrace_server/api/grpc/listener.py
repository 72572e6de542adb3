r"""The listener of gRPC: a grpc.aio server that accepts whatever path a call names, and a probe of it.

grpc.aio has one loop for the calls of all methods. It decodes the path of a call to a method that is not
registered as UTF-8, outside any ``try`` (``AioServer._server_main_loop``, grpcio 1.85.1). So one HEADERS frame
with the path ``/x\x92`` ends the loop, core closes the listener, and no call is accepted any more, while open
streams continue. Calls to registered methods come with the name they were registered by, and decode nothing.

So every method of ours is registered, and this server answers all other calls itself, before the loop sees
them: they have the same answer whatever their path is. Interceptors and generic handlers come after the
decoding, too late. docs/adr/0050 has what else was weighed.

The probe is one call to our own listener over a bare socket, as any client would make it, without grpc's
client: so it shares only the wire with the server. The call is ``grpc.health.v1.Health/Check`` with an empty
message. Only whether it is answered matters::

    preface  SETTINGS  HEADERS(stream 1)  DATA(stream 1, end)   ─▶
                                   ◀─   …  HEADERS(stream 1)  …

Over TLS the same is said inside. If clients must show a certificate, which we do not have, the handshake is the
answer.
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


_UNKNOWN: Final = "no such method; see proto/tailrace/v1, or ask this server's reflection"

_PEERS_FAULT: Final = (
    "Invalid encoding on",
    "ExecuteBatchError raised in core by servicer method",
)
"""How what grpc.aio logs with a traceback begins, where a peer alone is to blame."""

_log = structlog.get_logger("tailrace.grpc")


_HEADERS: Final = 1
_SETTINGS: Final = 4
_END_HEADERS: Final = 4
_END_STREAM: Final = 1
_STREAM: Final = struct.pack(">I", 1)


class _CoreServer(cygrpc.AioServer):  # type: ignore[misc]  # it has no types
    """Core's server as grpc.aio drives it, but for the calls whose method nobody has registered."""

    on_crash: Callable[[BaseException], None]
    """Called once if the loop has ended by an error; the listener is still open."""
    on_call: Callable[[str], None]
    """Called with the peer of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Calls that are awaited or being refused."""

    async def _request_registered_call(self, method: bytes) -> Any:
        """Return the next call of a method.

        What grpc.aio's own has asked for stays asked for when it is cancelled: core writes the call to memory
        that would be freed by then. It is cancelled where the loop ends by an error.
        """
        call = await asyncio.shield(self._own(super()._request_registered_call(method)))
        self.on_call(cygrpc._ServicerContext(call, None, None, None).peer())
        return call

    async def _request_call(self) -> Any:
        """Answer calls to methods that are not registered, one after the other; never returns one.

        grpc.aio waits for this in the same way as for the next call of each registered method.
        """
        loop = asyncio.get_running_loop()
        while True:
            call = await asyncio.shield(self._own(super()._request_call()))
            failpoints.reach("grpc.unknown_method")
            self._own(_refuse(cygrpc._ServicerContext(call, None, None, loop)))

    def _own(self, awaited: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(awaited)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it has it as well; at a stop nobody does

    def let_go(self) -> None:
        """Hold nothing that holds this object."""
        self.on_crash = lambda error: None
        for task in self._tasks:
            task.cancel()

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        """Tell of it. grpc.aio would shut the server down in a task that fails and that nobody awaits."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_crash(error)


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    with suppress(grpc.aio.AbortError, grpc.aio.InternalError):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _UNKNOWN)


def _is_ours_to_know(record: logging.LogRecord) -> bool:
    """Return False for the tracebacks that a peer could fill the log with.

    A header field that is no UTF-8: grpc.aio reads it as Latin-1 then, and we never do. A peer that has left
    before its answer.
    """
    return not str(record.msg).startswith(_PEERS_FAULT)


def accepting_server(
    options: Sequence[tuple[str, Any]],
    services: Mapping[str, Handlers],
    on_crash: Callable[[grpc.aio.Server, BaseException], None],
    on_call: Callable[[str], None],
) -> grpc.aio.Server:
    """Return a server that has not been started, with all of its methods registered.

    Args:
        options: Of core.
        services: Handlers by method, by service.
        on_crash: Called with the server if the loop that accepts calls has ended by an error. Open streams go
            on, and newcomers wait in vain until the server is stopped.
        on_call: Called with the peer of each call to one of the methods, before its handler.
    """
    logging.getLogger(cygrpc.__name__).addFilter(_is_ours_to_know)
    # grpc.aio has no way to name the class, and its arguments change from one version to the next. If a version
    # no longer takes it from here, calls are accepted as grpc.aio does, and the line below says so.
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
    """Let go of a server that has stopped: what it calls at a crash, and the calls that it awaited, hold it."""
    core = getattr(server, "_server", None)
    if isinstance(core, _CoreServer):
        core.let_go()


async def knock(address: Address, tls: TlsFiles | None = None) -> None:
    """Make a call and return once an answer has begun.

    Raises:
        OSError: Nothing listens, or the connection was ended without an answer.
    """
    async with opened(address, tls, "h2") as streams:
        if streams is None:
            return
        reader, writer = streams
        writer.write(_call(str(address), "http" if tls is None else "https"))
        try:
            while await _frame(reader) != (_HEADERS, _STREAM):
                pass
        except EOFError as error:
            raise OSError("the connection ended without an answer") from error


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return type and stream of the next frame, which is read whole."""
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
