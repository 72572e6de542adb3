"""The guard of the gRPC listener: it authenticates calls before their handlers, and ends a call with an error.

Every method of a service is guarded, without code of its own. Only gRPC's health service answers without a
credential. `abort` is the only way in which a call ends with an error of this server.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2

from tailrace.errors import TailraceError, forget_frames
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.identity import Credentials, bearer_token
from tailrace_server.access.quotas import Quotas, Taken
from tailrace_server.api.errors import grpc_status, logged
from tailrace_server.api.peers import GRPC, grpc_address, over_grpc
from tailrace_server.api.transport_security.certificate_names import names_over_grpc
from tailrace_server.api.transport_security.proxies import NO_PROXIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tailrace_server.access.door import Door
    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.grants.principal import Peer, Principal

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    OnError = Callable[[str], None]


_ABORT_S: Final = 5.0
"""Seconds for which a handler waits until its status is sent. The status waits after unread messages, and
remains with the connection when the handler returns."""

_log = structlog.get_logger("tailrace.grpc")


_PUBLIC: Final = frozenset({health_pb2.DESCRIPTOR.services_by_name["Health"].full_name})

_entrance: ContextVar[Entrance] = ContextVar("tailrace.entrance")


async def abort(error: TailraceError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """End a call with an error.

    The status is sent after the messages that the client has not read. So a stalled client receives it when it
    reads again; the handler does not wait that long.
    """
    code, text, trailer = grpc_status(logged(error, _log))
    try:
        async with asyncio.timeout(_ABORT_S):
            await context.abort(code, text, trailer)
    except grpc.aio.AbortError as aborted:
        # grpc.aio stores this exception with the call, and raises it again after the handler has returned. Its
        # frames refer to the call and to everything that the handler held: a cycle that would retain all of it.
        forget_frames(aborted)
    except (TimeoutError, grpc.aio.InternalError):
        # The status is unread, or the client is gone. In both cases the handler has nothing left to do.
        return


def caller() -> Principal:
    """Return the authenticated caller of the call that this task, or its parent task, serves."""
    return _entrance.get().principal


def entrance() -> Entrance:
    """Return the authentication state of the call that this task serves."""
    return _entrance.get()


def credentials_of(context: Context, proxies: TrustedProxies = NO_PROXIES) -> Credentials:
    """Return the credentials of a call; ``proxies`` are trusted to report the client behind them.

    Raises:
        Unauthenticated: The call has two credentials, or a malformed one.
    """
    metadata = context.invocation_metadata() or ()
    values = [
        value if isinstance(value, str) else value.decode("latin-1")
        for name, value in metadata
        if name == "authorization"
    ]
    address, _ = grpc_address(context.peer(), metadata, proxies)
    return Credentials(bearer_token(values), names_over_grpc(context), address, GRPC)


def peer_of(context: Context, proxies: TrustedProxies) -> Peer:
    """Return the client of a call; behind a trusted proxy, the client that the proxy reports."""
    return over_grpc(context.peer(), context.invocation_metadata(), proxies)


def guarded(
    services: Mapping[str, Mapping[str, Handler]],
    door: Door,
    on_error: OnError,
    proxies: TrustedProxies = NO_PROXIES,
) -> dict[str, Mapping[str, Handler]]:
    """Return services whose handlers run only for callers that the door admits.

    Args:
        services: For each service, its handlers by method.
        door: The authentication of callers.
        on_error: Called with the machine code of each refusal.
        proxies: The proxies that are trusted to report the client behind them.
    """
    return {
        service: handlers
        if service in _PUBLIC
        else {
            name: _guarded(handler, door, on_error, proxies) for name, handler in handlers.items()
        }
        for service, handlers in services.items()
    }


def _guarded(handler: Any, door: Door, on_error: OnError, proxies: TrustedProxies) -> Handler:
    """Return a handler that serves admitted callers, and ends the calls of all others with an error."""
    # grpc.aio distinguishes handlers by their signature: a coroutine that returns its answer, an async
    # generator, or a coroutine that writes. So each needs a wrapper of the same form.
    made: Handler
    forms = {"request_deserializer": handler.request_deserializer}
    forms["response_serializer"] = handler.response_serializer

    async def admitted(context: Context) -> Taken | None:
        found = await _admit(door, context, proxies)
        if isinstance(found, Taken):
            return found
        on_error(found.code)
        await abort(found, context)
        return None

    if not handler.response_streaming:
        behaviour = handler.stream_unary or handler.unary_unary

        async def one(request: Any, context: Context) -> object:
            if (taken := await admitted(context)) is None:
                return b""
            with taken:
                return await behaviour(request, context)

        make: Any = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        made = make(one, **forms)
        return made

    behaviour = handler.stream_stream or handler.unary_stream
    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.request_streaming
        else grpc.unary_stream_rpc_method_handler
    )
    if isasyncgenfunction(behaviour):

        async def answers(request: Any, context: Context) -> AsyncIterator[object]:
            if (taken := await admitted(context)) is None:
                return
            with taken:
                async for answer in behaviour(request, context):
                    yield answer

        made = make(answers, **forms)
        return made

    async def writes(request: Any, context: Context) -> None:
        if (taken := await admitted(context)) is None:
            return
        with taken:
            await behaviour(request, context)

    made = make(writes, **forms)
    return made


async def _admit(door: Door, context: Context, proxies: TrustedProxies) -> Taken | TailraceError:
    """Admit a call and set its caller for the handler; return its quotas, or the error of a refusal."""
    try:
        credentials = Credentials() if door.is_open else credentials_of(context, proxies)
        found = await door.admit(credentials)
        taken = _taken(door.quotas, found, context, proxies)
    except TailraceError as error:
        return error
    _entrance.set(Entrance(door, credentials, found))
    return taken


def _taken(quotas: Quotas, caller: Principal, context: Context, proxies: TrustedProxies) -> Taken:
    """Count a call, and charge a stream and its connection to the quotas until the call has ended.

    Raises:
        QuotaExceeded: A quota of the caller or of its address is used up.
    """
    address = credentials_of(context, proxies).address if quotas.is_on else ""
    quotas.request(caller, address)
    return quotas.take(caller, address, {"streams": 1}, {"connections": context.peer()})
