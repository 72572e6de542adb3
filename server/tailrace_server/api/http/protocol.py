"""Uvicorn's HTTP protocol, guarded against peers that send no request, send too much, or do not read.

::

    connected ──▶ waiting for a request's head ──▶ request under way ──▶ answered ──▶ waiting …
                    10 s: request_head                answer unread for the send deadline: send_deadline

Uvicorn waits without limit for the first request and for the rest of a request's head; its keep-alive timer
covers idle connections only. Streamed responses enforce the send deadline themselves (api/http/streaming.py)
and log it. The deadline here covers all other responses. The bytes of a request are charged to the inbound
budget until the response begins.

As in api/websocket/protocol.py, private names of uvicorn are used, and its version is pinned.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailrace.errors import InvalidRequest, forget_frames
from tailrace_server.api.byte_budget import CONNECTION_BYTES, INBOUND
from tailrace_server.api.connection_age import GUARD
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_refusal
from tailrace_server.api.send_guard import bound_tls_buffers, drop, is_encrypted, pieces

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from tailrace_server.api.byte_budget import ByteBudget, ReadTurns
    from tailrace_server.api.connection_age import ConnectionAge

_AFTER_S: Final = 5.0
"""Seconds between the send deadline and the cut by this guard: a streamed response cuts itself first."""
_LINGER_S: Final = 2.0
"""Seconds that a peer has to read why its request was refused; what it sends meanwhile is dropped."""


class _Flow(FlowControl):
    """Uvicorn's flow control; it does not resume reading while the connection waits for its turn."""

    held = False
    """True while the connection waits for its turn to be read."""

    def resume_reading(self) -> None:
        """Resume reading now, or when the connection is released."""
        if self.held:
            self.read_paused = False
        else:
            super().resume_reading()


class GuardedHttpProtocol(H11Protocol):
    """The protocol of one HTTP connection. `configured` makes the subclass with the settings of a server."""

    head_s: float
    """Seconds that a peer has to send the whole head of a request."""
    unread_s: float
    """Seconds that a response may stay unread before the connection is cut."""
    on_cut: Callable[[str], None]
    """Function that is called with the name of the guard that ends a connection."""
    inbound: ByteBudget
    age: ConnectionAge
    turns: ReadTurns
    flow: _Flow

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Pass uvicorn's arguments on; no timer runs yet."""
        super().__init__(*arguments, **options)
        self._head: asyncio.TimerHandle | None = None
        """Timer of a request's head; after a refusal, of the last response."""
        self._unread: asyncio.TimerHandle | None = None
        """Timer of the send deadline; None while the transport is writable."""
        self._upgraded = False
        self._received = 0
        """Received bytes of the current request, including its head; 0 once its response has begun."""
        self._refused = False
        """True once a request was refused: further input is dropped, and the connection ends."""
        self._ageing: asyncio.TimerHandle | None = None
        self.aged = False
        """True once the connection has reached its age: the current response is its last."""
        self.on_age: Callable[[], None] | None = None
        """Function that ends the current streamed response when the connection reaches its age."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request: bound the buffers, charge the connection and start its timers."""
        super().connection_made(transport)
        bound_tls_buffers(transport)
        self.flow = _Flow(transport)
        self._watch_for_request()
        self.inbound.hold(self, CONNECTION_BYTES)
        self._ageing = self.age.call_later(self._grow_old)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and drop references that would keep this object in memory."""
        self._stop_head()
        self._stop_unread()
        self._stop_ageing()
        self.on_age = None
        self.inbound.hold(self, 0)
        super().connection_lost(exc)
        # The response cycle refers to this object by its callback: break the cycle of references.
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        # After a reset uvicorn leaves its keep-alive timer running.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, update the charge, and start or stop the timer of the request's head."""
        if self._refused:
            return
        self._received += len(data)
        super().data_received(data)
        self._watch_for_request()
        self._charge()
        if not self._upgraded:
            self.turns.took(self, len(data))

    @property
    def held(self) -> bool:
        """True while reading is paused until this connection's turn."""
        return self.flow.held

    def hold_reading(self) -> None:
        """Pause reading until ``release_reading`` is called."""
        self.flow.held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def release_reading(self) -> None:
        """Resume reading, unless uvicorn has paused it until the handler takes the received bytes."""
        self.flow.held = False
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def on_response_complete(self) -> None:
        """Reset the state of the request: its response is complete."""
        self.on_age = None
        self.answer_begins()
        super().on_response_complete()

    def answer_begins(self) -> None:
        """Stop charging the request: it has been processed, and its response begins."""
        self._received = 0
        self._charge()

    def _charge(self) -> None:
        """Charge received bytes that are not processed yet to the inbound budget."""
        if self._upgraded or self._refused or self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        kept = len(self.conn._receive_buffer) + (0 if cycle is None else len(cycle.body))
        # A connection without a request in progress is charged too: peers could open many of them.
        waits = cycle is None or cycle.response_complete
        self.inbound.hold(self, max(self._received, kept) + waits * CONNECTION_BYTES)

    def refuse(self) -> None:
        """Answer the current request with 413; cut a connection that has none or whose response has begun."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_started or self.conn.our_state is not h11.SEND_RESPONSE:
            self._cut(INBOUND)
            return
        self.on_cut(INBOUND)
        self._refused = True
        error = InvalidRequest(
            f"all requests that are being received exceed {self.inbound.bytes_max} bytes (1/8 of the "
            "server's memory), and this one was large or slow; send it again"
        )
        body = encoded_refusal(error, 413)
        head = [("content-type", PROBLEM_TYPE), ("content-length", str(len(body)))]
        response = h11.Response(status_code=413, headers=[*head, ("connection", "close")])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        # Do not close yet: a close while received data is unread would reset the connection, and the peer would
        # lose the response.
        self._leave_handler()
        self._linger()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over to the WebSocket protocol, which has its own guards."""
        self._upgraded = True
        self._stop_ageing()  # the socket has an age of its own
        self.inbound.hold(self, 0)
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, also in the body of a request that is being handled or already answered."""
        # 1. A response that has begun cannot be replaced, so close the connection.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        # 2. The handler of this request must not send a second response.
        self._refused = True
        self._leave_handler()
        self._linger()
        # 3. The traceback of h11's error refers to frames that refer to this object: break the cycle.
        if (error := sys.exception()) is not None:
            forget_frames(error)
            del error

    def _leave_handler(self) -> None:
        """Make the handler of the current request see a disconnected peer."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.body = bytearray()
            cycle.disconnected = True
            cycle.message_event.set()

    def _linger(self) -> None:
        """Give the peer `_LINGER_S` to read the last response, then cut the connection."""
        self._stop_head()
        self._head = self.loop.call_later(_LINGER_S, drop, self.transport)

    def pause_writing(self) -> None:
        """Start the timer of the send deadline: the client does not read."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_s, self._cut, "send_deadline")

    def resume_writing(self) -> None:
        """Cancel the timer of the send deadline: the client reads again."""
        self._stop_unread()
        super().resume_writing()

    def _watch_for_request(self) -> None:
        """Run the timer of a request's head while no request is being handled."""
        cycle: RequestResponseCycle | None = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        if self._refused:
            return
        if self._upgraded or under_way or self.transport.is_closing():
            self._stop_head()
        # While a connection is idle between two requests, uvicorn's keep-alive timer runs instead.
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

    def _stop_ageing(self) -> None:
        if self._ageing is not None:
            self._ageing.cancel()
            self._ageing = None

    def _grow_old(self) -> None:
        """End the connection because of its age: close it if idle, else after the current response."""
        self.aged = True
        self._ageing = self.loop.call_later(self.age.grace_s, self._cut, GUARD)
        # A first request that is still arriving is answered; `aged` makes that response the last.
        if not self._received or self.cycle is not None:
            # Uvicorn closes at once if idle, else after the current response.
            self.shutdown()
        if self.on_age is not None:
            self.on_age()

    def _cut(self, guard: str) -> None:
        if not self.transport.is_closing():
            self.on_cut(guard)
            drop(self.transport)


