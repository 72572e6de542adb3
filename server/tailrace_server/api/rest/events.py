r"""Live changes as server-sent events, for ``EventSource`` and ``curl``.

::

    event: subscribed\nid: 1.….5.2147483647.2147483647\ndata: {"subscriptionId": …}\n\n
    id: 1.….6.0.0\ndata: {"version":6,"index":0,…}\n\n                         one capture an event
    event: heartbeat\nid: …\ndata: {"publishedVersion": …}\n\n
    event: error\ndata: {a Problem Details object}\n\n                         then the stream ends

Every id is a cursor: a browser that reconnects sends the last one as ``Last-Event-ID`` and misses nothing.
There is no demand; the socket's pace is the demand.

An ``EventSource`` takes every answer but 200 for final and never asks again. So a GET that may succeed later is
answered with a stream that ends at once::

    retry: 2718\nevent: error\ndata: {a Problem Details object}\n\n
"""

from __future__ import annotations

import random
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tailrace.capture import Heartbeat
from tailrace.errors import InvalidRequest, SubscriberTooSlow, TailraceError
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api import requests
from tailrace_server.api.connection_age import end_for_age
from tailrace_server.api.errors import (
    HTTP_OWN_RETRIABLE,
    encoded_problem,
    encoded_refusal,
    http_status,
    logged,
)
from tailrace_server.api.json_requests import ELSEWHERE, from_json, from_query, in_json_names
from tailrace_server.api.peers import REST_EVENTS, over_http
from tailrace_server.api.rest import responses
from tailrace_server.api.rest.forms import CaptureForm, form_of, form_of_query
from tailrace_server.api.rest.requests import EVENTS_TYPE, accepted, asked_body, parameters
from tailrace_server.api.rest.streaming import StreamedAnswer
from tailrace_server.capture.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from tailrace.cursor import Cursor
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.capture.delivery.subscription import Subscription
    from tailrace_server.capture.engine import Engine

_log = structlog.get_logger("tailrace.rest")

