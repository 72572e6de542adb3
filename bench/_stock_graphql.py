"""The baseline of GraphQL: Strawberry's own ASGI application with our schema and resolvers, on uvicorn.

Arguments: log root, catalog. Prints a JSON line with its address once it listens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from strawberry.asgi import GraphQL

from bench._bare_starlette import serve
from tailrace import wire
from tailrace.v1.capture_fields_pb2 import SubscribeResponseParts
from tailrace_server.api.graphql.arguments import Scope, wish_of
from tailrace_server.api.graphql.resolvers import Context
from tailrace_server.api.graphql.schema import build
from tailrace_server.api.graphql.types import BODIES
from tailrace_server.api.settings import HttpSettings
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.capture import Capture


def subscribe_with(scope: Scope) -> Callable[..., AsyncIterator[Capture]]:
    """Return the resolver of a subscription field: captures, each executed by Strawberry."""

    async def subscribe(_: object, info: Any, **arguments: Any) -> AsyncIterator[Capture]:
        context: Context = info.context
        wish = wish_of(arguments, scope, frozenset(BODIES), criteria_max=1_000)
        subscription = await context.engine.subscribe(
            ANONYMOUS,
            context.catalog,
            wish.criteria,
            start=wish.start,
            content=wish.content,
            codec=PROTOBUF,
            limits=wish.limits,
        )
        uuid = subscription.acknowledgement.catalog_uuid
        try:
            while True:
                message = await subscription.receive()
                if isinstance(message, Frames):
                    response = SubscribeResponseParts.FromString(message.data)
                    for capture in wire.captures(response.captures, uuid):
                        yield capture
        finally:
            subscription.cancel()

    return subscribe


async def main(root: Path, catalog: str) -> None:
    """Serve until terminated."""
    async with Engine(root) as engine:
        view = await engine.view(ANONYMOUS, catalog)
        built = build(view.schema_of(view.published))
        assert built.core.subscription_type is not None
        for name, field in built.core.subscription_type.fields.items():
            field.subscribe = subscribe_with(built.scopes[name])

        class Application(GraphQL[Any, Any]):
            async def get_context(self, request: Any, response: Any) -> Any:
                """Return what our resolvers expect."""
                return Context(engine, HttpSettings(), catalog, built, ANONYMOUS)

        await serve(Application(built.strawberry))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2]))
