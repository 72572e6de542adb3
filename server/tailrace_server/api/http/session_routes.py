"""The path by which pages begin, renew and end their sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status
from tailrace_server.api.http.guard import entrance_of
from tailrace_server.api.http.sessions import PATH, cookie, handle_of, is_of_another_origin

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from tailrace_server.api.http.sessions import BrowserSessions

_NO_STORE: Final = {"Cache-Control": "no-store"}


class SessionFace:
    """The handlers of ``/v1/session``."""

    def __init__(self, sessions: BrowserSessions) -> None:
        """Begin and end these."""
        self._sessions = sessions

    def routes(self) -> list[BaseRoute]:
        """Return what a Starlette application mounts."""
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
    """Return why a page of another origin gets no session: it would take the cookie for one that works."""
    own = f"{request.url.scheme}://{request.url.netloc}"
    origin = request.headers.get("origin", "another origin")[:100]
    return InvalidRequest(
        f"origin: a session is for pages of {own!r}, and this one is of {origin!r}; the cookie would open no "
        "stream. Use a ticket (POST /v1/tickets) or a fetch with the token. Behind a proxy that ends TLS, name "
        "the proxy by trusted_proxies"
    )
