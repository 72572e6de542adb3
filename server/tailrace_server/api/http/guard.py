"""Asks everybody who they are before any route is looked at: the one place for the whole HTTP listener.

::

    request ──▶ credentials? ──▶ Door.admit ──▶ Entrance in the scope ──▶ routes: `caller_of(request)`
                    │                │
                    │                └── refused: 401, a Problem Details object
                    └── none, and the path is public: the caller is NOBODY, who may read nothing

A new route is guarded without having to know of it. A public path is compared exactly, and its caller may read
nothing, so that a misleading path reveals nothing. A WebSocket
may be opened without a credential, since browsers cannot send one with the handshake: its `connection_init` has
to bring it, and until then its caller has no identity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.websockets import WebSocket

from tailrace.errors import QuotaExceeded, TailraceError, Unauthenticated
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.identity import Credentials, bearer_token
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status, retry_after
from tailrace_server.api.http.event_stream_answers import EVENTS_TYPE, later, may_pass
from tailrace_server.api.http.sessions import PATH, handle_of
from tailrace_server.api.transport_security.certificate_names import names_over_http
from tailrace_server.grants.principal import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.access.door import Door
    from tailrace_server.api.http.sessions import BrowserSessions
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.grants.principal import Principal

GRAPHQL_TYPE: Final = "application/graphql-response+json"
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


def with_door(
    application: ASGIApp,
    door: Door,
    sockets: Sockets,
    sessions: BrowserSessions,
    graphql_errors: Callable[[TailraceError], bytes],
) -> ASGIApp:
    """Let in who proves who they are, and refuse the others with status 401.

    Args:
        application: What is behind the door.
        door: The door.
        sockets: Count the errors of the listener.
        sessions: Of pages.
        graphql_errors: Returns an error as clients of GraphQL read it, in one line.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        client = scope.get("client")
        credentials = Credentials(
            None, names_over_http(scope), client[0] if client else "", scope["type"]
        )
        principal: Principal | None = door.anonymous
        try:
            if not door.is_open:
                credentials = credentials.with_token(bearer_token(_fields(scope)))
                principal = await _principal(scope, credentials, door, sessions)
        except TailraceError as error:
            if is_socket and not _fields(scope):
                principal = (
                    None  # a browser's handshake has no header of its own: its init has to say
                )
            elif is_socket or not _is_public(scope):
                await _refuse(error, sockets, graphql_errors, scope, receive, send)
                return
            else:
                principal = NOBODY
        scope[_ENTRANCE] = entrance = Entrance(door, credentials, principal)
        if not is_socket and _is_public(scope):
            await application(scope, receive, send)
            return
        try:
            entrance.take()
        except QuotaExceeded as error:
            await _refuse(error, sockets, graphql_errors, scope, receive, send)
            return
        try:
            await application(scope, receive, send)
        finally:
            entrance.leave()

    return guarded


async def _principal(
    scope: Scope, credentials: Credentials, door: Door, sessions: BrowserSessions
) -> Principal | None:
    """Return the caller of a request; None: no caller yet, on a WebSocket.

    Raises:
        TailraceError: It is refused.
    """
    if credentials.token is not None:
        return await door.admit(credentials)
    if (ticket := _take_ticket(scope)) is not None:
        return door.redeem(credentials, lambda: door.tickets.redeem(ticket))
    handle = handle_of(scope) if _opens_by_cookie(scope) else None
    if handle is not None and not credentials.certificate_names:
        return door.redeem(credentials, lambda: sessions.holder(handle))
    if credentials.certificate_names or not (scope["type"] == "websocket" or _is_public(scope)):
        return await door.admit(credentials)
    return None if scope["type"] == "websocket" else NOBODY


def _fields(scope: Scope) -> list[str]:
    """Return the values of the fields that have a token."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]


def _opens_by_cookie(scope: Scope) -> bool:
    """Return whether a session is enough for a request: for an event stream, and for its own end."""
    if scope["path"] == PATH:
        return bool(scope["type"] == "http" and scope["method"] == "DELETE")
    return _is_event_source(scope) and scope["path"].endswith(_STREAMS)


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
    error: TailraceError,
    sockets: Sockets,
    graphql_errors: Callable[[TailraceError], bytes],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer with an error of the one table, in the form of the path.

    In a function of its own: a frame that an error has passed through may not keep it.
    """
    sockets.count_error("http", error.code)
    status = http_status(error)
    headers: dict[str, Any] = {"Cache-Control": "no-store"}
    is_graphql = scope["type"] == "http" and _PAGE.fullmatch(scope["path"]) is not None
    body = graphql_errors(error) if is_graphql else encoded_problem(error)
    if isinstance(error, QuotaExceeded):
        headers["Retry-After"] = retry_after(error)
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tailrace"'
    elif _is_event_source(scope) and may_pass(error):
        # To a browser every status is final: it is told in a stream that ends, and comes back.
        await later("next" if is_graphql else "error", body)(scope, receive, send)
        return
    response = Response(body, status, headers, GRAPHQL_TYPE if is_graphql else PROBLEM_TYPE)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
        return
    await response(scope, receive, send)
