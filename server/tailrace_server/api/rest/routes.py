"""The paths of the REST face.

::

    GET        /v1/catalogs                       the catalogs that are served now
    GET        /v1/catalogs/{c}                   one of them
    GET        /v1/catalogs/{c}/schema            entity types and columns, ?version=
    GET        /v1/catalogs/{c}/changes           history
    POST       /v1/catalogs/{c}/changes/query     history, requested by a JSON body
    WebSocket  /v1/catalogs/{c}/changes/live      live, sub-protocol tailrace.v1
    GET, POST  /v1/catalogs/{c}/changes/live      live, server-sent events
    GET        /v1/catalogs/{c}/state/{type}      a table as of one version
    GET        /v1/catalogs/{c}/state/{type}/{key}  one row of it
    POST       /v1/catalogs/{c}/sql               a statement in SQL
    …          /v1/catalogs/{c}/subscriptions…    named subscriptions
    …          /v1/system/changes…                the three paths of changes, for the system log
    GET        /v1/openapi.json                   the OpenAPI document
    GET        /v1/docs                           the OpenAPI document as a page for browsers, by RapiDoc
    GET        /v1/docs/{name}                    files of that page
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from tailrace.errors import CatalogUnknown, InvalidRequest, QuotaExceeded
from tailrace_server.access.tickets import Tickets
from tailrace_server.api import responses
from tailrace_server.api.errors import (
    PROBLEM_TYPE,
    encoded_problem,
    encoded_refusal,
    http_status,
    logged,
    retry_after,
)
from tailrace_server.api.http.assets import STRICT_POLICY, Assets
from tailrace_server.api.http.guard import caller_of, entrance_of
from tailrace_server.api.http.requests import catalog_of, no_parameters, parameters
from tailrace_server.api.peers import REST_WEBSOCKET, over_http
from tailrace_server.api.rest import events, history, openapi, sql, state
from tailrace_server.api.rest.live import SUBPROTOCOL, LiveFace
from tailrace_server.api.rest.named import NamedResources
from tailrace_server.grants.grant import Action

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket
    from structlog.stdlib import BoundLogger

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine

    _Handler = Callable[[Request], Awaitable[ASGIApp]]
    _Read = Callable[[Request, Engine, HttpSettings, Sockets, str], Awaitable[ASGIApp]]

_log = structlog.get_logger("tailrace.rest")
_VERSION: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


_OWN_STYLE: Final = "'sha256-hxMHPWsJKxnbIchS5PxfP/9Ipo9IhwZEbB+Wb8Dt+uw='"
"""Hash of the only style element that RapiDoc 9.3.8 creates; browsers log the hash of a refused one."""
_ASSETS: Final = Assets(
    Path(__file__).parent / "assets",
    versioned=("rapidoc-9.3.8.min.js",),
    own=("docs.js", "docs.css", "token.js"),
    # RapiDoc's templates have style attributes. No other inline style and no inline script is allowed.
    policy=STRICT_POLICY.replace("style-src 'self'", f"style-src 'self' {_OWN_STYLE}")
    + "; style-src-attr 'unsafe-inline'",
)
FILES: Final = _ASSETS.files


class RestFace:
    """The handlers of the REST face."""

    def __init__(self, engine: Engine, settings: HttpSettings, sockets: Sockets) -> None:
        """Bind the handlers to an engine; the sockets are shared with the other faces of the listener."""
        self._engine = engine
        self._settings = settings
        self._sockets = sockets
        self._answered = partial(answered, sockets=sockets, log=_log)
        self._named = NamedResources(engine, settings)

    def routes(self) -> list[BaseRoute]:
        """Return the routes for a Starlette application."""
        found: list[BaseRoute] = [
            Route("/v1/openapi.json", self._answered(self._openapi)),
            Route("/v1/docs", _docs),
            Route("/v1/docs/{name}", _asset),
            Route("/v1/tickets", self._answered(self._tickets), methods=["POST"]),
            Route("/v1/catalogs", self._answered(self._catalogs)),
            Route("/v1/catalogs/{catalog}", self._answered(self._catalog)),
            Route("/v1/catalogs/{catalog}/schema", self._answered(self._schema)),
            Route("/v1/catalogs/{catalog}/state/{entityType}", self._read(state.table)),
            # A key may contain slashes, and the path is decoded before it is matched.
            Route(
                "/v1/catalogs/{catalog}/state/{entityType}/{primaryKey:path}",
                self._read(state.row),
            ),
            Route("/v1/catalogs/{catalog}/sql", self._read(sql.answer), methods=["POST"]),
            *self._named.routes(self._answered),
        ]
        for base in ("/v1/catalogs/{catalog}", "/v1/system"):
            found += [
                Route(f"{base}/changes", self._read(history.changes)),
                Route(f"{base}/changes/query", self._read(history.changes), methods=["POST"]),
                Route(f"{base}/changes/live", self._read(events.live), methods=["GET", "POST"]),
                WebSocketRoute(f"{base}/changes/live", self._live),
            ]
        return found

    async def _openapi(self, request: Request) -> Response:
        no_parameters(request)
        if not (root_path := self._settings.root_path):
            return _json(openapi.document())
        return _json({**openapi.document(), "servers": [{"url": root_path}]})

    async def _tickets(self, request: Request) -> Response:
        no_parameters(request)
        ticket = entrance_of(request).ticket()
        return _json({"ticket": ticket, "expiresInMs": Tickets.expires_in_ms})

    async def _catalogs(self, request: Request) -> Response:
        no_parameters(request)
        found = [
            responses.as_json(responses.catalog(info))
            for info in self._engine.catalogs(caller_of(request))
        ]
        return _json({"catalogs": found})

    async def _catalog(self, request: Request) -> Response:
        no_parameters(request)
        name = catalog_of(request)
        # `view` finds a catalog that was created a moment ago, and raises the error of one that is unreadable.
        await self._engine.view(caller_of(request), name)
        for info in self._engine.catalogs(caller_of(request)):
            if info.name == name:
                return _json(responses.as_json(responses.catalog(info)))
        raise CatalogUnknown(
            name, [info.name for info in self._engine.catalogs(caller_of(request))]
        )

    async def _schema(self, request: Request) -> Response:
        name = catalog_of(request)
        version = _version(request)
        view = await self._engine.view(caller_of(request), name, action=Action.SCHEMA)
        at = view.published if version is None else min(version, view.published)
        return _json(responses.as_json(responses.schema(view, at)))

    def _read(self, read: _Read) -> _Handler:
        """Return the handler of a path at which a catalog is read."""

        async def handle(request: Request) -> ASGIApp:
            name = catalog_of(request)
            return await read(request, self._engine, self._settings, self._sockets, name)

        return self._answered(handle)

    async def _live(self, websocket: WebSocket) -> None:
        try:
            no_parameters(
                websocket, "a WebSocket has its arguments in its messages; leave the query out"
            )
        except InvalidRequest as error:
            await self._sockets.refuse(websocket, error)
            return
        peer = over_http(REST_WEBSOCKET, websocket)
        entrance = entrance_of(websocket)
        face = LiveFace(self._engine, self._settings, catalog_of(websocket), peer, entrance)
        await self._sockets.serve(websocket, {SUBPROTOCOL: face})


def answered(handler: _Handler, sockets: Sockets, log: BoundLogger) -> _Handler:
    """Wrap a handler so that its exceptions become Problem Details responses.

    Args:
        handler: The handler of a route.
        sockets: Count the errors that are sent.
        log: The log of the face.
    """

    async def answer(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except HTTPException as error:
            sockets.count_error("http", InvalidRequest.code)
            return http_problem(request, error)
        except ClientDisconnect:
            # Nobody receives this response, and nothing has to be logged or counted.
            return Response(status_code=400)
        except Exception as error:
            return _refused(error, sockets, log)

    return answer


def _refused(caught: Exception, sockets: Sockets, log: BoundLogger) -> Response:
    """Log and count an error, and return it as a Problem Details response.

    This is a separate function because the frame that caught an error must not refer to it: the error's
    traceback refers to that frame, which would be a reference cycle.
    """
    error = logged(caught, log)
    sockets.count_error("http", error.code)
    headers = {"Retry-After": retry_after(error)} if isinstance(error, QuotaExceeded) else None
    return Response(encoded_problem(error), http_status(error), headers, PROBLEM_TYPE)


def http_problem(request: Request, error: Exception) -> Response:
    """Return an error of HTTP itself (path, method, media type) as a Problem Details response."""
    assert isinstance(error, HTTPException)
    detail, path = error.detail, request.url.path
    if detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"there is no path {path}; /v1/openapi.json lists all paths"
    elif detail == HTTPStatus.METHOD_NOT_ALLOWED.phrase:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{path} allows {allowed}, not {request.method}"
    body = encoded_refusal(InvalidRequest(detail), error.status_code)
    return Response(body, error.status_code, dict(error.headers or {}), PROBLEM_TYPE)


def _json(value: dict[str, Any]) -> Response:
    return Response(
        msgspec.json.encode(value),
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


def _version(request: Request) -> int | None:
    version = None
    for name, text in parameters(request):
        if name != "version" or version is not None:
            raise InvalidRequest(f"{name[:60]}: this path has only the parameter version")
        if not _VERSION.fullmatch(text) or not 1 <= int(text) < 1 << 63:
            raise InvalidRequest("version: must be a whole number from 1")
        version = int(text)
    return version


async def _docs(_request: Request) -> Response:
    """Answer ``/v1/docs``."""
    return await _ASSETS.page("docs.html")


async def _asset(request: Request) -> Response:
    """Answer ``/v1/docs/{name}``."""
    return await _ASSETS.answer(request)
