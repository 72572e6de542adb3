"""Server-sent events: the response that carries one subscription, and the response that makes a browser retry.

A face supplies the text of each event (`EventWords`); everything else is shared by all faces.

A browser's ``EventSource`` treats every status except 200 as final and does not reconnect. So a request that
may succeed later is answered by a stream with status 200 that begins with ``retry`` and ends at once.
"""

from __future__ import annotations

import random
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from starlette.responses import Response

from tailrace.capture import Heartbeat, StateComplete
from tailrace_server.api.connection_age import end_for_age
from tailrace_server.api.errors import http_status, logged
from tailrace_server.api.http.streaming import StreamedAnswer
from tailrace_server.api.send_guard import on_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from tailrace.cursor import Cursor
    from tailrace.errors import TailraceError
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.live.options import SubscribeAcknowledgement
    from tailrace_server.live.subscription import Subscription


EVENTS_TYPE: Final = "text/event-stream"
_AGAIN_MIN_MS: Final = 1_000
_AGAIN_MAX_MS: Final = 5_000
LAST_EVENT_ID: Final = ("lastEventId", "Last-Event-ID")
"""URL parameters that replace the header ``Last-Event-ID``: a new ``EventSource`` cannot set headers."""
HEADERS: Final = {
    "Content-Type": EVENTS_TYPE,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # Else nginx would buffer events.
}


_log = structlog.get_logger("tailrace.rest")


class EventWords(Protocol):
    """The encoder of one face's events. Captures need none: the subscription's codec encodes them as events."""

    def began(self, acknowledgement: SubscribeAcknowledgement, id_line: bytes) -> bytes:
        """Return the first event, which acknowledges the subscription."""

    def heartbeat(self, value: Heartbeat, id_line: bytes) -> bytes:
        """Return the event of a heartbeat."""

    def completed(self, value: StateComplete, id_line: bytes) -> bytes:
        """Return the event that follows the last row of an initial state."""

    def ended(self, error: TailraceError) -> bytes:
        """Return the last event, which reports the error that ended the subscription."""


class EventStream:
    """The response that carries one subscription and ends when the subscription ends."""

    def __init__(self, subscription: Subscription, sockets: Sockets, words: EventWords) -> None:
        """Take over a subscription, and its place among the live connections (`Sockets.enter`)."""
        self._subscription = subscription
        self._sockets = sockets
        self._words = words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the subscription ends or the reader disconnects."""
        answer = StreamedAnswer(
            self._chunks(),
            self._sockets,
            HEADERS,
            on_age=partial(end_for_age, self._subscription),
        )

        # A subscription that ends to free memory must not wait for a write that its reader does not read.
        self._subscription.on_end = on_end(answer.interrupt)
        try:
            await answer(scope, receive, send)
        finally:
            self._subscription.cancel()
            self._sockets.leave()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        acknowledgement = self._subscription.acknowledgement
        yield self._words.began(acknowledgement, self._id(acknowledgement.resume_cursor))
        try:
            while True:
                message = await self._subscription.receive()
                if isinstance(message, Heartbeat):
                    yield self._words.heartbeat(message, self._id(message.cursor))
                elif isinstance(message, StateComplete):
                    yield self._words.completed(message, self._id(message.cursor))
                else:
                    yield message.data
                # Free the message before waiting: the next one may need its memory.
                del message
        except Exception as error:
            yield self._last_event(error)

    def _last_event(self, error: Exception) -> bytes:
        """Log and count an error, and return its event.

        This is a separate function because the frame that caught an error must not refer to it: the error's
        traceback refers to that frame, which would be a reference cycle.
        """
        found = logged(error, _log)
        self._sockets.count_error("http", found.code)
        return self._words.ended(found)

    def _id(self, cursor: Cursor) -> bytes:
        """Return the ``id`` line of an event, with the cursor.

        Empty while the subscription waits for a start time in the future: a client that reconnects must send
        the time again, not a cursor.
        """
        return b"" if self._subscription.awaits_time else b"id: %s\n" % str(cursor).encode()


def last_event_id(request: Request, given: Iterable[tuple[str, str]]) -> str | None:
    """Return the last event id that a client has seen; the header is newer than the URL parameters."""
    header = request.headers.get("last-event-id")
    return header or next((text for name, text in given if name in LAST_EVENT_ID and text), None)


def may_pass(error: TailraceError) -> bool:
    """Return True if the same request may succeed later: the error is not the client's fault."""
    return error.retriable or http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR


def retry_line() -> bytes:
    """Return the ``retry`` line with a random delay, so that many browsers do not reconnect at once."""
    return b"retry: %d\n" % random.randint(_AGAIN_MIN_MS, _AGAIN_MAX_MS)


def later(event: str, data: bytes) -> Response:
    """Return a response after which a browser reconnects: one event with the reason."""
    body = b"%bevent: %b\ndata: %b\n\n" % (retry_line(), event.encode(), data)
    return Response(body, headers=HEADERS)
