"""The path by which pages begin, renew and end their sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.errors import TailraceError
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status
from tailrace_server.api.http.guard import entrance_of
from tailrace_server.api.http.sessions import PATH, cookie, handle_of

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
            principal = entrance_of(request).principal
        except TailraceError as error:
            return Response(encoded_problem(error), http_status(error), _NO_STORE, PROBLEM_TYPE)
        handle, lifetime_s = self._sessions.begin(principal, handle)
        headers = {**_NO_STORE, "Set-Cookie": cookie(request.scope, handle, lifetime_s)}
        return JSONResponse({"expiresInMs": math.floor(lifetime_s * 1000)}, headers=headers)
