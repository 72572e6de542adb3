"""The baseline of GraphQL: Strawberry's own ASGI application with our schema and resolvers, on uvicorn.

Arguments: log root, catalog. Prints a JSON line with its address once it listens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvloop
from strawberry.asgi import GraphQL

from bench._bare_starlette import serve
from tailrace_server.api.graphql.context import Context
from tailrace_server.api.graphql.schema import build
from tailrace_server.api.settings import HttpSettings
from tailrace_server.capture.engine import Engine


async def main(root: Path, catalog: str) -> None:
    """Serve until terminated."""
    async with Engine(root) as engine:
        built = build(await engine.schema(catalog))

        class Application(GraphQL[Any, Any]):
            async def get_context(self, request: Any, response: Any) -> Any:
                """Return what our resolvers expect."""
                return Context(engine, HttpSettings(), catalog, built)

        await serve(Application(built.strawberry))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2]))
