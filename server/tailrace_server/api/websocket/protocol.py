"""Uvicorn's WebSocket protocol with the guards that it lacks, and a door for ready frames.

The guards, and their reasons:

- Pings of one read are answered together, and not at all while the peer does not read: uvicorn answers each
  without flow control, so a flood costs memory without bound. After ``pings_unread`` the peer is cut.
- A probe that stays unanswered ends the connection. A probe behind data that the peer has yet to read gets as
  much time as any message, the send deadline, and more while the peer continues to read.
- A message of endless empty fragments is ended by their number; bytes are bounded by uvicorn already. One that
  is not finished in its time ends the connection, pings or not. Received bytes that wait are charged to the
  inbound budget.
- Text that is not UTF-8 costs a close code, not a stack trace in the log; a refused handshake no error there.

Names of uvicorn that it does not publish are used here and nowhere else: its version is pinned, and every one
has a test.
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
"""Key in the scope's extensions under which an application finds the protocol."""

UNFINISHED: Final = "unfinished_message"
"""Name of the guard against peers that begin a message and do not finish it."""

_FIN: Final = 0x80
_TEXT: Final = 1
_CONTINUATION: Final = 0
"""Of the first byte of a frame: RFC 6455, 5.2."""
_FRAGMENTS_MAX: Final = 4096
_SMALL_BYTES: Final = 4096
"""The first bytes of one connection, up to this number, are not charged."""
_FRAGMENT_BYTES: Final = 100
"""Of a fragment beside its data, about."""
_LINGER_S: Final = 5.0
"""How long a closed connection may take to flush its last words before it is cut."""


