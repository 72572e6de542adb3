"""The send deadline of a face: one timer for all its streams ends a stream whose write is blocked too long.

A stream only stores the time at which its write began, which is cheap for each message. The timer compares
these times.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace.errors import SubscriberTooSlow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.errors import TailraceError

TOO_SLOW: Final = "send_deadline"
"""Name of the guard against peers that leave a message unread."""

MEMORY: Final = "memory"
"""Name of the guard that ends connections whose unread messages hold memory that others wait for."""

ON_ITS_WAY_BYTES: Final = 64 << 10
"""A larger write ends when the kernel has accepted all of it; a smaller one when there is room for another."""


_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that resets a connection at once: on, for 0 seconds."""


def is_encrypted(transport: asyncio.BaseTransport) -> bool:
    """Return True if a connection uses TLS."""
    return transport.get_extra_info("ssl_object") is not None


def bound_tls_buffers(transport: asyncio.Transport) -> None:
    """Bound the buffers of a TLS connection to the size of a plain one's; plain connections are not changed.

    The defaults of the event loop are eight times as large for writing, and four times for reading.
    """
    if is_encrypted(transport):
        transport.set_write_buffer_limits(ON_ITS_WAY_BYTES)
        transport.set_read_buffer_limits(ON_ITS_WAY_BYTES)  # type: ignore[attr-defined]  # of TLS alone


def has_unread(transport: asyncio.Transport) -> bool:
    """Return True if a connection holds bytes that its peer has not received.

    A TLS connection does not count bytes that it has encrypted. For these the kernel's send buffer is checked,
    which fills before any bytes wait in the process.
    """
    if transport.get_write_buffer_size():
        return True
    connection = transport.get_extra_info("socket")
    if connection is None or not is_encrypted(transport):
        return False
    try:
        return _held_by_kernel(connection) > 0
    except OSError:
        return False  # the connection is closed by now


def pieces(parts: Sequence[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Yield the bytes of all parts in pieces of `ON_ITS_WAY_BYTES`, without copies; the last may be smaller.

    A TLS connection encrypts and buffers all bytes of a write at once, however slowly the peer reads. It
    notices a full buffer only at the next write. So large messages are written to it in pieces.
    """
    # Views, not slices: the bytes are shared with other subscribers and must not be copied.
    piece: list[bytes | memoryview] = []
    room = ON_ITS_WAY_BYTES
    for part in parts:
        rest = part
        while len(rest) > room:
            view = memoryview(rest)
            yield [*piece, view[:room]]
            piece, rest, room = [], view[room:], ON_ITS_WAY_BYTES
        piece.append(rest)
        room -= len(rest)
    yield piece


def drop(transport: asyncio.Transport) -> None:
    """Drop a connection and all bytes that its peer has not received, including those in the kernel.

    If the connection were only closed, the kernel would retain the bytes as long as the peer's window is
    closed. Without such bytes the connection is not reset: a reset would discard bytes that the peer has
    received and not read yet.
    """
    peer = transport.get_extra_info("socket")
    if peer is not None and not transport.is_closing():
        with suppress(OSError):
            if transport.get_write_buffer_size() or _held_by_kernel(peer):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


def _held_by_kernel(peer: socket.socket) -> int:
    """Return the number of written bytes that the peer's kernel has not acknowledged."""
    queued = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(queued, sys.byteorder)


def on_end(interrupt: Callable[[], None]) -> Callable[[TailraceError], None]:
    """Return the callback for the end of a subscription or read whose connection may be in a write.

    The engine ends a subscription with `SubscriberTooSlow` to free memory, which the unread message holds. So
    that end interrupts the write. After any other end the write continues until it is read, or until its
    deadline.
    """

    def ended(error: TailraceError) -> None:
        if isinstance(error, SubscriberTooSlow):
            interrupt()

    return ended


class ReaderGone(Exception):
    """The peer of a stream has left or its connection was ended, so nothing more can be sent."""


class Guarded(ABC):
    """A stream that writes one message after the other, and that the guard can end if its reader stalls."""

    __slots__ = ("blocked_since", "expired")

    def __init__(self) -> None:
        """Begin between writes."""
        self.blocked_since: float | None = None
        """Event loop's time at which the current write began; None between writes."""
        self.expired = False
        """True if the send deadline, or a lack of memory, has ended the stream."""

    def interrupt(self) -> None:
        """End the stream if it is in a write, because the memory of the unread message is needed."""
        # Between writes there is no unread message of this stream in memory, so the stream can end in order.
        if self.blocked_since is not None and not self.expired:
            self.expired = True
            self._drop()

    def expire(self) -> None:
        """End the stream, because a message stayed unread past the send deadline. Idempotent."""
        if not self.expired:
            self.expired = True
            self._end_stream()

    @abstractmethod
    def _end_stream(self) -> None:
        """End the current write and the stream, in the way of the face."""

    def _drop(self) -> None:
        """End the stream so that unread bytes are freed; a close message would wait for their reader."""
        self._end_stream()


class SendGuard:
    """The guard of all streams of one face."""

    def __init__(self, deadline_s: float) -> None:
        """Make a guard with a deadline; the timer runs only while there are streams."""
        self.deadline_s = deadline_s
        self.expired = 0
        """Number of streams ended as too slow since the guard was made."""
        self._interval_s = min(1.0, deadline_s / 4)
        self._senders: set[Guarded] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, sender: Guarded) -> None:
        """Begin to watch a stream."""
        self._senders.add(sender)
        if self._timer is None:
            self._arm()

    def forget(self, sender: Guarded) -> None:
        """Stop watching a stream."""
        self._senders.discard(sender)
        if not self._senders and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._expire_overdue)

    def _expire_overdue(self) -> None:
        # One pass over all streams a few times within a deadline is cheaper than a timer for each message.
        latest = asyncio.get_running_loop().time() - self.deadline_s
        for sender in self._senders:
            if sender.blocked_since is not None and sender.blocked_since <= latest:
                self.expired += not sender.expired
                sender.expire()
        self._arm()