class AnsweredConnection:
    """The connection of one request, for responses that write uncopied, abort, or end with its age."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        """Bind to uvicorn's side of the request."""
        self._cycle = cycle

    def begin(self) -> None:
        """Note that the response begins, so that the request is no longer charged."""
        if (protocol := self._protocol()) is not None:
            protocol.answer_begins()

    @property
    def aged(self) -> bool:
        """True if the connection has reached its age, so that this response should be its last."""
        protocol = self._protocol()
        return protocol is not None and protocol.aged

    def at_age(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the connection reaches its age, unless the response is complete before."""
        if (protocol := self._protocol()) is not None:
            protocol.on_age = end
            if protocol.aged:
                end()

    def _protocol(self) -> GuardedHttpProtocol | None:
        found = getattr(self._cycle.on_response, "__self__", None)
        return found if isinstance(found, GuardedHttpProtocol) else None

    def abort(self) -> None:
        """Drop the connection with all unsent bytes."""
        drop(self._cycle.transport)

    async def write_uncopied(self, data: bytes | memoryview) -> None:
        """Write a part of the body without copying it; return when the kernel has taken it.

        Uvicorn's ``send`` would copy the part to join it with the chunk's head, and return while the transport
        still holds it.
        """
        cycle = self._cycle
        if not cycle.disconnected:
            await cycle.flow.drain()
        for piece in pieces((data,)) if is_encrypted(cycle.transport) else ((data,),):
            if cycle.disconnected:
                return
            event = h11.Data(data=piece[0])  # type: ignore[arg-type]  # of a memoryview it asks the length only
            parts = cycle.conn.send_with_data_passthrough(event)
            assert parts is not None
            cycle.transport.writelines(parts)
            await cycle.flow.drain()


def configured(
    *,
    head_s: float,
    send_deadline_s: float,
    on_cut: Callable[[str], None],
    inbound: ByteBudget,
    age: ConnectionAge,
    turns: ReadTurns,
) -> type[GuardedHttpProtocol]:
    """Return the subclass of `GuardedHttpProtocol` with the settings of one server."""
    members = {
        "head_s": head_s,
        "unread_s": send_deadline_s + _AFTER_S,
        "on_cut": staticmethod(on_cut),
        "inbound": inbound,
        "age": age,
        "turns": turns,
    }
    return type("GuardedHttpProtocol", (GuardedHttpProtocol,), members)
