r"""Live changes as server-sent events, for ``EventSource`` and ``curl``.

::

    event: subscribed\nid: 1.….5.2147483647.2147483647\ndata: {"subscriptionId": …}\n\n
    id: 1.….6.0.0\ndata: {"version":6,"index":0,…}\n\n                         one capture an event
    event: heartbeat\nid: …\ndata: {"publishedVersion": …}\n\n
    event: error\ndata: {a Problem Details object}\n\n                         then the stream ends

Every event id is a cursor. A browser that reconnects sends the last one as ``Last-Event-ID`` and misses
nothing. There is no explicit demand: events are sent as fast as the client reads.

A GET that fails now but may succeed later is answered with a stream that ends at once::

    retry: 2718\nevent: error\ndata: {a Problem Details object}\n\n
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tailrace.errors import InvalidRequest, TailraceError
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api import requests, responses
from tailrace_server.api.errors import (
    HTTP_OWN_RETRIABLE,
    encoded_problem,
    encoded_refusal,
    logged,
)
from tailrace_server.api.http.event_streams import (
    EVENTS_TYPE,
    HEADERS,
    LAST_EVENT_ID,
    EventStream,
    last_event_id,
    later,
    may_pass,
    retry_line,
)
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import accepted, asked_body, parameters
from tailrace_server.api.json_requests import ELSEWHERE, from_json, from_query, in_json
from tailrace_server.api.peers import REST_EVENTS, over_http
from tailrace_server.api.requests import reading
from tailrace_server.api.rest.forms import CaptureForm, form_of, form_of_query

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from starlette.requests import Request

    from tailrace.capture import Heartbeat, StateComplete
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine
    from tailrace_server.live.options import SubscribeAcknowledgement

_log = structlog.get_logger("tailrace.rest")

_PASSED_OVER: Final = (*LAST_EVENT_ID, "_")
"""URL parameters that are not part of the request; libraries add ``_`` to prevent caching."""


async def live(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> Response | EventStream:
    """Answer ``GET`` and ``POST …/changes/live`` with a stream of events.

    A refused GET that may succeed later is answered by a stream that makes a browser retry.

    Raises:
        TailraceError: The subscribe is refused; nothing has been sent.
        HTTPException: The request is refused by HTTP rules, for example by its media type.
    """
    accepted(request, (EVENTS_TYPE,))
    if request.method == "HEAD":
        return Response(headers=HEADERS)
    try:
        return await _opened(request, engine, settings, sockets, catalog)
    except HTTPException as error:
        if request.method != "GET" or error.status_code not in HTTP_OWN_RETRIABLE:
            raise
        sockets.count_error("http", InvalidRequest.code)
        return later("error", encoded_refusal(InvalidRequest(error.detail), error.status_code))
    except TailraceError as error:
        if request.method != "GET" or not may_pass(error):
            raise
        found = logged(error, _log)
        sockets.count_error("http", found.code)
        return later("error", encoded_problem(found))


async def _opened(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> EventStream:
    # An event stream counts as a live connection, like a WebSocket. The body is read only if there is room.
    if not sockets.enter():
        raise HTTPException(429, str(sockets.refusal()))
    try:
        form, message = await _asked(request, settings, engine.settings.criteria)
        async with reading(engine.turns.many_keys, in_json(requests.wish), message) as wish:
            subscription = await requests.open_subscription(
                engine,
                caller_of(request),
                catalog,
                wish,
                codec=form.events,
                peer=over_http(REST_EVENTS, request),
            )
    except BaseException:
        sockets.leave()
        raise
    # From here on the `EventStream` owns the place of `enter`, and gives it back.
    words = _CaptureWords(settings.ws_message_bytes, engine.settings.send_deadline_s)
    return EventStream(subscription, sockets, words)


async def _asked(
    request: Request, settings: HttpSettings, criteria_max: int
) -> tuple[CaptureForm, SubscribeRequest]:
    """Return the form and the request; ``Last-Event-ID`` overrides any start in the URL or body.

    ``Last-Event-ID`` is a header, or in a GET a URL parameter.
    """
    if request.method == "POST":
        last = last_event_id(request, ())
        form, value = form_of(await asked_body(request, settings))
        message = from_json(SubscribeRequest, value, criteria_max=criteria_max, without=ELSEWHERE)
    else:
        given = parameters(request)
        last = last_event_id(request, given)
        own = [(name, text) for name, text in given if name not in _PASSED_OVER]
        form, pairs = form_of_query(own)
        message = from_query(SubscribeRequest, pairs, criteria_max=criteria_max, without=ELSEWHERE)
    # `after` excludes any other start.
    if last:
        for name in ("since_version", "since_index", "from_time"):
            message.ClearField(name)
        message.after = last
    return form, message


class _CaptureWords:
    """Encoder of the events ``subscribed``, ``heartbeat``, ``stateComplete`` and ``error``."""

    def __init__(self, request_bytes: int, send_deadline_s: float) -> None:
        self._request_bytes = request_bytes
        self._send_deadline_s = send_deadline_s

    def began(self, acknowledgement: SubscribeAcknowledgement, id_line: bytes) -> bytes:
        data = responses.acknowledgement(
            acknowledgement,
            send_deadline_s=self._send_deadline_s,
            request_bytes=self._request_bytes,
        )
        return _event("subscribed", id_line, data)

    def heartbeat(self, value: Heartbeat, id_line: bytes) -> bytes:
        return _event("heartbeat", id_line, responses.heartbeat(value))

    def completed(self, value: StateComplete, id_line: bytes) -> bytes:
        return _event("stateComplete", id_line, responses.state_complete(value))

    def ended(self, error: TailraceError) -> bytes:
        again = retry_line() if may_pass(error) else b""
        return b"%bevent: error\ndata: %b\n\n" % (again, encoded_problem(error))


def _event(name: str, id_line: bytes, message: Message) -> bytes:
    data = msgspec.json.encode(responses.as_json(message))
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), id_line, data)
