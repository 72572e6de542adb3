"""The guard of the HTTP listener: authenticates each request by token, ticket or session, before the routes.

::

    request ──▶ credentials? ──▶ Door.admit ──▶ Entrance in the scope ──▶ routes: `caller_of(request)`
                    │                │
                    │                └── refused: 401, a Problem Details object
                    └── none, and the path is public: the caller is NOBODY, who may read nothing

Every new route is guarded automatically. A public path is matched exactly, and its caller may read nothing, so
a crafted path reveals nothing. A WebSocket may be opened without a credential, because browsers cannot send one
with the handshake. Its `connection_init` must then contain the token, and until then the caller has no
identity.

A session belongs to a page in a browser: it is a cookie that replaces the page's token.

::

    POST    /v1/session    with a token: Set-Cookie, HttpOnly, SameSite=Strict, over TLS Secure
    GET     …/changes/live, …/graphql as an event stream: opened by the cookie
    DELETE  /v1/session    the session and its streams end

An ``EventSource`` cannot send a header, and it reconnects by itself with its first URL. A ticket in that URL is
accepted only once, so it does not survive a reconnect. A session does, until the token expires with which the
session was begun. A newer token of the same caller renews the session and all event streams that it has opened.

A cookie can only open event streams and end its session. So another site that makes a browser send the cookie
can neither read nor change anything. The cookie is ignored if the browser says that the request comes from
another origin. For this reason a page of another origin is refused a session: its cookie would never be
accepted. Sessions are stored in memory, so after a restart of the server pages begin new ones.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.websockets import WebSocket

from tailrace.errors import InvalidRequest, QuotaExceeded, TailraceError, Unauthenticated
from tailrace_server.access.door import Identified
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.identity import Credentials, bearer_token, is_same
from tailrace_server.access.tickets import Handles
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status, retry_after
from tailrace_server.api.http.event_streams import EVENTS_TYPE, later, may_pass
from tailrace_server.api.transport_security.certificate_names import names_over_http
from tailrace_server.grants.principal import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection, Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.access.door import Door
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.grants.principal import Principal


PATH: Final = "/v1/session"
_LIFETIME_S: Final = 43_200.0
"""Lifetime of a session, in seconds, if the caller's credential never expires, for example an API key."""


HTML_TYPE: Final = "text/html"
GRAPHQL_TYPE: Final = "application/graphql-response+json"
_ENTRANCE: Final = "tailrace.entrance"
"""Key in the ASGI scope; its value is the `Entrance` of the request or WebSocket."""

_PUBLIC: Final = re.compile(r"/|/page/[^/]+|/health|/v1/docs(?:/[^/]+)?|/v1/graphiql/[^/]+")
"""Paths that need no credential: the health of the server, and its pages with their files."""
_STREAMS: Final = ("/changes/live", "/graphql")
"""Endings of the paths that serve event streams."""
_PAGE: Final = re.compile(r"/v1/(?:catalogs/[^/]+|system)/graphql")
"""Paths that serve a page without any data to a browser, and data to other clients."""


_NO_STORE: Final = {"Cache-Control": "no-store"}


def caller_of(connection: HTTPConnection) -> Principal:
    """Return the authenticated caller of a request.

    Raises:
        Unauthenticated: The caller has proven no identity, or its key was removed.
        TokenExpired: The caller's token has expired.
    """
    return entrance_of(connection).principal


def entrance_of(connection: HTTPConnection) -> Entrance:
    """Return the authentication state of a request or a WebSocket."""
    found: Entrance = connection.scope[_ENTRANCE]
    return found


def with_door(
    application: ASGIApp,
    door: Door,
    sockets: Sockets,
    sessions: BrowserSessions,
    graphql_errors: Callable[[TailraceError], bytes],
) -> ASGIApp:
    """Wrap an application: authenticate each request, charge it to the quotas, and refuse the others.

    Args:
        application: The application that receives the authenticated requests.
        door: Checks credentials and has the quotas.
        sockets: Count the errors that are sent.
        sessions: The sessions of browser pages.
        graphql_errors: Returns an error in the form of GraphQL, encoded in one line.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        client = scope.get("client")
        credentials = Credentials(
            None, names_over_http(scope), client[0] if client else "", scope["type"]
        )
        # 1. Authenticate. On an open server every caller is anonymous.
        principal: Principal | None = door.anonymous
        try:
            if not door.is_open:
                credentials = credentials.with_token(bearer_token(_fields(scope)))
                principal = await _principal(scope, credentials, door, sessions)
        except TailraceError as error:
            # A browser cannot set a header in a handshake: its `connection_init` has to bring the token. A
            # wrong token in the handshake is refused at once.
            if is_socket and not _fields(scope):
                principal = None
            elif is_socket or not _is_public(scope):
                await _refuse(error, sockets, graphql_errors, scope, receive, send)
                return
            else:
                principal = NOBODY
        scope[_ENTRANCE] = entrance = Entrance(door, credentials, principal)
        # 2. Charge the quotas until the response ends, except on public paths.
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
    """Return the caller of a request; None for a WebSocket whose caller is not known yet.

    Raises:
        TailraceError: The credential is missing or not accepted.
    """
    # In this order: a token in the header, a ticket in the URL, a client certificate, a session's cookie.
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
    """Return the values of the ``Authorization`` headers."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]


