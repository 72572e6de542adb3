"""Refuses requests over HTTP that name the server by a host that is not one of its `hosts`.

Further names are allowed by the setting ``http_hosts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.websockets import WebSocket

from tailrace.errors import InvalidRequest
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_refusal
from tailrace_server.api.refusal_log import RefusalLog

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.api.websocket import Sockets
    from tailrace_server.hosts import Hosts

_STATUS: Final = 421


def with_hosts(application: ASGIApp, hosts: Hosts, sockets: Sockets) -> ASGIApp:
    """Refuse requests and handshakes that name another host, with status 421."""
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
            f"Host {foreign[:100]!r} is no name of this server; ask by its address, or allow the name with "
            "the setting http_hosts"
        )
        if scope["type"] == "websocket":
            await sockets.refuse(WebSocket(scope, receive, send), error, _STATUS)
            return
        sockets.count_error("http", error.code)
        response = Response(encoded_refusal(error, _STATUS), _STATUS, media_type=PROBLEM_TYPE)
        await response(scope, receive, send)

    return checked
