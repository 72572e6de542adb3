"""The ways in which operations and their results travel.

::

    operations ──▶ websocket           graphql-transport-ws
        │     └──▶ reserved_streams    graphql-sse, many operations on one event stream
        │
    distinct_streams                   graphql-sse, an event stream for each operation
    legacy_websocket                   graphql-ws, which is refused in words that its clients show
"""
