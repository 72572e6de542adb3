"""Uvicorn's WebSocket protocol with the guards that it lacks, and methods that write encoded frames.

The guards and their reasons:

- Pings that arrive in one read are answered in one write, and not at all while the peer does not read. Uvicorn
  answers each ping without flow control, so a flood of pings would use unbounded memory. After ``pings_unread``
  dropped answers the connection is cut.
- An unanswered probe (keepalive ping) ends the connection. If the peer still has to read data before the probe,
  it gets the send deadline to answer, and more while it continues to read.
- The number of a message's fragments is bounded, because uvicorn bounds only their bytes. A message that is not
  finished in its time ends the connection, even if pings arrive. Received bytes that are not processed yet are
  charged to the inbound budget.
- Text that is not UTF-8 causes a close code, not a stack trace in the log. A refused handshake is not logged as
  an error.

This module and api/http/protocol.py use private names of uvicorn. Its version is pinned, and a test covers each
name.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

from tailrace.errors import SubscriberTooSlow, forget_frames
from tailrace_server.api.byte_budget import CONNECTION_BYTES, INBOUND, ByteBudget, ReadTurns
from tailrace_server.api.send_guard import (
    ON_ITS_WAY_BYTES,
    TOO_SLOW,
    drop,
    has_unread,
    is_encrypted,
    pieces,
)
from tailrace_server.api.websocket.messages import CloseCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame

_log = structlog.get_logger("tailrace.websocket")

EXTENSION: Final = "tailrace.websocket"
"""Key in the ASGI scope's extensions; its value is the connection's `GuardedProtocol`."""

UNFINISHED: Final = "unfinished_message"
"""Name of the guard against peers that begin a message and do not finish it."""

_FIN: Final = 0x80
_TEXT: Final = 1
_CONTINUATION: Final = 0
"""Opcode of a continuation frame; with `_FIN` and `_TEXT` it makes a frame's first byte (RFC 6455, 5.2)."""
_FRAGMENTS_MAX: Final = 4096
_PROTOCOL_ERROR: Final = 1002
"""Close code of RFC 6455 for frames that are no WebSocket frames."""
_SMALL_BYTES: Final = 4096
"""A connection that holds at most this number of bytes is not charged."""
_FRAGMENT_BYTES: Final = 100
"""Approximate memory of a fragment, in addition to its data."""
_LINGER_S: Final = 5.0
"""Time that a closed connection has to flush its last bytes before it is cut."""


