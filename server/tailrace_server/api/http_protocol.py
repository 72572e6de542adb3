"""Uvicorn's HTTP protocol, guarded against peers that send no request or do not read the answer.

::

    connected ──▶ waiting for a request's head ──▶ request under way ──▶ answered ──▶ waiting …
                    10 s: request_head                answer unread for the send deadline: send_deadline

Uvicorn waits for the first request for ever, and so it does for the second half of any head; its keep-alive
timer knows idle connections only. Streamed answers have the send deadline themselves (api/rest/streaming.py),
with words for the log; behind it stands this one, for all others.

The names that uvicorn does not publish are the same as in api/websocket/protocol.py: one minor series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_AFTER_S: Final = 5.0
"""How long after the send deadline an answer is cut that did not cut itself."""


class GuardedHttpProtocol(H11Protocol):
    """One connection; ``configured`` makes the class for a server."""

    head_s: float
    unread_s: float
    on_cut: Callable[[str], None]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what uvicorn hands over; no timer runs yet."""
        super().__init__(*arguments, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._watch_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, which would keep this object."""
        self._stop_head()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, and see whether it was a request."""
        super().data_received(data)
        self._watch_for_request()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket's own guards."""
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        """Begin to wait for the reader."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_s, self._cut, "send_deadline")

    def resume_writing(self) -> None:
        """Stop waiting: the reader reads."""
        self._stop_unread()
        super().resume_writing()

    def _watch_for_request(self) -> None:
        """Run the timer of the request's head while no request is under way."""
        cycle: RequestResponseCycle | None = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        if self._upgraded or under_way or self.transport.is_closing():
            self._stop_head()
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._head = self.loop.call_later(self.head_s, self._cut, "request_head")

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut(self, guard: str) -> None:
        if not self.transport.is_closing():
            self.on_cut(guard)
            self.transport.abort()


def configured(
    *, head_s: float, send_deadline_s: float, on_cut: Callable[[str], None]
) -> type[GuardedHttpProtocol]:
    """Return the class for one server."""
    members = {
        "head_s": head_s,
        "unread_s": send_deadline_s + _AFTER_S,
        "on_cut": staticmethod(on_cut),
    }
    return type("GuardedHttpProtocol", (GuardedHttpProtocol,), members)
