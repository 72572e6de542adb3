"""Follow products over GraphQL, typed by the catalog's schema, with gql.

python examples/python/graphql_gql.py shop --server 127.0.0.1:7412
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import suppress

from gql import Client, GraphQLRequest
from gql.transport.exceptions import TransportError, TransportQueryError
from gql.transport.websockets import WebsocketsTransport

QUERY = """
subscription Products($sinceVersion: Long, $after: String) {
  onProductChange(sinceVersion: $sinceVersion, after: $after) {
    version index cursor operation primaryKey
    after { id name price }
    omittedBytes
  }
}
"""


async def follow(server: str, catalog: str) -> None:
    """Print changes until Ctrl-C; a lost server is waited for."""
    url = f"ws://{server}/v1/catalogs/{catalog}/graphql"
    start: dict[str, object] = {"sinceVersion": 0}
    while True:
        try:
            # A row may be larger than the 1 MiB that websockets takes by default.
            transport = WebsocketsTransport(url, connect_args={"max_size": 8 << 20})
            async with Client(transport=transport):
                query = GraphQLRequest(QUERY, variable_values=start)
                # Of the transport: the session's `subscribe` ends at a value that cannot be shown.
                async for result in transport.subscribe(query):
                    assert result.data is not None
                    show(**result.data["onProductChange"])
                    # Whoever comes back goes on exactly here.
                    start = {"after": result.data["onProductChange"]["cursor"]}
        except TransportQueryError as error:
            if not (error.errors and error.errors[0]["extensions"]["retriable"]):
                raise SystemExit(error.errors[0]["message"] if error.errors else error) from None
        except (TransportError, OSError) as error:
            print(repr(error), file=sys.stderr)
        await asyncio.sleep(1)


def show(
    *,
    version: int,
    index: int,
    operation: str,
    primaryKey: str,
    after: object = None,
    omittedBytes: int = 0,
    **_: object,
) -> None:
    """Print a change; the names are those of its JSON."""
    image = json.dumps(after, ensure_ascii=False, separators=(",", ":"))
    if omittedBytes:  # a row above maxMessageBytes, 4 MiB unless we ask for another bound
        image = f"({omittedBytes} bytes left out)"
    print(f"{version}:{index} {operation} {primaryKey} {image}", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Follow products over GraphQL.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--server", default="127.0.0.1:7412")
    with suppress(KeyboardInterrupt):
        asyncio.run(follow(**vars(arguments.parse_args())))