class GuardedProtocol(WebSocketsSansIOProtocol):
    """The protocol of one WebSocket. `configured` makes the subclass with the settings of a server."""

    pings_unread: int = 1_000
    init_message_bytes: int = 64 << 10
    send_deadline_s: float = 60.0
    message_s: float = 10.0
    inbound: ByteBudget = ByteBudget(128 << 20)
    turns: ReadTurns = ReadTurns()
    on_cut: Callable[[str], None] = staticmethod(lambda guard: None)
    """Function that is called with the name of the guard that ends a connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Start with the message limit for peers that have not been admitted yet."""
        super().__init__(*arguments, **options)
        self._pings_dropped = 0
        self._linger: asyncio.TimerHandle | None = None
        self._behind = False
        """True if the write buffers were full since the last pong: a probe may wait behind unread data."""
        self._moved_at = 0.0
        """Loop time at which the transport last became writable again."""
        self._unfinished: asyncio.TimerHandle | None = None
        """Timer that ends the connection if the message being received is not finished within ``message_s``."""
        self._queued: deque[int] = deque()
        """Sizes of the received messages that wait for the application, oldest first."""
        self._in_hand = 0
        """Size of the message that the application is processing; 0 once it waits for the next one."""
        self._charged = 0
        """Bytes that are charged to the inbound budget now."""
        self._begun = 0
        """Total size of large subscribes that are not answered yet."""
        self.held = False
        """True while reading is paused until this connection's turn."""
        self._strange = True
        """True until the peer has been admitted."""
        self._message_bytes_max = self.conn.max_message_size
        self.conn.max_message_size = min(
            self.init_message_bytes, self._message_bytes_max or 1 << 62
        )

    def initialised(self) -> None:
        """Allow messages of full size."""
        self.conn.max_message_size = self._message_bytes_max
        self._strange = False

    def begun(self, nbytes: int) -> None:
        """Add the size of a subscribe to the inbound budget; a negative number releases it."""
        self._begun += nbytes
        self._charge()

    def _charge(self) -> None:
        """Charge received bytes that are not processed yet to the inbound budget."""
        if self.disconnected or self.close_sent:
            return
        fragments = (self.conn.current_size or 0) + _FRAGMENT_BYTES * len(self.frames)
        nbytes = len(self.conn.reader.buffer) + fragments + sum(self._queued) + self._in_hand
        nbytes += self._begun + self._strange * CONNECTION_BYTES
        # A usual message must not cost an update of the budget.
        if nbytes <= _SMALL_BYTES:
            nbytes = 0
        if nbytes != self._charged:
            self._charged = nbytes
            self.inbound.hold(self, nbytes)

    def refuse(self) -> None:
        """Close the connection because the inbound budget is used up and this peer has held the most of it."""
        # 1. Count the guard's name in addition to the close code, which `_fail` counts.
        self.on_cut(INBOUND)
        _log.warning("sender refused", peer=self.client, guard=INBOUND)
        self._fail(CloseCode.TOO_LARGE, "the server is receiving too much at once; send again")
        # 2. Free the received bytes at once; the connection ends when the peer has read the reason.
        self.frames = []
        self.conn.reader.discard()

    def _overdue(self) -> None:
        """End the connection: a message was not finished in time. Wait again if the server paused reading."""
        self._unfinished = None
        if self.read_paused or self.held:
            self._watch_message()
        elif not self.gone:
            self.on_cut(UNFINISHED)
            reason = f"a message was not finished within {self.message_s:g} s"
            self._fail(CloseCode.TOO_SLOW, reason)

    def _watch_message(self) -> None:
        """Run the timer of unfinished messages while a message is unfinished."""
        if self.conn.reader.buffer or self.frames:
            if self._unfinished is None and not self.gone:
                self._unfinished = self.loop.call_later(self.message_s, self._overdue)
        elif self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    @property
    def gone(self) -> bool:
        """True if nothing more can be sent to the peer."""
        return (
            self.disconnected
            or self.close_sent
            or self.conn.state is not OPEN
            or self.transport.is_closing()
        )

    def write_text(self, parts: tuple[bytes | memoryview, ...]) -> Iterator[None]:
        """Write one message from UTF-8 parts without copying them; each step of the iterator writes one frame.

        Before each step the caller waits for ``writable``. A server's frames are not masked, so all receivers
        of a message share the same bytes. Over TLS a large message is split into several frames (`pieces`), and
        pings or a close frame may be sent between them. The caller must run the iterator to its end.
        """
        nbytes = sum(map(len, parts))
        if nbytes <= ON_ITS_WAY_BYTES or not is_encrypted(self.transport):
            self.transport.writelines((_frame_head(nbytes), *parts))
            yield
            return
        opcode = _TEXT
        for piece in pieces(parts):
            size = sum(map(len, piece))
            nbytes -= size
            self.transport.writelines(
                (_frame_head(size, opcode if nbytes else opcode | _FIN), *piece)
            )
            opcode = _CONTINUATION
            yield

    def write_texts(self, head: bytes, payloads: Sequence[bytes | memoryview], tail: bytes) -> None:
        """Write a text frame with head, payload and tail for each payload, all in one write."""
        around = len(head) + len(tail)
        parts: list[bytes | memoryview] = []
        for payload in payloads:
            parts += (_frame_head(around + len(payload)), head, payload, tail)
        self.transport.write(b"".join(parts))

    def close_with(self, code: int, reason: str) -> None:
        """Send a close frame now; the peer has `_LINGER_S` to read it and the bytes before it."""
        if self.gone:
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        # Read again: without the peer's answer to the close, the connection would only end by the linger timer.
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_within()

    def too_slow(self) -> None:
        """Close because a message stayed unread past the send deadline; the close follows the unread bytes."""
        _log.warning("subscriber too slow", peer=self.client, guard=TOO_SLOW)
        seconds = self.send_deadline_s
        reason = f"{SubscriberTooSlow.code}: a message stayed unread for {seconds:g} s"
        self.close_with(CloseCode.TOO_SLOW, reason)
        # Wake the blocked writer, which then sees that the socket has ended.
        self.writable.set()

    def cut(self, guard: str) -> None:
        """Drop the connection and all bytes that the peer has not read; count it for the guard."""
        if not self.disconnected:
            self.on_cut(guard)
            drop(self.transport)

    def close_within(self) -> None:
        """Cut the connection after a while if it is still open; only the first call starts the timer."""
        if self._linger is None and not self.disconnected:
            self._linger = self.loop.call_later(_LINGER_S, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            drop(self.transport)

    # The methods below are called by uvicorn.

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and drop references that would keep this object in memory."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None
        self.inbound.hold(self, 0)
        super().connection_lost(exc)
        # Break two reference cycles. The parser of `websockets` is a generator whose frame refers to the
        # connection object, which refers to the generator. The connection object also stores the errors of the
        # parser and the handshake, and their tracebacks refer to that object.
        self.conn.parser.close()
        for error in (self.conn.parser_exc, self.conn.handshake_exc):
            if error is not None:
                forget_frames(error)

    async def run_asgi(self) -> None:
        """Run the application with this object in the scope's extensions."""
        extensions: dict[str, Any] = self.scope["extensions"]
        extensions[EXTENSION] = self
        try:
            await super().run_asgi()
        finally:
            # This object refers to the scope: break the cycle.
            del extensions[EXTENSION]
        self.close_within()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, and stop charging the previous one: the application has processed it."""
        if self._in_hand:
            self._in_hand = 0
            self._charge()
        message = await super().receive()
        # Uvicorn resumes reading here. While this connection waits for its turn, pause again.
        if self.held and not self.transport.is_closing():
            self.transport.pause_reading()
        if message["type"] == "websocket.receive":
            self._in_hand = self._queued.popleft()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; mark a refused handshake as complete, or uvicorn would log an application error."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        """Process received bytes, then answer all pings among them in one write."""
        super().data_received(data)
        self._watch_message()
        self._charge()
        self.turns.took(self, len(data))
        # While the peer reads, answer its pings in one write. While it does not read, each answer would grow
        # the write buffer, so drop and count the answers; too many of them end the connection.
        answers = self.conn.data_to_send()
        if not answers or self.transport.is_closing():
            return
        if self.writable.is_set():
            self._pings_dropped = 0
            self.transport.write(b"".join(answers))
            return
        self._pings_dropped += len(answers)
        if self._pings_dropped > self.pings_unread:
            self.cut("pings_unread")

    def hold_reading(self) -> None:
        """Pause reading until ``release_reading`` is called."""
        self.held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def release_reading(self) -> None:
        """Resume reading, unless uvicorn has paused it until the application takes the received messages."""
        self.held = False
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        """Do nothing: `data_received` sends the answer at the end of the read."""

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to the message; close the connection if the message has too many."""
        if len(self.frames) >= _FRAGMENTS_MAX:
            self._fail(CloseCode.TOO_LARGE, "too many fragments")
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message and note its size; close with 1007 if its text is not UTF-8.

        Uvicorn would log such a text as an exception.
        """
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.NOT_TEXT, "not UTF-8")
                return
        if not self.close_sent:
            self._queued.append(sum(map(len, self.frames)))
        super().send_receive_event_to_app()

    def _fail(self, code: int, reason: str) -> None:
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception(code)

    def handle_parser_exception(self, code: int = _PROTOCOL_ERROR) -> None:
        """Close because of a fault of the peer; cut the connection if the peer does not close in time."""
        close = self.conn.close_sent
        self.on_cut(f"close_{int(code) if close is None else close.code}")
        if close is not None:
            super().handle_parser_exception()
            self.close_within()
            return
        # The fault came before the handshake was accepted, so no close frame can be sent. To the
        # application the peer is gone.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": int(code)})
        self.close_sent = True
        drop(self.transport)

    def pause_writing(self) -> None:
        """Note that a probe may now wait behind full buffers."""
        self._behind = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note the time at which the peer was last seen to read."""
        self._moved_at = self.loop.time()
        super().resume_writing()

    def handle_pong(self, event: Frame) -> None:
        """Note, if the pong answers the probe, that the peer has read all data before the probe."""
        asked = self.pending_ping_payload
        super().handle_pong(event)
        if asked is not None and self.pending_ping_payload is None:
            # If the buffers are full now, the next probe waits behind them.
            self._behind = not self.writable.is_set()

    def keepalive_timeout(self) -> None:
        """End the connection because the probe was not answered; wait longer if unread data precedes it."""
        # 1. The probe may wait behind unread data. Then a missing pong proves nothing until the peer has not
        #    read for the send deadline, counted from the later of the probe and the peer's last read.
        if self._behind or has_unread(self.transport):
            unread_s = self.loop.time() - max(self.ping_sent_at, self._moved_at)
            left_s = self.send_deadline_s - unread_s
            if left_s > 0:
                self.pong_timer = self.loop.call_later(left_s, self.keepalive_timeout)
                return
        # 2. The deadline has passed and data is unread: close with the code for a slow reader.
        if has_unread(self.transport):
            self.pong_timer = None
            if not self.gone:
                self.on_cut(TOO_SLOW)
                self.too_slow()
            return
        # 3. The peer has read all data and not answered the probe: it is gone.
        self.on_cut("ping_timeout")
        super().keepalive_timeout()
        self.close_within()

    def shutdown(self) -> None:
        """Close because the server stops; the peer has `_LINGER_S` to read."""
        if self.handshake_complete and not self.close_sent and self.conn.state is not OPEN:
            # The peer has sent a close, and the answer to it waits behind unread bytes. Uvicorn would send a
            # second close, which is an error.
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()
        self.close_within()


def _frame_head(size: int, first: int = _FIN | _TEXT) -> bytes:
    """Return the head of an unmasked frame of ``size`` bytes; by default the frame is a whole text message."""
    if size < 126:
        return _pack_short(first, size)
    if size < 1 << 16:
        return _pack_medium(first, 126, size)
    return _pack_long(first, 127, size)


_pack_short: Final = struct.Struct("!BB").pack
_pack_medium: Final = struct.Struct("!BBH").pack
_pack_long: Final = struct.Struct("!BBQ").pack


def configured(
    *,
    pings_unread: int,
    init_message_bytes: int,
    send_deadline_s: float,
    message_s: float,
    inbound: ByteBudget,
    turns: ReadTurns,
    on_cut: Callable[[str], None],
) -> type[GuardedProtocol]:
    """Return the subclass of `GuardedProtocol` with the settings of one server."""
    members = {
        "pings_unread": pings_unread,
        "init_message_bytes": init_message_bytes,
        "send_deadline_s": send_deadline_s,
        "message_s": message_s,
        "inbound": inbound,
        "turns": turns,
        "on_cut": staticmethod(on_cut),
    }
    return type("GuardedProtocol", (GuardedProtocol,), members)
