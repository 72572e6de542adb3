"""The door: from credentials to a principal, or an error that says what was wrong with them.

::

    face ──Credentials──▶ Door.admit ──▶ the authenticators, one by one ──▶ Identity ──▶ principal
                              │                                                              │
                              └── no authenticator configured: ANONYMOUS                     ▼
                                                                          engine.subscribe(principal, …)

A principal is asked again and again while its stream is open: it expires, and its key may be removed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.errors import NotPermitted, TailraceError, TokenExpired, Unauthenticated
from tailrace_server.access.audit.audit import Audit
from tailrace_server.access.tickets import Tickets
from tailrace_server.capture.delivery.peer import Peer
from tailrace_server.capture.grant import READ_ALL
from tailrace_server.capture.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.access.credentials import Credentials
    from tailrace_server.access.identity import Identity
    from tailrace_server.capture.grant import Grant
    from tailrace_server.capture.principal import Principal

MISSING: Final = (
    "no credential came, and this server asks for one: send `authorization: Bearer TOKEN`"
)


class Authenticator(Protocol):
    """One way to prove who somebody is."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return who it is; None where the credentials are of another kind.

        Raises:
            Unauthenticated: They are of this kind, and prove nothing; says why, never what came.
            TokenExpired: They would, and their time is over.
        """

    def accepts(self, identity: Identity) -> bool:
        """Return whether an identity that it has found would be found again: its key is still there."""


class Identified:
    """The principal of a verified identity, which a newer token of the same sender may renew."""

    def __init__(self, identity: Identity, authenticator: Authenticator) -> None:
        """Keep who it is and who says so."""
        self.identity = identity
        self._authenticator = authenticator

    @property
    def name(self) -> str:
        """Who it is, for people to read."""
        return str(self.identity)

    @property
    def expires_at(self) -> float | None:
        """When its token expires, in seconds since 1970; None: never."""
        return self.identity.expires_at

    def grant(self, catalog: str) -> Grant | None:
        """Return all of the catalog, to read: without a policy, whoever is identified may have that."""
        return READ_ALL

    def refusal(self) -> TailraceError | None:
        """Return why nothing of it may go on; None while it may."""
        expires_at = self.identity.expires_at
        if expires_at is not None and time.time() >= expires_at:
            return TokenExpired("the token has expired")
        if not self._authenticator.accepts(self.identity):
            return Unauthenticated(f"the key of {self.name} is no longer accepted")
        return None

    def renew(self, other: Principal) -> None:
        """Go on with what another principal has proven, if that is the same somebody.

        Raises:
            NotPermitted: It is somebody else.
        """
        if not isinstance(other, Identified) or not self.identity.is_same(other.identity):
            raise NotPermitted(
                "the new token is of somebody else than the one that the stream was opened with"
            )
        self.identity = other.identity
        self._authenticator = other._authenticator


class Door:
    """Lets callers in. One for all faces of a server."""

    def __init__(
        self, authenticators: Sequence[Authenticator] = (), audit: Audit | None = None
    ) -> None:
        """Ask these, in this order; none = everybody is anonymous. Who comes in, or not, is recorded."""
        self._authenticators = tuple(authenticators)
        self.tickets = Tickets()
        self._audit = audit or Audit()

    @property
    def is_open(self) -> bool:
        """Whether no identity is asked for, so that everybody who reaches the server is let in."""
        return not self._authenticators

    async def admit(self, credentials: Credentials) -> Principal:
        """Return whom the credentials prove.

        Raises:
            Unauthenticated: Nobody: there are none, or they are wrong.
            TokenExpired: They were right once.
        """
        if self.is_open:
            return ANONYMOUS
        peer = Peer(credentials.transport, credentials.address)
        try:
            found = await self._identified(credentials)
        except TailraceError as error:
            self._audit.refused(error, peer)
            raise
        self._audit.authenticated(found, peer)
        return found

    def redeem(self, ticket: str, credentials: Credentials) -> Principal:
        """Return who made a ticket, which is used up by it.

        Raises:
            Unauthenticated: There is no such ticket, or no more.
        """
        peer = Peer(credentials.transport, credentials.address)
        try:
            found = self.tickets.redeem(ticket)
        except TailraceError as error:
            self._audit.refused(error, peer)
            raise
        self._audit.authenticated(found, peer)
        return found

    async def _identified(self, credentials: Credentials) -> Identified:
        for each in self._authenticators:
            identity = await each.identify(credentials)
            if identity is not None:
                return Identified(identity, each)
        if credentials.token is None:
            raise Unauthenticated(MISSING)
        raise Unauthenticated("the token is neither a JWT of a known issuer nor an API key")
