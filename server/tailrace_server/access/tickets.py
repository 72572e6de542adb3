"""Tickets: what an ``EventSource`` shows, which cannot send a header.

A ticket stands for the caller who asked for it, is taken once, and only for half a minute: what remains of it
in logs of proxies opens nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from tailrace.errors import Unauthenticated

if TYPE_CHECKING:
    from tailrace_server.capture.principal import Principal

_LIFETIME_S: Final = 30.0
_TICKETS_MAX: Final = 10_000


class Tickets:
    """The tickets of a server that are not used yet."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: dict[str, tuple[float, Principal]] = {}
        """When each is over, by the loop's time, and whose it is; oldest first."""

    expires_in_ms: Final = round(_LIFETIME_S * 1000)
    """How long a new one may wait for its use."""

    def issue(self, principal: Principal) -> str:
        """Return a new ticket; where too many wait, the oldest goes."""
        now = asyncio.get_running_loop().time()
        while self._waiting:
            oldest, (over_at, _) = next(iter(self._waiting.items()))
            if over_at > now and len(self._waiting) < _TICKETS_MAX:
                break
            del self._waiting[oldest]
        ticket = secrets.token_urlsafe(24)
        self._waiting[ticket] = now + _LIFETIME_S, principal
        return ticket

    def redeem(self, ticket: str) -> Principal:
        """Return whose ticket it is, once.

        Raises:
            Unauthenticated: It was used, is over, or never was; or its owner is no longer let in.
        """
        over_at, principal = self._waiting.pop(ticket, (0.0, None))
        if principal is None or over_at <= asyncio.get_running_loop().time():
            raise Unauthenticated(
                f"the ticket was used, or is older than {_LIFETIME_S:g} s; POST /v1/tickets gives another"
            )
        if (refusal := principal.refusal()) is not None:
            raise refusal
        return principal
