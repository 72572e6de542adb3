"""Requests as their clients sent them, behind proxies that are trusted and below a path of a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from tailrace_server.api.transport_security.proxies import client_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.api.transport_security.proxies import TrustedProxies

_SCHEMES: Final = {"http": ("http", "ws"), "https": ("https", "wss")}
"""The scheme that a proxy was called with → the scheme of a request, and of a WebSocket."""


def with_proxies(application: ASGIApp, trusted: TrustedProxies, root_path: str) -> ASGIApp:
    """Show a request as its client sent it: its address, scheme and host, and the path below ``root_path``.

    A proxy may take that path away, or leave it: what is served has the same paths below it and without it.
    """
    if not trusted and not root_path:
        return application
    below = f"{root_path}/"

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        if root_path and scope["path"] == root_path and scope["type"] == "http":
            # The page there links relatively: below the path, not beside it.
            await RedirectResponse(below, 308)(scope, receive, send)
            return
        if root_path and scope["path"].startswith(below):
            scope["path"] = scope["path"][len(root_path) :]
            scope["raw_path"] = scope["path"].encode()
        peer = scope.get("client")
        found = client_of(peer[0], scope["headers"], trusted) if peer else None
        if found is not None:
            if found.address is not None:
                scope["client"] = (found.address, found.port)
            if found.proto is not None:
                scope["scheme"] = _SCHEMES[found.proto][scope["type"] == "websocket"]
            if found.host is not None:
                others = [each for each in scope["headers"] if each[0] != b"host"]
                scope["headers"] = [(b"host", found.host.encode()), *others]
        await application(scope, receive, send)

    return seen
