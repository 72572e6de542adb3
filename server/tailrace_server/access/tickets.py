"""Tickets and handles: random texts that replace a token for a while.

A handle replaces the credential of a caller where no token can be sent. The number of handles is bounded, in
total and for each caller: a caller that makes too many loses its own oldest one. A session of a page is a
handle.

A ticket is a handle for an ``EventSource``, which cannot send a header. It is accepted once, and only for half
a minute, so a copy in a proxy's log is worthless.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from tailrace.errors import Unauthenticated
from tailrace_server.access.identity import key_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tailrace_server.grants.principal import Principal


_IN_ALL: Final = 10_000
_OF_ONE: Final = 100


_LIFETIME_S: Final = 30.0


class Handles:
    """The handles of one kind. They live on the event loop and use its time."""

    def __init__(self) -> None:
        """Begin without handles."""
        self._held: dict[str, tuple[float, Principal]] = {}
        """Expiry, by the event loop's time, and caller of each handle; oldest first."""
        self._of: dict[Hashable, dict[str, None]] = {}
        """The handles of each caller, oldest first."""

    def __len__(self) -> int:
        """Return the number of handles, including expired ones that are not dropped yet."""
        return len(self._held)

    def make(self, principal: Principal, lifetime_s: float) -> str:
        """Return a new handle; drop the oldest one if there are too many."""
        now = asyncio.get_running_loop().time()
        # 1. The bound of each caller: one caller cannot displace the handles of others.
        own = self._of.setdefault(key_of(principal), {})
        if len(own) >= _OF_ONE:
            self.forget(next(iter(own)))
        # 2. Drop expired handles from the front, and the oldest ones while there are too many.
        while self._held:
            oldest, (over_at, _) = next(iter(self._held.items()))
            if over_at > now and len(self._held) < _IN_ALL:
                break
            self.forget(oldest)
        handle = secrets.token_urlsafe(24)
        self._held[handle] = now + lifetime_s, principal
        self._of.setdefault(key_of(principal), {})[handle] = None
        return handle

    def extend(self, handle: str, lifetime_s: float) -> None:
        """Set the expiry of an existing handle to some seconds from now."""
        # The handle moves to the end of both orders, or it would be dropped before handles that expire earlier.
        _, principal = self._held.pop(handle)
        self._held[handle] = asyncio.get_running_loop().time() + lifetime_s, principal
        own = self._of[key_of(principal)]
        own[handle] = own.pop(handle)

    def holder(self, handle: str) -> Principal | None:
        """Return the caller of a handle; None if it has expired or never existed."""
        over_at, principal = self._held.get(handle, (0.0, None))
        if principal is None or over_at > asyncio.get_running_loop().time():
            return principal
        self.forget(handle)
        return None

    def forget(self, handle: str) -> None:
        """Drop a handle. Idempotent."""
        _, principal = self._held.pop(handle, (0.0, None))
        if principal is None:
            return
        owner = key_of(principal)
        own = self._of[owner]
        del own[handle]
        if not own:
            del self._of[owner]


class Tickets:
    """The tickets of a server that are not used yet."""

    def __init__(self) -> None:
        """Begin without tickets."""
        self._waiting = Handles()

    expires_in_ms: Final = round(_LIFETIME_S * 1000)
    """Time in which a new ticket must be used, in milliseconds."""

    def issue(self, principal: Principal) -> str:
        """Return a new ticket; drop the oldest unused one if there are too many."""
        return self._waiting.make(principal, _LIFETIME_S)

    def redeem(self, ticket: str) -> Principal:
        """Return the caller of a ticket, and invalidate the ticket.

        Raises:
            Unauthenticated: The ticket was used, has expired or never existed, or its caller is no longer
                accepted.
            TokenExpired: The token of the caller has expired.
        """
        principal = self._waiting.holder(ticket)
        # Drop the ticket before any check: it is valid once, even if its caller is refused.
        self._waiting.forget(ticket)
        if principal is None:
            raise Unauthenticated(
                f"the ticket was already used, or is older than {_LIFETIME_S:g} s; get another with POST "
                "/v1/tickets"
            )
        if (refusal := principal.refusal()) is not None:
            raise refusal
        return principal
