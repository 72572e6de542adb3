"""The ways in which operations and their results travel.

::

    operations ──▶ websocket           graphql-transport-ws
    distinct_streams                   graphql-sse, an event stream for each operation
"""
