"""Tickets: what an ``EventSource`` shows, which cannot send a header.

A ticket replaces the credential of the caller who requested it. It is accepted once, and only for half a
minute, so a copy in a proxy's log is worthless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import Unauthenticated
from tailrace_server.access.handles import Handles

if TYPE_CHECKING:
    from tailrace_server.grants.principal import Principal

_LIFETIME_S: Final = 30.0


class Tickets:
    """The tickets of a server that are not used yet."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting = Handles()

    expires_in_ms: Final = round(_LIFETIME_S * 1000)
    """How long a new one may wait for its use."""

    def issue(self, principal: Principal) -> str:
        """Return a new ticket; where too many wait, the oldest goes."""
        return self._waiting.make(principal, _LIFETIME_S)

    def redeem(self, ticket: str) -> Principal:
        """Return whose ticket it is, once.

        Raises:
            Unauthenticated: It was used, is over, or never was; or its owner is no longer let in.
        """
        principal = self._waiting.holder(ticket)
        self._waiting.forget(ticket)
        if principal is None:
            raise Unauthenticated(
                f"the ticket was used, or is older than {_LIFETIME_S:g} s; POST /v1/tickets gives another"
            )
        if (refusal := principal.refusal()) is not None:
            raise refusal
        return principal
