"""One connection's way through the door, for connections that say who they are once, or again and again."""

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
    """The state of one connection: before the door, or inside under an identity."""

    def __init__(
        self, door: Door, credentials: Credentials, principal: Principal | None = None
    ) -> None:
        """Begin with the handshake's credentials; ``principal`` is the proven identity, None: none yet."""
        self._door = door
        # The token has been looked at, and is kept no longer.
        self._credentials = credentials.with_token(None)
        self._principal = principal
        self._taken: Taken | None = None

    @property
    def principal(self) -> Principal:
        """The identity that the connection has proven.

        Raises:
            Unauthenticated: There is no identity yet, or its key was removed since.
            TokenExpired: Its time is over; it may be renewed.
        """
        if self._principal is None:
            raise Unauthenticated(MISSING)
        if (refusal := self._principal.refusal()) is not None:
            raise refusal
        return self._principal

    def refusal(self) -> TailraceError | None:
        """Return why the proven caller is no longer let in; None while he is, or if there is none yet."""
        return None if self._principal is None else self._principal.refusal()

    def ticket(self) -> str:
        """Return a ticket by which the same caller may open one event stream.

        Raises:
            Unauthenticated, TokenExpired: As ``principal``.
        """
        return self._door.tickets.issue(self.principal)

    def take(self) -> None:
        """Count a request, and take a stream and its connection of quotas until ``leave``.

        Raises:
            QuotaExceeded: Whom it has proven, or its address, has no more.
        """
        self._door.quotas.request(self._principal, self._credentials.address)
        # A connection has one request at a time, and behind a proxy nothing else tells them apart.
        self._taken = self._door.quotas.take(
            self._principal, self._credentials.address, {"streams": 1, "connections": 1}
        )

    def leave(self) -> None:
        """Give back what was taken. Idempotent."""
        self._door.sockets.pop(self, None)
        if self._taken is not None:
            self._taken.give_back()
            self._taken = None

    def watch(self, close: Callable[[TailraceError], None]) -> None:
        """Have ``close`` called now and then while whom it has proven is no longer let in, until ``leave``."""
        self._door.sockets[self] = close

    async def admit(self, token: str | None) -> None:
        """Let a connection in by a token that came after its handshake, or renew what it has proven.

        None = by what its handshake showed.

        Raises:
            Unauthenticated, TokenExpired: The token proves nothing; what was proven before stays.
            NotPermitted: It proves somebody else.
            QuotaExceeded: Whom it proves has no more connections, streams or requests.
        """
        if token is None and self._principal is not None:
            return
        found = await self._door.admit(self._credentials.with_token(token))
        if isinstance(self._principal, Identified):
            self._principal.renew(found)
            return
        before, self._principal = self._principal, found
        if self._taken is not None:
            # So far it was charged to its address alone: nobody was known.
            self._taken.give_back()
            try:
                self.take()
            except QuotaExceeded:
                self._principal = before
                raise


def token_in(payload: object, where: str) -> str | None:
    """Return the token that a message's payload brings; None where it has none.

    Raises:
        InvalidRequest: It is no text; never shown.
    """
    token = payload.get("token") if isinstance(payload, dict) else None
    if not isinstance(token, str | None):
        raise InvalidRequest(f"{where}: token must be a text")
    return token