def _opens_by_cookie(scope: Scope) -> bool:
    """Return True if a request may be authenticated by cookie: to open an event stream or end the session."""
    if scope["path"] == PATH:
        return bool(scope["type"] == "http" and scope["method"] == "DELETE")
    return _is_event_source(scope) and scope["path"].endswith(_STREAMS)


def _take_ticket(scope: Scope) -> str | None:
    """Return the ticket in the URL of an event stream, and remove it from the scope; None if there is none.

    Raises:
        Unauthenticated: The URL has several tickets.
    """
    if (
        scope["type"] != "http"
        or scope["method"] != "GET"
        or b"ticket=" not in scope["query_string"]
    ):
        return None
    if not scope["path"].endswith(_STREAMS):
        return None
    # Remove the ticket from the URL: the faces do not know it as a parameter.
    pairs: list[bytes] = scope["query_string"].split(b"&")
    tickets = [each for each in pairs if each.startswith(b"ticket=")]
    scope["query_string"] = b"&".join(each for each in pairs if each not in tickets)
    if len(tickets) != 1:
        raise Unauthenticated("the request has two tickets; send one")
    return tickets[0].removeprefix(b"ticket=").decode("latin-1")


def _is_public(scope: Scope) -> bool:
    """Return True if a request may be answered without a credential."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    path = scope["path"]
    if _PUBLIC.fullmatch(path):
        return True
    return _PAGE.fullmatch(path) is not None and opens_page(scope)


def _is_event_source(scope: Scope) -> bool:
    """Return True if a GET accepts ``text/event-stream``, as a browser's ``EventSource`` does."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return EVENTS_TYPE.encode() in accept


def opens_page(scope: Scope) -> bool:
    """Return True if a browser opens a path of GraphQL as a page: it prefers HTML and sends no query."""
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    wanted: bytes = accept.partition(b",")[0].partition(b";")[0].strip().lower()
    return (
        scope["method"] in ("GET", "HEAD")
        and wanted == HTML_TYPE.encode()
        # A query is answered with data, so it needs a credential and counts in the quotas.
        and "query" not in QueryParams(scope["query_string"])
    )


