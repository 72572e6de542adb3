r"""An event stream for each operation: graphql-sse in its distinct connections mode.

::

    : begins at\nid: 1.….5.2147483647.2147483647\n\n          moves what a browser resumes by; no event
    id: 1.….6.0.0\nevent: next\ndata: {"data":{…}}\n\n          one change an event
    : heartbeat\nid: …\n\n                                     keeps the connection, and moves as above
    event: next\ndata: {"errors":[…]}\n\n                      what it ends with, if not well
    id: complete\nevent: complete\ndata: \n\n                  nothing follows

A browser that reconnects sends the last id, and goes on behind it whatever start its document names. One that
sends ``complete`` has all there was, and is answered 204, which an ``EventSource`` takes for the end.

An ``EventSource`` only sends GETs. So one that may succeed later ends without ``complete``, and the browser
comes back; a POST is answered by its status, or by ``complete``, since its client reads both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.api.errors import HTTP_OWN_RETRIABLE, logged
from tailrace_server.api.graphql.errors import error_list
from tailrace_server.api.graphql.websocket import (
    acknowledgement_signal,
    heartbeat_signal,
    in_one_line,
    state_complete_signal,
)
from tailrace_server.api.http.event_streams import (
    HEADERS,
    EventStream,
    last_event_id,
    later,
    may_pass,
    retry_line,
)
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import parameters
from tailrace_server.api.http.streaming import StreamedAnswer
from tailrace_server.api.peers import GRAPHQL, GRAPHQL_EVENTS, over_http

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from tailrace.capture import Heartbeat, StateComplete
    from tailrace_server.api.graphql.catalog import Asked, GraphqlCatalog
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.live.options import SubscribeAcknowledgement

_log = structlog.get_logger("tailrace.graphql")

COMPLETE: Final = "complete"
"""The id of the last event."""
_COMPLETE_EVENT: Final = b"id: complete\nevent: complete\ndata: \n\n"
_CHUNK_BYTES: Final = 64 << 10


def is_over(request: Request) -> bool:
    """Return whether a browser comes back to a stream that it has had all of."""
    return last_event_id(request, parameters(request)) == COMPLETE


async def answer(
    request: Request, asked: Asked, catalog: GraphqlCatalog, sockets: Sockets
) -> ASGIApp:
    """Answer a request with the event stream of its operation.

    Raises:
        TailraceError: The operation is refused.
        HTTPException: There is no room.
    """
    prepared = await catalog.prepare(asked, caller_of(request))
    if not prepared.is_subscription:
        found = await catalog.execute(prepared, over_http(GRAPHQL, request))
        return StreamedAnswer(_whole(found), sockets, HEADERS, whole_bytes=len(found))
    if not sockets.enter():
        raise HTTPException(429, str(sockets.refusal()))
    try:
        after = last_event_id(request, parameters(request))
        peer = over_http(GRAPHQL_EVENTS, request)
        live = await catalog.begin(prepared, peer, as_events=True, after=after)
    except BaseException:
        sockets.leave()
        raise
    catalog.documents.compiled += 1
    words = _ResultWords(
        catalog, live.key if live.signalled else None, comes_back=comes_back(request)
    )
    return EventStream(live.subscription, sockets, words)


def refused(request: Request, error: Exception, sockets: Sockets) -> Response | None:
    """Return the stream with the reason why there is no other; None if the status has to say it.

    In a function of its own: a frame that an error has passed through may not keep it.
    """
    if isinstance(error, HTTPException):
        if not comes_back(request) or error.status_code not in HTTP_OWN_RETRIABLE:
            return None
        sockets.count_error("http", InvalidRequest.code)
        return later("next", _errors(InvalidRequest(error.detail), retriable=True))
    found = logged(error, _log)
    if may_pass(found) and not comes_back(request):
        return None
    sockets.count_error("http", found.code)
    if may_pass(found):
        return later("next", _errors(found))
    return Response(_next(_errors(found)) + _COMPLETE_EVENT, headers=HEADERS)


def comes_back(request: Request) -> bool:
    """Return whether whoever asks does so again when the stream ends without ``complete``."""
    return request.method == "GET"


class _ResultWords:
    """The events around the changes."""

    def __init__(self, catalog: GraphqlCatalog, signalled: str | None, *, comes_back: bool) -> None:
        """Keep who speaks, and to whom; ``signalled`` is the key of a field that asked for signals."""
        self._catalog = catalog
        self._signalled = signalled
        self._comes_back = comes_back

    def began(self, acknowledgement: SubscribeAcknowledgement, id_line: bytes) -> bytes:
        if self._signalled is None:
            return b": begins at\n%b\n" % id_line
        found = acknowledgement_signal(self._signalled, acknowledgement, self._catalog)
        return id_line + _next(found)

    def heartbeat(self, value: Heartbeat, id_line: bytes) -> bytes:
        if self._signalled is None:
            return b": heartbeat\n%b\n" % id_line
        return id_line + _next(heartbeat_signal(self._signalled, value))

    def completed(self, value: StateComplete, id_line: bytes) -> bytes:
        if self._signalled is None:
            return b": the state is complete\n%b\n" % id_line
        return id_line + _next(state_complete_signal(self._signalled, value))

    def ended(self, error: TailraceError) -> bytes:
        if self._comes_back and may_pass(error):
            return retry_line() + _next(_errors(error))
        return _next(_errors(error)) + _COMPLETE_EVENT


def _next(payload: bytes) -> bytes:
    return b"event: next\ndata: %b\n\n" % payload


def _errors(error: TailraceError, *, retriable: bool = False) -> bytes:
    faults = error_list(error)
    if retriable:  # HTTP's own refusal, whose error says otherwise
        faults[0]["extensions"]["retriable"] = True
    return msgspec.json.encode({"errors": faults})


async def _whole(answer: bytes) -> AsyncGenerator[bytes, None]:
    """Send the result of a query; a large one in pieces, and each piece has the send deadline."""
    event = _next(in_one_line(answer))
    for start in range(0, len(event), _CHUNK_BYTES):
        yield event[start : start + _CHUNK_BYTES]
    yield _COMPLETE_EVENT
