"""Asks everybody who they are before any route is looked at: the one place for the whole HTTP listener.

::

    request ──▶ credentials? ──▶ Door.admit ──▶ Entrance in the scope ──▶ routes: `caller_of(request)`
                    │                │
                    │                └── refused: 401, a Problem Details object
                    └── none, and the path is public: the caller is NOBODY, who may read nothing

A new route is guarded without having to know of it. What is public is public by its exact path, and has a
caller who may read nothing, so that a path which leads elsewhere than it seems gives nothing away. A WebSocket
may be opened without a credential, since browsers cannot send one with the handshake: its `connection_init`
has to bring it, and until then its caller is nobody.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.websockets import WebSocket

from tailrace.errors import QuotaExceeded, TailraceError, Unauthenticated
from tailrace_server.access.credentials import Credentials
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.headers import bearer_token
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status, retry_after
from tailrace_server.api.http.event_stream_answers import EVENTS_TYPE, later
from tailrace_server.api.transport_security.certificate_names import names_over_http
from tailrace_server.capture.principal import NOBODY

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.access.door import Door
    from tailrace_server.access.quotas.quotas import Quotas, Taken
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.capture.principal import Principal

_ENTRANCE: Final = "tailrace.entrance"
"""Key in the scope under which a request or a WebSocket has its entrance."""

_PUBLIC: Final = re.compile(r"/|/page/[^/]+|/health|/v1/docs(?:/[^/]+)?|/v1/graphiql/[^/]+")
"""Paths that need no credential: whether the server is well, and the files of its pages."""
_STREAMS: Final = ("/changes/live", "/graphql")
"""How paths end at which there are event streams."""
_PAGE: Final = re.compile(r"/v1/(?:catalogs/[^/]+|system)/graphql")
"""Paths at which a browser is given a page that has nothing of a catalog, and clients are given data."""


def caller_of(connection: HTTPConnection) -> Principal:
    """Return whom a request has proven to be from."""
    return entrance_of(connection).principal


def entrance_of(connection: HTTPConnection) -> Entrance:
    """Return how far a request or a WebSocket has come."""
    found: Entrance = connection.scope[_ENTRANCE]
    return found


def with_door(application: ASGIApp, door: Door, sockets: Sockets) -> ASGIApp:
    """Let in who proves who they are, and refuse the others with status 401."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        credentials = Credentials()
        principal: Principal | None = door.anonymous
        try:
            if not door.is_open:
                credentials = _credentials_of(scope)
                ticket = _take_ticket(scope) if credentials.token is None else None
                shows_any = credentials.token is not None or credentials.certificate_names
                if ticket is not None:
                    principal = door.redeem(ticket, credentials)
                elif shows_any or not (is_socket or _is_public(scope)):
                    principal = await door.admit(credentials)
                else:
                    principal = None if is_socket else NOBODY
        except TailraceError as error:
            if is_socket and not _has_field(scope):
                principal = (
                    None  # a browser's handshake has no header of its own: its init has to say
                )
            elif is_socket or not _is_public(scope):
                await _refuse(error, sockets, scope, receive, send)
                return
            else:
                principal = NOBODY
        scope[_ENTRANCE] = Entrance(door, credentials, principal)
        if not door.quotas.is_on or (not is_socket and _is_public(scope)):
            await application(scope, receive, send)
            return
        try:
            taken = _taken(door.quotas, principal, scope)
        except QuotaExceeded as error:
            await _refuse(error, sockets, scope, receive, send)
            return
        with taken:
            await application(scope, receive, send)

    return guarded


def _taken(quotas: Quotas, caller: Principal | None, scope: Scope) -> Taken:
    """Count a request, and take a stream and its connection until it is answered.

    Raises:
        QuotaExceeded: The caller, or its address, has no more.
    """
    client = scope.get("client")
    address = client[0] if client else ""
    quotas.request(caller, address)
    # A connection has one request at a time, and behind a proxy nothing else tells them apart.
    return quotas.take(caller, address, {"streams": 1, "connections": 1})


def _credentials_of(scope: Scope) -> Credentials:
    values = [
        value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"
    ]
    client = scope.get("client")
    address = client[0] if client else ""
    return Credentials(bearer_token(values), names_over_http(scope), address, scope["type"])


def _take_ticket(scope: Scope) -> str | None:
    """Take the ticket out of the URL of a request that may be an event stream's; None where there is none."""
    if (
        scope["type"] != "http"
        or scope["method"] != "GET"
        or b"ticket=" not in scope["query_string"]
    ):
        return None
    if not scope["path"].endswith(_STREAMS):
        return None
    pairs: list[bytes] = scope["query_string"].split(b"&")
    tickets = [each for each in pairs if each.startswith(b"ticket=")]
    scope["query_string"] = b"&".join(each for each in pairs if each not in tickets)
    if len(tickets) != 1:
        raise Unauthenticated("two tickets came; send one")
    return tickets[0].removeprefix(b"ticket=").decode("latin-1")


def _has_field(scope: Scope) -> bool:
    return any(name == b"authorization" for name, _ in scope["headers"])


def _is_public(scope: Scope) -> bool:
    """Return whether a request may be answered without a credential."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    path = scope["path"]
    if _PUBLIC.fullmatch(path):
        return True
    return _PAGE.fullmatch(path) is not None and _opens_page(scope)


def _is_event_source(scope: Scope) -> bool:
    """Return whether a request asks for a stream of events as a browser's ``EventSource`` does."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return EVENTS_TYPE.encode() in accept


def _opens_page(scope: Scope) -> bool:
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    wanted: bytes = accept.partition(b",")[0].partition(b";")[0].strip().lower()
    return wanted == b"text/html"


async def _refuse(
    error: TailraceError, sockets: Sockets, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer with an error of the one table.

    In a function of its own: a frame that an error has passed through may not keep it.
    """
    sockets.count_error("http", error.code)
    status = http_status(error)
    headers: dict[str, Any] = {"Cache-Control": "no-store"}
    if isinstance(error, QuotaExceeded):
        headers["Retry-After"] = retry_after(error)
        if _is_event_source(scope):
            # To a browser every status is final: it is told in a stream that ends, and comes back.
            await later("error", encoded_problem(error))(scope, receive, send)
            return
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tailrace"'
    response = Response(encoded_problem(error), status, headers, PROBLEM_TYPE)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
        return
    await response(scope, receive, send)
