"""The beginning of every event stream, and the answer by which a browser comes back instead.

An ``EventSource`` takes every answer but 200 for final and never asks again. So one that may be answered
otherwise later is given a stream that ends at once, and begins with ``retry``.
"""

from __future__ import annotations

import random
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from tailrace_server.api.errors import http_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from tailrace.errors import TailraceError

EVENTS_TYPE: Final = "text/event-stream"
_AGAIN_MIN_MS: Final = 1_000
_AGAIN_MAX_MS: Final = 5_000
LAST_EVENT_ID: Final = ("lastEventId", "Last-Event-ID")
"""Parameters that replace the header: a page that makes a new ``EventSource`` cannot set headers."""
HEADERS: Final = {
    "Content-Type": EVENTS_TYPE,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


def last_event_id(request: Request, given: Iterable[tuple[str, str]]) -> str | None:
    """Return the last id that a client has seen; the header is newer than the parameters of the URL."""
    header = request.headers.get("last-event-id")
    return header or next((text for name, text in given if name in LAST_EVENT_ID and text), None)


def may_pass(error: TailraceError) -> bool:
    """Return whether the same request may be answered otherwise later: the fault is not the client's."""
    return error.retriable or http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR


def retry_line() -> bytes:
    """Return the line by which a browser asks again, each of many in a moment of its own."""
    return b"retry: %d\n" % random.randint(_AGAIN_MIN_MS, _AGAIN_MAX_MS)


def later(event: str, data: bytes) -> Response:
    """Return the answer after which a browser asks again: one event, which says why."""
    body = b"%bevent: %b\ndata: %b\n\n" % (retry_line(), event.encode(), data)
    return Response(body, headers=HEADERS)
