"""The GraphQL face: typed and untyped subscriptions over graphql-transport-ws, history and figures as queries.

::

    subscribe ─▶ document, parsed and validated once ─▶ selection, compiled once ─▶ codec ─▶ engine's frames
                                                              │ what it does not take
                                                              └─▶ Strawberry executes it event by event

The schema of a catalog's path is made from the schema of its log and follows it.
"""

from tailrace_server.api.graphql.routes import GraphqlFace

__all__ = ["GraphqlFace"]
