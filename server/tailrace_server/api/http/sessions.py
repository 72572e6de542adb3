"""Sessions of pages in a browser: a cookie that replaces the token which a page has shown.

::

    POST    /v1/session    with a token: Set-Cookie, HttpOnly, SameSite=Strict, over TLS Secure
    GET     …/changes/live, …/graphql as an event stream: opened by the cookie
    DELETE  /v1/session    the session and its streams end

An ``EventSource`` sends no header, and asks again by itself with whatever it was opened with: a ticket, which
is used once, does not let it. A session does, for as long as the token lasts by which it was begun. A newer
token of the same caller renews it, and all event streams that it has opened.

A cookie opens event streams and ends its session, and does nothing else: whoever has a browser send it from
another site can neither read nor change anything by it. It is looked at only where the browser does not say
that it comes from another origin. So a page of another origin is refused a session: its cookie would never
count.

Sessions are kept in memory: after a restart of the server pages begin new ones.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tailrace.errors import Unauthenticated
from tailrace_server.access.door import Identified
from tailrace_server.access.identity import is_same
from tailrace_server.access.tickets import Handles

if TYPE_CHECKING:
    from starlette.types import Scope

    from tailrace_server.grants.principal import Principal

PATH: Final = "/v1/session"
_LIFETIME_S: Final = 43_200.0
"""Of a session whose caller's proof never ends, as an API key."""


class BrowserSessions:
    """The sessions of a server."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open = Handles()

    def begin(self, principal: Principal, earlier: str | None) -> tuple[str, float]:
        """Return the handle of a caller's session, and how many seconds it lasts.

        Args:
            principal: The caller who begins it, or continues it with a newer token.
            earlier: The handle of the session that the browser has; one of somebody else ends.
        """
        expires_at = principal.expires_at
        lifetime_s = _LIFETIME_S if expires_at is None else max(0.0, expires_at - time.time())
        held = None if earlier is None else self._open.holder(earlier)
        if earlier is not None and held is not None:
            if isinstance(held, Identified) and held.refusal() is None and is_same(held, principal):
                held.renew(principal)
                self._open.extend(earlier, lifetime_s)
                return earlier, lifetime_s
            self.end(earlier)
        return self._open.make(principal, lifetime_s), lifetime_s

    def holder(self, handle: str) -> Principal:
        """Return whose session it is.

        Raises:
            Unauthenticated: It is over or never was; or its owner is no longer let in.
            TokenExpired: The token is over by which it was begun.
        """
        principal = self._open.holder(handle)
        if principal is None:
            raise Unauthenticated("the session is over; POST /v1/session with a token begins one")
        if (refusal := principal.refusal()) is not None:
            raise refusal
        return principal

    def end(self, handle: str) -> None:
        """End a session, and the event streams that it has opened. Idempotent."""
        principal = self._open.holder(handle)
        self._open.forget(handle)
        if isinstance(principal, Identified):
            principal.leave()


def handle_of(scope: Scope) -> str | None:
    """Return the handle in the cookie of a request; None where there is none, or it does not count."""
    if scope["type"] != "http" or is_of_another_origin(scope):
        return None
    name = _name(scope)
    found = [
        value.strip()
        for header in _values(scope, b"cookie")
        for key, is_pair, value in (each.partition("=") for each in header.split(";"))
        if is_pair and key.strip() == name
    ]
    # Of two one is not ours: whoever can set a cookie for the name of this host has added it.
    return found[0] if len(found) == 1 else None


def cookie(scope: Scope, handle: str, lifetime_s: float) -> str:
    """Return the header by which a browser keeps a handle; a lifetime of 0 has it forget it."""
    secure = "; Secure" if _is_secure(scope) else ""
    return (
        f"{_name(scope)}={handle}; Max-Age={int(lifetime_s)}; Path=/; HttpOnly; "
        f"SameSite=Strict{secure}"
    )


def _name(scope: Scope) -> str:
    # A browser takes a cookie of this name from this host alone, and over TLS: not from its neighbours.
    return "__Host-tailrace" if _is_secure(scope) else "tailrace"


def _is_secure(scope: Scope) -> bool:
    return bool(scope.get("scheme") == "https")


def is_of_another_origin(scope: Scope) -> bool:
    """Return True if the browser says that a page of another origin sends a request."""
    site = _values(scope, b"sec-fetch-site")
    if any(each not in ("same-origin", "none") for each in site):
        return True
    own = [f"{scope.get('scheme')}://{host}" for host in _values(scope, b"host")]
    return any([each] != own for each in _values(scope, b"origin"))


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
