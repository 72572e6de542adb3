"""The resources of named subscriptions (docs/named-subscriptions.md).

::

    POST    …/subscriptions                      create: {"name": "billing", "criteria": […], "holdMs": …}
    GET     …/subscriptions                      {"subscriptions": […]}
    GET     …/subscriptions/billing              the named subscription
    DELETE  …/subscriptions/billing              delete; answered with 204
    POST    …/subscriptions/billing/reset        {"to": "earliest"}
    POST    …/subscriptions/billing/pause        no body; also …/resume
    POST    …/subscriptions/billing/acknowledge  {"epoch": 3, "cursor": "1.…"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from tailrace.errors import InvalidRequest
from tailrace.v1.named_subscription_pb2 import (
    AcknowledgeRequest,
    CreateSubscriptionRequest,
    ResetSubscriptionRequest,
)
from tailrace_server.api import requests, responses
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import asked_body, no_parameters
from tailrace_server.api.json_requests import from_json, in_json_names
from tailrace_server.api.peers import REST, over_http

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.named.requests import NamedView

    Handler = Callable[[Request], Awaitable[ASGIApp]]

_Request = TypeVar("_Request", bound="Message")

IN_PATH_OF_NAME = ("catalog", "name")
"""Request fields whose values are in the path, not in the body."""


class NamedResources:
    """The handlers of named subscriptions."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        """Bind the handlers to an engine."""
        self._engine = engine
        self._settings = settings

    def routes(self, answered: Callable[[Handler], Handler]) -> list[BaseRoute]:
        """Return the routes; ``answered`` wraps a handler so that its exceptions become responses."""
        base = "/v1/catalogs/{catalog}/subscriptions"
        found: list[tuple[str, str, Handler]] = [
            ("GET", "", self._list),
            ("POST", "", self._create),
            ("GET", "/{name}", self._get),
            ("DELETE", "/{name}", self._delete),
            ("POST", "/{name}/reset", self._reset),
            ("POST", "/{name}/pause", self._pause),
            ("POST", "/{name}/resume", self._resume),
            ("POST", "/{name}/acknowledge", self._acknowledge),
        ]
        methods: dict[str, dict[str, Handler]] = {}
        for method, path, handler in found:
            methods.setdefault(base + path, {})[method] = handler
        # One route for each path: then the 405 response for another method lists all methods of the path.
        return [
            Route(path, answered(_by_method(handlers)), methods=[*handlers])
            for path, handlers in methods.items()
        ]

    async def _list(self, request: Request) -> ASGIApp:
        no_parameters(request)
        found = await self._engine.named.list(caller_of(request), _catalog(request))
        return _json({"subscriptions": [_form(each) for each in found]})

    async def _create(self, request: Request) -> ASGIApp:
        asked = await self._asked(CreateSubscriptionRequest, request, ("catalog",))
        try:
            wanted = requests.create(asked)
        except InvalidRequest as error:
            raise in_json_names(error) from None
        peer = over_http(REST, request)
        named = self._engine.named
        found = await named.create(caller_of(request), _catalog(request), wanted, peer)
        return _json(_form(found), 201)

    async def _get(self, request: Request) -> ASGIApp:
        no_parameters(request)
        return _json(_form(await self._engine.named.get(*_of(request))))

    async def _delete(self, request: Request) -> ASGIApp:
        no_parameters(request)
        await self._engine.named.delete(*_of(request), over_http(REST, request))
        return Response(status_code=204)

    async def _reset(self, request: Request) -> ASGIApp:
        asked = await self._asked(ResetSubscriptionRequest, request, IN_PATH_OF_NAME)
        peer = over_http(REST, request)
        found = await self._engine.named.reset(*_of(request), asked.to, peer)
        return _json(_form(found))

    async def _pause(self, request: Request) -> ASGIApp:
        return await self._paused(request, paused=True)

    async def _resume(self, request: Request) -> ASGIApp:
        return await self._paused(request, paused=False)

    async def _paused(self, request: Request, *, paused: bool) -> ASGIApp:
        no_parameters(request)
        peer = over_http(REST, request)
        found = await self._engine.named.pause(*_of(request), peer, paused=paused)
        return _json(_form(found))

    async def _acknowledge(self, request: Request) -> ASGIApp:
        asked = await self._asked(AcknowledgeRequest, request, IN_PATH_OF_NAME)
        _, epoch, cursor = requests.acknowledgement(asked)
        durable = await self._engine.named.acknowledge(*_of(request), epoch, cursor)
        return _json({"cursor": str(durable)})

    async def _asked(
        self, kind: type[_Request], request: Request, without: tuple[str, ...]
    ) -> _Request:
        value = await asked_body(request, self._settings)
        criteria_max = self._engine.settings.criteria
        return from_json(kind, value, criteria_max=criteria_max, without=without)


def _by_method(handlers: dict[str, Handler]) -> Handler:
    async def answer(request: Request) -> ASGIApp:
        # Starlette accepts HEAD wherever GET is accepted.
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return answer


def _catalog(request: Request) -> str:
    name: str = request.path_params["catalog"]
    return name


def _of(request: Request) -> tuple[Any, str, str]:
    """Return the caller of a request, and the catalog and subscription name in its path."""
    return caller_of(request), _catalog(request), request.path_params["name"]


def _form(value: NamedView) -> dict[str, Any]:
    return responses.as_json(responses.named_subscription(value))


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value),
        status,
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )
