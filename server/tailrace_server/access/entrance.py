"""The authentication of one connection: at its handshake, by a later message, or by a newer token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, QuotaExceeded, Unauthenticated
from tailrace_server.access.door import MISSING, Identified

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.errors import TailraceError
    from tailrace_server.access.door import Door
    from tailrace_server.access.identity import Credentials
    from tailrace_server.access.quotas import Taken
    from tailrace_server.grants.principal import Principal


class Entrance:
    """The authentication state of one connection: not yet authenticated, or admitted under an identity."""

    def __init__(
        self, door: Door, credentials: Credentials, principal: Principal | None = None
    ) -> None:
        """Begin with the handshake's credentials; ``principal`` is the proven identity, None = none yet."""
        self._door = door
        # The token of the handshake was checked before; it is not stored.
        self._credentials = credentials.with_token(None)
        self._principal = principal
        self._taken: Taken | None = None

    @property
    def principal(self) -> Principal:
        """The identity that the connection has proven.

        Raises:
            Unauthenticated: The connection has proven no identity yet, or the key of its identity was removed.
            TokenExpired: The token has expired; a newer token may renew the identity.
        """
        if self._principal is None:
            raise Unauthenticated(MISSING)
        if (refusal := self._principal.refusal()) is not None:
            raise refusal
        return self._principal

    def refusal(self) -> TailraceError | None:
        """Return the error for a caller who is no longer accepted; None for any other, or without a caller."""
        return None if self._principal is None else self._principal.refusal()

    def ticket(self) -> str:
        """Return a ticket by which the same caller may open one event stream.

        Raises:
            Unauthenticated, TokenExpired: As ``principal``.
        """
        return self._door.tickets.issue(self.principal)

    def take(self) -> None:
        """Charge a request to the quotas, and a stream and a connection until ``leave``.

        Raises:
            QuotaExceeded: The quota of the caller, or of its address, is used up.
        """
        self._door.quotas.request(self._principal, self._credentials.address)
        # A connection has one request at a time; behind a proxy, connections can only be counted by requests.
        self._taken = self._door.quotas.take(
            self._principal, self._credentials.address, {"streams": 1, "connections": 1}
        )

    def leave(self) -> None:
        """Give the stream and the connection back to the quotas, and stop watching. Idempotent."""
        self._door.sockets.pop(self, None)
        if self._taken is not None:
            self._taken.give_back()
            self._taken = None

    def watch(self, close: Callable[[TailraceError], None]) -> None:
        """Have ``close`` called repeatedly while the caller is no longer accepted, until ``leave``."""
        self._door.sockets[self] = close

    async def admit(self, token: str | None) -> None:
        """Admit a connection by a token that came after its handshake, or renew its identity by a newer token.

        Without a token, the credentials of the handshake are used.

        Raises:
            Unauthenticated, TokenExpired: The token is not accepted; an earlier identity stays.
            NotPermitted: The token proves another identity.
            QuotaExceeded: The caller's quota of connections, streams or requests is used up.
        """
        if token is None and self._principal is not None:
            return
        found = await self._door.admit(self._credentials.with_token(token))
        if isinstance(self._principal, Identified):
            self._principal.renew(found)
            return
        # The new principal must be set for ``take``, which charges it; it is reset if its quota is used up.
        before, self._principal = self._principal, found
        if self._taken is not None:
            # So far the connection was charged to its address alone: the caller was unknown.
            self._taken.give_back()
            try:
                self.take()
            except QuotaExceeded:
                self._principal = before
                raise


def token_in(payload: object, where: str) -> str | None:
    """Return the token in a message's payload; None if there is none.

    Raises:
        InvalidRequest: The token is not a text; the error never contains it.
    """
    token = payload.get("token") if isinstance(payload, dict) else None
    if not isinstance(token, str | None):
        raise InvalidRequest(f"{where}: token must be a text")
    return token
