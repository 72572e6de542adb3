"""Middleware of the HTTP listener: host names, cache headers, and proxies.

- A request with an unknown name in ``Host`` is refused (`hosts`); the setting ``http_hosts`` allows further
names.
- An answer must not be stored, unless it has a ``Cache-Control`` of its own.
- Behind trusted proxies, and below a path of a proxy, a request is restored to the form in which its client
sent it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response
from starlette.websockets import WebSocket

from tailrace.errors import InvalidRequest
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_refusal
from tailrace_server.api.transport_security.proxies import client_of
from tailrace_server.api.websocket.sockets import RefusalLog

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.hosts import Hosts


_STATUS: Final = 421


_NAME: Final = b"cache-control"
_NO_STORE: Final = (_NAME, b"no-store")


_SCHEMES: Final = {"http": ("http", "ws"), "https": ("https", "wss")}
"""Scheme that the proxy's client used → scheme of a request, and of a WebSocket."""


def with_hosts(application: ASGIApp, hosts: Hosts, sockets: Sockets) -> ASGIApp:
    """Refuse requests and handshakes whose ``Host`` is unknown, with status 421."""
    log = RefusalLog("host")

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        foreign = next(
            (
                host
                for name, value in scope["headers"]
                if name == b"host" and not hosts.has(host := value.decode("latin-1"))
            ),
            None,
        )
        if foreign is None:
            await application(scope, receive, send)
            return
        log.tell(foreign, setting="http_hosts")
        sockets.count("host")
        error = InvalidRequest(
            f"Host {foreign[:100]!r} is not a name of this server; use its address, or allow the name "
            "with the setting http_hosts"
        )
        if scope["type"] == "websocket":
            await sockets.refuse(WebSocket(scope, receive, send), error, _STATUS)
            return
        sockets.count_error("http", error.code)
        response = Response(encoded_refusal(error, _STATUS), _STATUS, media_type=PROBLEM_TYPE)
        await response(scope, receive, send)

    return checked


def with_no_store(application: ASGIApp) -> ASGIApp:
    """Forbid browsers and proxies to store an answer that has no ``Cache-Control`` of its own.

    Otherwise they may store even some refusals, and return them to another caller.
    """

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        async def first(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                if all(name.lower() != _NAME for name, _ in headers):
                    message = {**message, "headers": [*headers, _NO_STORE]}
            await send(message)

        await application(scope, receive, first if scope["type"] == "http" else send)

    return told


def with_proxies(application: ASGIApp, trusted: TrustedProxies, root_path: str) -> ASGIApp:
    """Restore a request to the form in which its client sent it: address, scheme, host, and path.

    A proxy may remove ``root_path`` or leave it: the application sees the same paths in both cases.
    """
    if not trusted and not root_path:
        return application
    below = f"{root_path}/"

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        if root_path and scope["path"] == root_path and scope["type"] == "http":
            # The links of the page are relative, so they need the slash at the end of its path.
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
