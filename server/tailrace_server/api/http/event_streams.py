"""Event streams: the answer that carries one subscription, and the answer after which a browser asks again.

A face gives the text of each event (`EventWords`); the rest is the same for all faces.

An ``EventSource`` takes every answer but 200 for final and never asks again. So a request that may succeed
later is answered by a stream that begins with ``retry`` and ends at once.
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
"""Parameters that replace the header: a page that makes a new ``EventSource`` cannot set headers."""
HEADERS: Final = {
    "Content-Type": EVENTS_TYPE,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


_log = structlog.get_logger("tailrace.rest")


class EventWords(Protocol):
    """The texts of one face's events; the subscription's captures come as events already."""

    def began(self, acknowledgement: SubscribeAcknowledgement, id_line: bytes) -> bytes:
        """Return the first event."""

    def heartbeat(self, value: Heartbeat, id_line: bytes) -> bytes:
        """Return what a heartbeat becomes."""

    def completed(self, value: StateComplete, id_line: bytes) -> bytes:
        """Return the event behind the last row of a state."""

    def ended(self, error: TailraceError) -> bytes:
        """Return the last words."""


class EventStream:
    """The answer that carries one subscription; it ends with it."""

    def __init__(self, subscription: Subscription, sockets: Sockets, words: EventWords) -> None:
        """Take over a subscription, and its place among the live connections."""
        self._subscription = subscription
        self._sockets = sockets
        self._words = words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the subscription ends or the reader leaves."""
        answer = StreamedAnswer(
            self._chunks(),
            self._sockets,
            HEADERS,
            on_age=partial(end_for_age, self._subscription),
        )

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
                del message  # the next one may have to wait for the room of this one
        except Exception as error:
            yield self._last_event(error)

    def _last_event(self, error: Exception) -> bytes:
        """Log and count an error, and return its event.

        In a function of its own: a frame that an error has passed through may not keep it.
        """
        found = logged(error, _log)
        self._sockets.count_error("http", found.code)
        return self._words.ended(found)

    def _id(self, cursor: Cursor) -> bytes:
        """Return the line of an event's id; none before a start by time, as the client names the time again."""
        return b"" if self._subscription.awaits_time else b"id: %s\n" % str(cursor).encode()


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
