"""Subscriptions and queries over ``graphql-transport-ws``.

The sub-protocol's rules are kept by `api.websocket`; here a subscribe becomes an operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tailrace_server.api.graphql.catalog import Asked
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.graphql.transports.operations import Operations
from tailrace_server.api.websocket.admission import admit_at_init, renew
from tailrace_server.api.websocket.messages import malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.errors import TailraceError
    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.byte_budget import ByteBudget
    from tailrace_server.api.graphql.catalog import GraphqlCatalog
    from tailrace_server.api.websocket import SocketOperation
    from tailrace_server.grants.principal import Peer

SUBPROTOCOL: Final = "graphql-transport-ws"


class GraphqlSocketFace:
    """The face of one socket of a catalog."""

    takes_tokens = False

    def __init__(
        self, catalog: GraphqlCatalog, answers: ByteBudget, peer: Peer, entrance: Entrance
    ) -> None:
        """Bind a peer to a catalog; unread answers share a budget."""
        self.entrance = entrance
        self._operations = Operations(catalog, answers, peer, entrance)
        self.extra: Mapping[str, Callable[[SocketOperation, object], None]] = {}

    async def on_init(self, payload: object) -> object:
        """Let in who brings a token, now or in the handshake."""
        await admit_at_init(self.entrance, payload)
        return None

    async def renew(self, payload: object) -> None:
        """Let the socket stay by a newer token."""
        await renew(self.entrance, payload)

    def error_payload(self, error: TailraceError) -> object:
        """Return a list of GraphQL errors."""
        return error_list(error)

    def begin(self, operation: SocketOperation, payload: object) -> None:
        """Keep what is asked for; the document is looked at in ``run``, which may wait."""
        operation.state = asked_of(payload)

    async def run(self, operation: SocketOperation) -> None:
        """Serve one operation until it ends."""
        await self._operations.run(operation)


def asked_of(payload: Any) -> Asked:
    """Return what a subscribe asks for; members that are not known are passed over, as the protocol wants.

    Raises:
        Close: It is no message of the protocol.
    """
    query = payload.get("query")
    variables = payload.get("variables")
    name = payload.get("operationName")
    if not isinstance(query, str):
        raise malformed("subscribe: payload.query is a text")
    if not isinstance(variables, dict | None):
        raise malformed("subscribe: payload.variables is an object")
    if not isinstance(name, str | None):
        raise malformed("subscribe: payload.operationName is a text")
    if not isinstance(payload.get("extensions"), dict | None):
        raise malformed("subscribe: payload.extensions is an object")
    return Asked(query, variables or {}, name)