async def _refuse(
    error: TailraceError,
    sockets: Sockets,
    graphql_errors: Callable[[TailraceError], bytes],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer with an error in the form of the path: GraphQL or Problem Details.

    This is a separate function because the frame that caught an error must not refer to it: the error's
    traceback refers to that frame, which would be a reference cycle.
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
        # For an `EventSource` every other status is final: a stream that ends at once makes it reconnect.
        await later("next" if is_graphql else "error", body)(scope, receive, send)
        return
    response = Response(body, status, headers, GRAPHQL_TYPE if is_graphql else PROBLEM_TYPE)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
        return
    await response(scope, receive, send)


class BrowserSessions:
    """The sessions of browser pages on one server, in memory."""

    def __init__(self) -> None:
        """Start without sessions."""
        self._open = Handles()

    def begin(self, principal: Principal, earlier: str | None) -> tuple[str, float]:
        """Begin or renew a caller's session; return its handle and its lifetime in seconds.

        Args:
            principal: The caller, with a new token.
            earlier: The handle of the session that the browser has now, if any. If that session belongs to
                another caller, it ends.
        """
        expires_at = principal.expires_at
        lifetime_s = _LIFETIME_S if expires_at is None else max(0.0, expires_at - time.time())
        held = None if earlier is None else self._open.holder(earlier)
        if earlier is not None and held is not None:
            # The same caller: its principal is renewed in place, so its open event streams continue.
            if isinstance(held, Identified) and held.refusal() is None and is_same(held, principal):
                held.renew(principal)
                self._open.extend(earlier, lifetime_s)
                return earlier, lifetime_s
            self.end(earlier)
        return self._open.make(principal, lifetime_s), lifetime_s

    def holder(self, handle: str) -> Principal:
        """Return the caller to whom a session belongs.

        Raises:
            Unauthenticated: The session has ended or never existed, or its caller is no longer accepted.
            TokenExpired: The session's token has expired.
        """
        principal = self._open.holder(handle)
        if principal is None:
            raise Unauthenticated(
                "the session has ended; begin a new one with POST /v1/session and a token"
            )
        if (refusal := principal.refusal()) is not None:
            raise refusal
        return principal

    def end(self, handle: str) -> None:
        """End a session and the event streams that it has opened. Idempotent."""
        principal = self._open.holder(handle)
        self._open.forget(handle)
        if isinstance(principal, Identified):
            principal.leave()


class SessionFace:
    """The handlers of ``/v1/session``."""

    def __init__(self, sessions: BrowserSessions) -> None:
        """Bind the handlers to the sessions of a server."""
        self._sessions = sessions

    def routes(self) -> list[BaseRoute]:
        """Return the routes of ``/v1/session`` for a Starlette application."""
        return [Route(PATH, self._answer, methods=["POST", "DELETE"])]

    async def _answer(self, request: Request) -> Response:
        handle = handle_of(request.scope)
        if request.method == "DELETE":
            if handle is not None:
                self._sessions.end(handle)
            headers = {**_NO_STORE, "Set-Cookie": cookie(request.scope, "", 0.0)}
            return Response(status_code=204, headers=headers)
        try:
            if is_of_another_origin(request.scope):
                raise _refusal(request)
            principal = entrance_of(request).principal
        except TailraceError as error:
            return Response(encoded_problem(error), http_status(error), _NO_STORE, PROBLEM_TYPE)
        handle, lifetime_s = self._sessions.begin(principal, handle)
        headers = {**_NO_STORE, "Set-Cookie": cookie(request.scope, handle, lifetime_s)}
        return JSONResponse({"expiresInMs": math.floor(lifetime_s * 1000)}, headers=headers)


def _refusal(request: Request) -> InvalidRequest:
    """Return the error for a page of another origin, whose session cookie would never be accepted."""
    own = f"{request.url.scheme}://{request.url.netloc}"
    origin = request.headers.get("origin", "another origin")[:100]
    return InvalidRequest(
        f"origin: a session is for pages of {own!r}, but this one is of {origin!r}, so the cookie would "
        "open no stream. Use a ticket (POST /v1/tickets) or a fetch with the token. Behind a proxy that "
        "ends TLS, name the proxy in trusted_proxies"
    )


def handle_of(scope: Scope) -> str | None:
    """Return the session handle in a request's cookie; None if there is none or another origin sends it."""
    if scope["type"] != "http" or is_of_another_origin(scope):
        return None
    name = _name(scope)
    found = [
        value.strip()
        for header in _values(scope, b"cookie")
        for key, is_pair, value in (each.partition("=") for each in header.split(";"))
        if is_pair and key.strip() == name
    ]
    # If there are two such cookies, one was set by somebody else, for example by a host of the same domain. It
    # is unknown which, so accept neither.
    return found[0] if len(found) == 1 else None


def cookie(scope: Scope, handle: str, lifetime_s: float) -> str:
    """Return the ``Set-Cookie`` value that stores a handle in a browser; a lifetime of 0 deletes it."""
    secure = "; Secure" if _is_secure(scope) else ""
    return (
        f"{_name(scope)}={handle}; Max-Age={int(lifetime_s)}; Path=/; HttpOnly; "
        f"SameSite=Strict{secure}"
    )


def _name(scope: Scope) -> str:
    # Browsers accept a cookie with the prefix `__Host-` only over TLS and from this very host, not from another
    # host of the same domain.
    return "__Host-tailrace" if _is_secure(scope) else "tailrace"


def _is_secure(scope: Scope) -> bool:
    return bool(scope.get("scheme") == "https")


def is_of_another_origin(scope: Scope) -> bool:
    """Return True if the headers of a request say that a page of another origin has sent it."""
    site = _values(scope, b"sec-fetch-site")
    if any(each not in ("same-origin", "none") for each in site):
        return True
    own = [f"{scope.get('scheme')}://{host}" for host in _values(scope, b"host")]
    return any([each] != own for each in _values(scope, b"origin"))


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