_AGAIN_MIN_MS: Final = 1_000
_AGAIN_MAX_MS: Final = 5_000
_LAST_EVENT_ID: Final = ("lastEventId", "Last-Event-ID")
"""Parameters that stand for the header."""
_PASSED_OVER: Final = (*_LAST_EVENT_ID, "_")
"""Parameters that say nothing of what is wanted; libraries add ``_`` so that nobody caches the answer."""
_HEADERS: Final = {
    "Content-Type": EVENTS_TYPE,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


async def live(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> Response | EventStream:
    """Answer ``GET`` and ``POST …/changes/live`` with a stream of events.

    Raises:
        TailraceError: Before the stream begins: the subscribe is refused.
        HTTPException: The same, by HTTP itself.
    """
    accepted(request, (EVENTS_TYPE,))
    if request.method == "HEAD":
        return Response(headers=_HEADERS)
    try:
        return await _opened(request, engine, settings, sockets, catalog)
    except HTTPException as error:
        if request.method != "GET" or error.status_code not in HTTP_OWN_RETRIABLE:
            raise
        sockets.count_error("http", InvalidRequest.code)
        return _later(encoded_refusal(InvalidRequest(error.detail), error.status_code))
    except TailraceError as error:
        if request.method != "GET" or not _may_pass(error):
            raise
        found = logged(error, _log)
        sockets.count_error("http", found.code)
        return _later(encoded_problem(found))


def _may_pass(error: TailraceError) -> bool:
    """Return whether the same request may be answered otherwise later: the fault is not the client's."""
    return error.retriable or http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR


def _later(body: bytes) -> Response:
    """Return the answer after which a browser asks again, each of many in a moment of its own."""
    return Response(_ending(body, later=True), headers=_HEADERS)


def _ending(body: bytes, *, later: bool) -> bytes:
    """Return the last event; a browser comes back by itself, after the time that it is given."""
    error = b"event: error\ndata: %s\n\n" % body
    if not later:
        return error
    return b"retry: %d\n%s" % (random.randint(_AGAIN_MIN_MS, _AGAIN_MAX_MS), error)


async def _opened(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> EventStream:
    if not sockets.enter():
        raise HTTPException(429, str(sockets.refusal()))
    try:
        form, message = await _asked(request, settings, engine.settings.criteria)
        try:
            wish = requests.wish(message)
        except InvalidRequest as error:
            raise in_json_names(error) from None
        subscription = await engine.subscribe(
            ANONYMOUS,
            catalog,
            wish.criteria,
            start=wish.start,
            content=wish.content,
            codec=form.events,
            limits=wish.limits,
            peer=over_http(REST_EVENTS, request),
        )
    except BaseException:
        sockets.leave()
        raise
    deadline_s = engine.settings.send_deadline_s
    return EventStream(subscription, sockets, settings.ws_message_bytes, deadline_s)


async def _asked(
    request: Request, settings: HttpSettings, criteria_max: int
) -> tuple[CaptureForm, SubscribeRequest]:
    """Return the form and the request; ``Last-Event-ID`` stands above any start that the URL or body names.

    It may also be a parameter: a page that makes a new ``EventSource`` cannot set headers. The header is newer,
    since the browser sends it when it reconnects.
    """
    last = request.headers.get("last-event-id")
    if request.method == "POST":
        form, value = form_of(await asked_body(request, settings))
        message = from_json(SubscribeRequest, value, criteria_max=criteria_max, without=ELSEWHERE)
    else:
        given = parameters(request)
        last = last or next((text for name, text in given if name in _LAST_EVENT_ID and text), None)
        own = [(name, text) for name, text in given if name not in _PASSED_OVER]
        form, pairs = form_of_query(own)
        message = from_query(SubscribeRequest, pairs, criteria_max=criteria_max, without=ELSEWHERE)
    if last:
        for name in ("since_version", "since_index", "from_time"):
            message.ClearField(name)
        message.after = last
    return form, message


class EventStream:
    """The answer that carries one subscription; it ends with it."""

    def __init__(
        self,
        subscription: Subscription,
        sockets: Sockets,
        request_bytes: int,
        send_deadline_s: float,
    ) -> None:
        """Take over a subscription, and its place among the live connections."""
        self._subscription = subscription
        self._sockets = sockets
        self._first = _event(
            "subscribed",
            self._id(subscription.acknowledgement.resume_cursor),
            responses.acknowledgement(
                subscription.acknowledgement,
                send_deadline_s=send_deadline_s,
                request_bytes=request_bytes,
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the subscription ends or the reader leaves."""
        answer = StreamedAnswer(
            self._chunks(),
            self._sockets,
            _HEADERS,
            on_age=partial(end_for_age, self._subscription),
        )

        def on_end(error: TailraceError) -> None:
            if isinstance(error, SubscriberTooSlow):
                answer.interrupt()

        self._subscription.on_end = on_end
        try:
            await answer(scope, receive, send)
        finally:
            self._subscription.cancel()
            self._sockets.leave()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._first
        try:
            while True:
                message = await self._subscription.receive()
                if isinstance(message, Heartbeat):
                    data = responses.heartbeat(message)
                    yield _event("heartbeat", self._id(message.cursor), data)
                else:
                    yield message.data
                del message  # the next one may have to wait for the room of this one
        except Exception as error:
            yield self._last_event(error)

    def _last_event(self, error: Exception) -> bytes:
        """Log and count an error, and return its event.

        In a function of its own: a frame that an error has passed through may not keep it.
        """
        found = logged(error, _log)
        self._sockets.count_error("http", found.code)
        return _ending(encoded_problem(found), later=_may_pass(found))

    def _id(self, cursor: Cursor) -> bytes:
        """Return the line of an event's id; none before a start by time: who has none names the time again."""
        return b"" if self._subscription.awaits_time else b"id: %s\n" % str(cursor).encode()


def _event(name: str, id_line: bytes, data: dict[str, Any]) -> bytes:
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), id_line, msgspec.json.encode(data))
