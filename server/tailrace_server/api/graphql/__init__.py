"""The GraphQL face: subscriptions over WebSocket and event streams; history, tables and figures as queries.

::

    subscribe ─▶ document, parsed and validated once ─▶ selection, compiled once ─▶ codec ─▶ engine's frames

    query ─────▶ document, parsed and validated once ─▶ graphql-core executes it with Strawberry's resolvers

The GraphQL schema of a catalog is generated from the schema of its log, and again whenever that changes.
"""

from tailrace_server.api.graphql.routes import GraphqlFace

__all__ = ["GraphqlFace"]
