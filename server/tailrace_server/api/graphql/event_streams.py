r"""GraphQL operations as server-sent events: graphql-sse in distinct connections mode, one stream an operation.

::

    : begins at\nid: 1.….5.2147483647.2147483647\n\n          sets the id to resume after; not an event
    id: 1.….6.0.0\nevent: next\ndata: {"data":{…}}\n\n          one event for each change
    : heartbeat\nid: …\n\n                                     keeps the connection open, and sets the id
    event: next\ndata: {"errors":[…]}\n\n                      the error that ends the operation
    id: complete\nevent: complete\ndata: \n\n                  the end of the stream

A browser that reconnects sends the last id. The subscription resumes after that id, whatever start its document
names. If the id is ``complete``, the browser has received everything; it is answered with status 204, after
which an ``EventSource`` does not reconnect.

An ``EventSource`` sends only GETs. So if a GET fails and may succeed later, its stream ends without
``complete``, and the browser reconnects. A POST is answered by a status or by ``complete``, because its client
can read both.
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
from tailrace_server.api.http.streaming import StreamedAnswer, in_chunks
from tailrace_server.api.peers import GRAPHQL, GRAPHQL_EVENTS, over_http

if TYPE_CHECKING:
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


def is_over(request: Request) -> bool:
    """Return True if a browser reconnects to a stream that it has received completely."""
    return last_event_id(request, parameters(request)) == COMPLETE


async def answer(
    request: Request, asked: Asked, catalog: GraphqlCatalog, sockets: Sockets
) -> ASGIApp:
    """Answer a request with the event stream of its operation.

    Raises:
        TailraceError: The operation is refused.
        HTTPException: 429: too many live connections are open.
    """
    # A query is answered by a stream too: graphql-sse clients send all operations this way.
    prepared = await catalog.prepare(asked, caller_of(request))
    if not prepared.is_subscription:
        found = await catalog.execute(prepared, over_http(GRAPHQL, request))
        events = _next(in_one_line(found), _COMPLETE_EVENT)
        return StreamedAnswer(in_chunks(events), sockets, HEADERS, whole_bytes=len(found))
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
    """Return a stream that reports an error; None if the error must be answered by an HTTP status.

    This is a separate function because the frame that caught an error must not refer to it: the error's
    traceback refers to that frame, which would be a reference cycle.
    """
    if isinstance(error, HTTPException):
        if not comes_back(request) or error.status_code not in HTTP_OWN_RETRIABLE:
            return None
        sockets.count_error("http", InvalidRequest.code)
        return later("next", _errors(InvalidRequest(error.detail), retriable=True))
    found = logged(error, _log)
    # A POST's client reads the status, which says whether to retry.
    if may_pass(found) and not comes_back(request):
        return None
    sockets.count_error("http", found.code)
    # A browser reconnects after a stream without `complete`, and stops after one with it.
    if may_pass(found):
        return later("next", _errors(found))
    return Response(_next(_errors(found), _COMPLETE_EVENT), headers=HEADERS)


def comes_back(request: Request) -> bool:
    """Return True if the client reconnects when the stream ends without ``complete``: it has sent a GET."""
    return request.method == "GET"


class _ResultWords:
    """Encoder of the events other than changes."""

    def __init__(self, catalog: GraphqlCatalog, signalled: str | None, *, comes_back: bool) -> None:
        """Bind to a catalog and a client.

        Args:
            catalog: The catalog of the stream.
            signalled: Response key of the field if the client requested signals; else None.
            comes_back: True if the client reconnects when the stream ends without ``complete``.
        """
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
        return _next(_errors(error), _COMPLETE_EVENT)


def _next(payload: bytes, following: bytes = b"") -> bytes:
    # In one step: a payload may be megabytes.
    return b"event: next\ndata: %b\n\n%b" % (payload, following)


def _errors(error: TailraceError, *, retriable: bool = False) -> bytes:
    faults = error_list(error)
    # An `InvalidRequest` that stands for a status such as 429 is retriable, unlike others.
    if retriable:
        faults[0]["extensions"]["retriable"] = True
    return msgspec.json.encode({"errors": faults})
