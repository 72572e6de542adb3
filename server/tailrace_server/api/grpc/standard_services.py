"""gRPC's health service and reflection, so that what a peer gets wrong is an answer and no traceback.

Their handlers decode requests inside grpc.aio: bytes that are no message, and methods that are left open, raise
there, and are logged with a traceback each time, where a peer decides how often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


def standard_services(health: object, names: Iterable[str]) -> Mapping[str, Mapping[str, Handler]]:
    """Return the handlers of both by method, by service.

    Args:
        health: The servicer of the health service.
        names: Services that the reflection lists besides itself.
    """
    found = _Services()
    health_pb2_grpc.add_HealthServicer_to_server(health, found)
    shown = ReflectionServicer((*names, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, found)
    return found


class _Services(dict[str, "dict[str, Handler]"]):
    """Takes the place of a server that handlers are added to."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Pass them over: the same come as registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Keep the handlers of a service."""
        self[service] = {name: _forgiving(handler) for name, handler in handlers.items()}


def _forgiving(handler: Any) -> Handler:
    """Return a handler that does the same for good requests, and answers bad ones."""
    if handler.stream_stream is not None:

        async def both(data: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
            async for answer in handler.stream_stream(_decoded(handler, data, context), context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(
            both, response_serializer=handler.response_serializer
        )

    async def one(data: bytes, context: Context) -> object:
        behaviour = handler.unary_unary or handler.unary_stream
        try:
            return await behaviour(await _decode(handler, data, context), context)
        except NotImplementedError:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server does not have it")

    make: Any = (
        grpc.unary_unary_rpc_method_handler
        if handler.unary_unary is not None
        else grpc.unary_stream_rpc_method_handler
    )
    made: Handler = make(one, response_serializer=handler.response_serializer)
    return made


async def _decoded(
    handler: Any, data: AsyncIterator[bytes], context: Context
) -> AsyncIterator[object]:
    async for each in data:
        yield await _decode(handler, each, context)


async def _decode(handler: Any, data: bytes, context: Context) -> object:
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
