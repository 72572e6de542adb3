"""The paths of the operator's page.

::

    GET   /                        the page
    GET   /page/{name}             files of the page
    GET   /overview                figures of the page
    GET   /subscriptions           subscriptions with the largest lag
    GET   /publishers              publishers with the most subscriptions
    POST  /subscriptions/{id}/end  end a subscription: {"reason": "…"}

A request to end a subscription must not come from a page of another origin. On a server without identities and
policy it must come from the server's own machine.
"""

from __future__ import annotations

import time
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.api.http.assets import STRICT_POLICY, Assets
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import JSON_TYPE, asked_body
from tailrace_server.api.operator.overview import overview, publishers, subscriptions
from tailrace_server.api.peers import REST, over_http
from tailrace_server.api.rest.routes import answered
from tailrace_server.grants.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from tailrace_server.api.operator.recent_lines import RecentLines
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal


_REASON_MAX: Final = 200
"""Maximum length of a reason, in characters: it must fit into the trailers of gRPC, with the cursor."""


_ASSETS: Final = Assets(
    Path(__file__).parent / "assets",
    versioned=(),
    own=("page.css", "page.js", "tables.js", "tail.js", "words.js"),
    policy=STRICT_POLICY,
)
_NO_STORE: Final = {"Cache-Control": "no-store"}
_log = structlog.get_logger("tailrace.operator")


class OperatorFace:
    """The handlers of the operator's page."""

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        sockets: Sockets,
        *,
        health: Callable[[Principal], dict[str, Any]],
        lines: RecentLines,
    ) -> None:
        """Bind the page to an engine.

        Args:
            engine: The engine that the page shows.
            settings: Bounds of requests.
            sockets: Count the errors that are sent.
            health: Returns the body of ``/health`` for a caller.
            lines: The newest warnings and errors of the log.
        """
        self._engine = engine
        self._settings = settings
        self._answered = partial(answered, sockets=sockets, log=_log)
        self._health = health
        self._lines = lines
        self._version = version("tailrace")
        self._begun = time.monotonic()

    def routes(self) -> list[BaseRoute]:
        """Return the routes for a Starlette application."""
        return [
            Route("/", self._page),
            Route("/page/{name}", _ASSETS.answer),
            Route("/overview", self._answered(self._overview)),
            Route("/subscriptions", self._answered(self._subscriptions)),
            Route("/publishers", self._answered(self._publishers)),
            Route("/subscriptions/{id}/end", self._answered(self._end), methods=["POST"]),
        ]

    async def _page(self, _request: Request) -> Response:
        return await _ASSETS.page("page.html")

    async def _overview(self, request: Request) -> Response:
        caller = caller_of(request)
        if not self._engine.shows_itself_to(caller):
            raise NotPermitted("statistics of every catalog are not granted: the page has them all")
        found = await overview(
            self._engine,
            caller,
            health=self._health(caller),
            lines=self._lines.newest_first(),
            version=self._version,
            up_s=time.monotonic() - self._begun,
        )
        return JSONResponse(found, headers=_NO_STORE)

    async def _subscriptions(self, request: Request) -> Response:
        return JSONResponse(await subscriptions(self._engine, caller_of(request)))

    async def _publishers(self, request: Request) -> Response:
        return JSONResponse(publishers(self._engine, caller_of(request)))

    async def _end(self, request: Request) -> Response:
        caller = caller_of(request)
        # Check who asks before the body is read.
        refuse_strangers(request, caller)
        reason = await reason_of(request, self._settings)
        id: str = request.path_params["id"]
        cursor = self._engine.end_subscription(caller, id, reason, over_http(REST, request))
        return JSONResponse({"subscription_id": id, "resume_cursor": cursor}, headers=_NO_STORE)


async def reason_of(request: Request, settings: HttpSettings) -> str:
    """Return the reason in the body of a request to end a subscription.

    Raises:
        HTTPException: 403: a page of another origin sends the request; 415: its content type is not JSON.
        InvalidRequest: The reason is missing or too long.
    """
    _refuse_other_pages(request, settings)
    body = await asked_body(request, settings)
    if not isinstance(body, dict) or set(body) != {"reason"}:
        raise InvalidRequest('the body must be {"reason": "…"}; the subscriber receives the reason')
    reason = body["reason"]
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidRequest("reason: must be a text, which tells the subscriber why it was ended")
    reason = " ".join(reason.split())
    if len(reason) > _REASON_MAX:
        raise InvalidRequest(f"reason: {len(reason)} characters; at most {_REASON_MAX}")
    return reason


def _refuse_other_pages(request: Request, settings: HttpSettings) -> None:
    """Refuse requests that a page of another origin can send without a CORS preflight.

    Such a page can send a POST with any text, but not with the content type JSON, and its browser sends the
    page's origin. The setting ``ws_origins`` must name that origin. Its value ``*`` allows every page to read,
    but not to end subscriptions.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise HTTPException(415, f"the request must declare its body as {JSON_TYPE}")
    # A browser sends the origin with each POST of a page. A request without one comes from a program.
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc == request.headers.get("host"):
        return
    if settings.origins.any or not settings.origins.has(origin):
        raise HTTPException(
            403, f"a page of {origin[:100]} may not end subscriptions; allow it with ws_origins"
        )


def refuse_strangers(request: Request, caller: Principal) -> None:
    """Refuse a caller on another machine if the server has neither identities nor a policy.

    Raises:
        NotPermitted: The caller is `ANONYMOUS` and does not connect from loopback.
    """
    if caller is not ANONYMOUS or (request.client and _is_loopback(request.client.host)):
        return
    raise NotPermitted(
        "an anonymous caller may end subscriptions only from the server's own machine; configure "
        "identities (docs/security.md)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