class GuardedProtocol(WebSocketsSansIOProtocol):
    """One connection. `configured` makes the class that a server uses."""

    pings_unread: int = 1_000
    init_message_bytes: int = 64 << 10
    send_deadline_s: float = 60.0
    message_s: float = 10.0
    inbound: ByteBudget = ByteBudget(128 << 20)
    turns: ReadTurns = ReadTurns()
    on_cut: Callable[[str], None] = staticmethod(lambda guard: None)
    """Called with the name of the guard that cut a connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Begin with the bound for peers that have not introduced themselves."""
        super().__init__(*arguments, **options)
        self._pings_dropped = 0
        self._linger: asyncio.TimerHandle | None = None
        self._behind = False
        """True if the kernel's buffers were full since the last pong: a probe may be behind all of it."""
        self._moved_at = 0.0
        """Loop time at which the transport last had room again."""
        self._unfinished: asyncio.TimerHandle | None = None
        """Ends the connection when the message that has begun is not finished in its time."""
        self._queued: deque[int] = deque()
        """Bytes of the messages that wait for the application."""
        self._in_hand = 0
        """Bytes of the message that the application has taken, until it asks for the next one."""
        self._charged = 0
        self._begun = 0
        """Bytes of subscribes that are not answered yet."""
        self.held = False
        """True while reading is paused until the connection's turn."""
        self._strange = True
        """True until the peer has introduced itself."""
        self._message_bytes_max = self.conn.max_message_size
        self.conn.max_message_size = min(
            self.init_message_bytes, self._message_bytes_max or 1 << 62
        )

    def initialised(self) -> None:
        """Allow messages of full size."""
        self.conn.max_message_size = self._message_bytes_max
        self._strange = False

    def begun(self, nbytes: int) -> None:
        """Charge the bytes of a subscribe to the inbound budget; a negative number gives them back."""
        self._begun += nbytes
        self._charge()

    def _charge(self) -> None:
        """Charge received bytes that are not processed yet to the inbound budget."""
        if self.disconnected or self.close_sent:
            return
        fragments = (self.conn.current_size or 0) + _FRAGMENT_BYTES * len(self.frames)
        nbytes = len(self.conn.reader.buffer) + fragments + sum(self._queued) + self._in_hand
        nbytes += self._begun + self._strange * CONNECTION_BYTES
        if nbytes <= _SMALL_BYTES:
            nbytes = 0  # the usual message costs no more than this line
        if nbytes != self._charged:
            self._charged = nbytes
            self.inbound.hold(self, nbytes)

    def refuse(self) -> None:
        """Close: the inbound budget is spent, and this peer has held most of it."""
        # 1. Its close is counted by the guard's name too.
        self.on_cut(INBOUND)
        _log.warning("sender refused", peer=self.client, guard=INBOUND)
        self._fail(
            CloseCode.TOO_LARGE, "peers send more at once than there is room for; send again"
        )
        # 2. What it has sent goes at once, the connection when the reason has been read.
        self.frames = []
        self.conn.reader.discard()

    def _overdue(self) -> None:
        """End a connection whose message has not been finished in its time, unless we did not read it."""
        self._unfinished = None
        if self.read_paused or self.held:
            self._watch_message()
        elif not self.gone:
            self.on_cut(UNFINISHED)
            reason = f"a message was not finished within {self.message_s:g} s"
            self._fail(CloseCode.TOO_SLOW, reason)

    def _watch_message(self) -> None:
        """Run the timer of unfinished messages while there is one."""
        if self.conn.reader.buffer or self.frames:
            if self._unfinished is None and not self.gone:
                self._unfinished = self.loop.call_later(self.message_s, self._overdue)
        elif self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    @property
    def gone(self) -> bool:
        """True if nothing more can be sent."""
        return (
            self.disconnected
            or self.close_sent
            or self.conn.state is not OPEN
            or self.transport.is_closing()
        )

    def write_text(self, parts: tuple[bytes | memoryview, ...]) -> Iterator[None]:
        """Write one message of UTF-8 parts, uncopied, a frame at each step; the caller waits for ``writable``.

        A server's frame is not masked, so what many are sent stays one object. Over TLS a large message has
        several frames (`pieces`): pings and the close go between them, and one that has begun has to be ended.
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
        """Write a text frame for each payload, head and tail around it, all in one write."""
        around = len(head) + len(tail)
        parts: list[bytes | memoryview] = []
        for payload in payloads:
            parts += (_frame_head(around + len(payload)), head, payload, tail)
        self.transport.write(b"".join(parts))

    def close_with(self, code: int, reason: str) -> None:
        """Close without waiting for the peer to read earlier bytes; it has a moment for that."""
        if self.gone:
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        # The peer's answer to the close must be read, or the connection only ends by `_linger`.
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_within()

    def too_slow(self) -> None:
        """Close, after the unread bytes, because the peer left a message unread past the send deadline."""
        _log.warning("subscriber too slow", peer=self.client, guard=TOO_SLOW)
        seconds = self.send_deadline_s
        reason = f"{SubscriberTooSlow.code}: a message stayed unread for {seconds:g} s"
        self.close_with(CloseCode.TOO_SLOW, reason)
        self.writable.set()  # wakes the writer, which finds the socket ended

    def cut(self, guard: str) -> None:
        """Drop the connection with whatever it has not read."""
        if not self.disconnected:
            self.on_cut(guard)
            drop(self.transport)

    def close_within(self, seconds: float = _LINGER_S) -> None:
        """Cut the connection unless it has ended by itself by then."""
        if self._linger is None and not self.disconnected:
            self._linger = self.loop.call_later(seconds, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            drop(self.transport)

    # What uvicorn calls.

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and drop references, which would keep this object in memory."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None
        self.inbound.hold(self, 0)
        super().connection_lost(exc)
        # The parser of `websockets` is a generator whose frame holds the object that holds the generator. The
        # same object, and the request, keep the error of the parser or the handshake, whose frames hold them.
        self.conn.parser.close()
        for error in (self.conn.parser_exc, self.conn.handshake_exc):
            if error is not None:
                forget_frames(error)

    async def run_asgi(self) -> None:
        """Run the application, which finds this object in the scope's extensions."""
        extensions: dict[str, Any] = self.scope["extensions"]
        extensions[EXTENSION] = self
        try:
            await super().run_asgi()
        finally:
            del extensions[EXTENSION]  # this object holds the scope
        self.close_within()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message; the application has processed the one before, so stop charging that."""
        if self._in_hand:
            self._in_hand = 0
            self._charge()
        message = await super().receive()
        if self.held and not self.transport.is_closing():
            self.transport.pause_reading()  # uvicorn has begun again
        if message["type"] == "websocket.receive":
            self._in_hand = self._queued.popleft()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send, and mark a refused handshake as complete: uvicorn would log an application error otherwise."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        """Process received bytes, then answer all pings in them at once."""
        super().data_received(data)
        self._watch_message()
        self._charge()
        self.turns.took(self, len(data))
        # While the peer reads, its pings are answered in one write. While it does not, each answer would grow
        # the buffer: answers are dropped and counted, and too many of them end the connection.
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
        """Pause reading until ``release_reading``."""
        self.held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def release_reading(self) -> None:
        """Resume reading, unless the application must first take what was received."""
        self.held = False
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        """Leave the answer for the end of this read."""

    def handle_cont(self, event: Frame) -> None:
        """Bound the number of fragments."""
        if len(self.frames) >= _FRAGMENTS_MAX:
            self._fail(CloseCode.TOO_LARGE, "too many fragments")
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Refuse text that is not UTF-8 before uvicorn logs it as an exception; count what is queued."""
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
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Close, and cut a peer that does not close in time."""
        assert self.conn.close_sent is not None
        self.on_cut(f"close_{self.conn.close_sent.code}")
        super().handle_parser_exception()
        self.close_within()

    def pause_writing(self) -> None:
        """Note that a probe would be behind full buffers."""
        self._behind = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the peer reads."""
        self._moved_at = self.loop.time()
        super().resume_writing()

    def handle_pong(self, event: Frame) -> None:
        """Note that the peer has read all data before the probe."""
        asked = self.pending_ping_payload
        super().handle_pong(event)
        if asked is not None and self.pending_ping_payload is None:
            self._behind = not self.writable.is_set()

    def keepalive_timeout(self) -> None:
        """End the connection of a silent peer; wait longer if unread data precedes the probe."""
        # 1. The probe may be stuck behind unread data. Then silence proves nothing until the peer has not read
        #    for the send deadline, counted from the probe or from the last time that it read.
        if self._behind or has_unread(self.transport):
            unread_s = self.loop.time() - max(self.ping_sent_at, self._moved_at)
            left_s = self.send_deadline_s - unread_s
            if left_s > 0:
                self.pong_timer = self.loop.call_later(left_s, self.keepalive_timeout)
                return
        # 2. The deadline has passed with data unread: the reader is too slow, and is told so by the close code.
        if has_unread(self.transport):
            self.pong_timer = None
            if not self.gone:
                self.on_cut(TOO_SLOW)
                self.too_slow()
            return
        # 3. All data was read and the probe was not answered: the peer is gone.
        self.on_cut("ping_timeout")
        super().keepalive_timeout()
        self.close_within()

    def shutdown(self) -> None:
        """Close because the server stops; the wait for the peer to read is bounded."""
        if self.handshake_complete and not self.close_sent and self.conn.state is not OPEN:
            # The peer has closed, and its answer waits behind what it has not read: uvicorn would close again,
            # which is an error.
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()
        self.close_within()


def _frame_head(size: int, first: int = _FIN | _TEXT) -> bytes:
    """Return the head of an unmasked frame, by default of one that is a text message."""
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
    """Return the class for one server."""
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
