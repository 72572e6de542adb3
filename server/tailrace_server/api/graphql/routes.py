"""The paths of the GraphQL face.

::

    /v1/catalogs/{c}/graphql     GET, POST: queries; as an event stream also subscriptions
                                 WebSocket: queries and subscriptions
                                 GET from a browser: the page of GraphiQL
    /v1/system/graphql           the same for the system log: catalogs created, dropped, replaced
    /v1/graphiql/…               files of GraphiQL's page

Requests and responses follow the GraphQL-over-HTTP draft. A response with data has status 200, even if some of
its fields failed. A response without data has the status of the error table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from tailrace.errors import InvalidRequest, QuotaExceeded
from tailrace_server.api.errors import logged, problem, retry_after
from tailrace_server.api.graphql import event_streams
from tailrace_server.api.graphql.catalog import Asked, GraphqlCatalog, asked_of
from tailrace_server.api.graphql.documents import DocumentCache
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.graphql.websocket import SUBPROTOCOL, GraphqlSocketFace
from tailrace_server.api.http.assets import STRICT_POLICY, Assets
from tailrace_server.api.http.event_streams import EVENTS_TYPE, HEADERS
from tailrace_server.api.http.guard import (
    GRAPHQL_TYPE,
    caller_of,
    entrance_of,
    opens_page,
)
from tailrace_server.api.http.requests import JSON_TYPE, accepted, body, catalog_of, parameters
from tailrace_server.api.http.streaming import CHUNK_SIZE, StreamedAnswer, in_chunks
from tailrace_server.api.json_requests import decode
from tailrace_server.api.peers import GRAPHQL, GRAPHQL_WEBSOCKET, over_http
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine


_log = structlog.get_logger("tailrace.graphql")

RESPONSE_TYPE: Final = GRAPHQL_TYPE
_METHODS: Final = ("GET", "POST")
_HEADERS: Final = {"Cache-Control": "no-store", "Vary": "Accept"}


_OWN_STYLE: Final = "'sha256-Y/huXlwoYkVyQlxwSVcCi1RCDGDCSVBzDt0hYP9qlTc='"
"""Hash of the only style element that GraphiQL 3.8.3 creates; browsers log the hash of a refused one."""
_ASSETS: Final = Assets(
    Path(__file__).parent / "assets",
    versioned=(
        *("graphiql-3.8.3.min.js", "graphiql-3.8.3.min.css"),
        *("react-18.3.1.min.js", "react-dom-18.3.1.min.js"),
    ),
    own=("page.js", "page.css"),
    policy=STRICT_POLICY.replace("style-src 'self'", f"style-src 'self' {_OWN_STYLE}").replace(
        "img-src data:", "img-src data:; font-src data:"
    ),
)
FILES: Final = _ASSETS.files


class GraphqlFace:
    """The handlers of the GraphQL face."""

    def __init__(self, engine: Engine, settings: HttpSettings, sockets: Sockets) -> None:
        """Bind the handlers to an engine; the sockets are shared with the other faces of the listener."""
        self._engine = engine
        self._settings = settings
        self._sockets = sockets
        self.documents = DocumentCache(settings)
        self._catalogs: dict[str, GraphqlCatalog] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes for a Starlette application."""
        found: list[BaseRoute] = [Route("/v1/graphiql/{name}", _asset)]
        for base in ("/v1/catalogs/{catalog}", "/v1/system"):
            found += [
                Route(f"{base}/graphql", self._answer, methods=_METHODS),
                WebSocketRoute(f"{base}/graphql", self._live),
            ]
        return found

    def catalog(self, name: str) -> GraphqlCatalog:
        """Return the GraphQL side of a catalog by name; cached only if the catalog exists."""
        found = self._catalogs.get(name)
        if found is None:
            found = GraphqlCatalog(self._engine, self._settings, name, self.documents)
            # Forget catalogs that were dropped, and do not store unknown names: clients could invent many.
            there = {SYSTEM_CATALOG, *(info.name for info in self._engine.catalogs(ANONYMOUS))}
            self._catalogs = {
                each: catalog for each, catalog in self._catalogs.items() if each in there
            }
            if name in there:
                self._catalogs[name] = found
        return found

    async def _live(self, websocket: WebSocket) -> None:
        peer = over_http(GRAPHQL_WEBSOCKET, websocket)
        catalog = self.catalog(catalog_of(websocket))
        face = GraphqlSocketFace(catalog, self._sockets.answers, peer, entrance_of(websocket))
        await self._sockets.serve(websocket, {SUBPROTOCOL: face})

    async def _answer(self, request: Request) -> ASGIApp:
        form = RESPONSE_TYPE
        try:
            if opens_page(request.scope) and self._settings.graphql_graphiql:
                below = catalog_of(request) != SYSTEM_CATALOG
                return await _page("../../" if below else "../")
            form = accepted(request, (RESPONSE_TYPE, JSON_TYPE, EVENTS_TYPE))
            if form == EVENTS_TYPE:
                return await self._stream(request)
            return await self._result(request, form)
        except HTTPException as error:
            self._sockets.count_error("http", InvalidRequest.code)
            faults = error_list(InvalidRequest(error.detail))
            return _json({"errors": faults}, _json_form(form), error.status_code)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return self._refused(error, _json_form(form))

    async def _result(self, request: Request, form: str) -> ASGIApp:
        """Return the answer to a query."""
        asked = asked_of(await self._asked(request))
        catalog = self.catalog(catalog_of(request))
        prepared = await catalog.prepare(asked, caller_of(request))
        if prepared.is_subscription:
            # A client that accepts JSON and event streams gets a stream for a subscription.
            if EVENTS_TYPE in request.headers.get("accept", "").lower():
                return await self._stream(request, asked)
            raise InvalidRequest(
                f"subscriptions are served at this path by WebSocket, sub-protocol {SUBPROTOCOL}, and as "
                f"an event stream: Accept: {EVENTS_TYPE}"
            )
        return self._data(await catalog.execute(prepared, over_http(GRAPHQL, request)), form)

    async def _stream(self, request: Request, asked: Asked | None = None) -> ASGIApp:
        """Return an event stream for one operation."""
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        try:
            if event_streams.is_over(request):
                return Response(status_code=204)
            asked = asked or asked_of(await self._asked(request))
            catalog = self.catalog(catalog_of(request))
            return await event_streams.answer(request, asked, catalog, self._sockets)
        except ClientDisconnect:
            raise
        except Exception as error:
            refused = event_streams.refused(request, error, self._sockets)
            if refused is None:
                raise
            return refused

    def _refused(self, error: Exception, form: str) -> Response:
        """Log and count an error, and return a response without data.

        This is a separate function because the frame that caught an error must not refer to it: the error's
        traceback refers to that frame, which would be a reference cycle.
        """
        found = logged(error, _log)
        self._sockets.count_error("http", found.code)
        status = problem(found)["status"]
        assert isinstance(status, int)
        answer = _json({"errors": error_list(found)}, form, status)
        if isinstance(found, QuotaExceeded):
            answer.headers["Retry-After"] = retry_after(found)
        return answer

    def _data(self, body: bytes, form: str) -> ASGIApp:
        """Return a response with data; a large body is sent in pieces, each under the send deadline."""
        if len(body) <= CHUNK_SIZE:
            return Response(body, 200, _HEADERS, form)
        headers = {**_HEADERS, "Content-Type": form}
        return StreamedAnswer(in_chunks(body), self._sockets, headers, whole_bytes=len(body))

    async def _asked(self, request: Request) -> object:
        """Return the members of a GraphQL request, from the body of a POST or the URL of a GET."""
        if request.method == "POST":
            return await body(request, self._settings)
        value: dict[str, Any] = {}
        for name, text in parameters(request):
            if name in value:
                raise InvalidRequest(f"{name[:60]}: given twice")
            value[name] = decode(text, name) if name in ("variables", "extensions") else text
        return value


def _json_form(form: str) -> str:
    """Return the media type for an error response: JSON if an event stream was accepted."""
    return RESPONSE_TYPE if form == EVENTS_TYPE else form


def _json(value: dict[str, Any], form: str, status: int) -> Response:
    return Response(msgspec.json.encode(value), status, _HEADERS, form)


async def _page(root: str) -> Response:
    """Return GraphiQL's page; ``root`` is the relative path from the page to ``/v1/``."""
    return await _ASSETS.page("page.html", root)


async def _asset(request: Request) -> Response:
    """Answer ``/v1/graphiql/{name}``."""
    return await _ASSETS.answer(request)
