"""One timer for all streams of a face: it ends a stream that cannot write for too long.

A stream notes when its write began, which costs next to nothing a message. The timer reads these notes.
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
"""Name of the guard that ends connections whose readers hold memory that others wait for."""

ON_ITS_WAY_BYTES: Final = 64 << 10
"""A larger write is over once the kernel has taken all of it; a smaller one once there is room for more."""


_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""Linger on, for no time."""


def is_encrypted(transport: asyncio.BaseTransport) -> bool:
    """Return whether a connection speaks TLS."""
    return transport.get_extra_info("ssl_object") is not None


def bound_tls_buffers(transport: asyncio.Transport) -> None:
    """Bound what a TLS connection buffers to what a plain one does; of those that are plain nothing changes.

    Left to the event loop it is eight times as much for writing, and four times for reading.
    """
    if is_encrypted(transport):
        transport.set_write_buffer_limits(ON_ITS_WAY_BYTES)
        transport.set_read_buffer_limits(ON_ITS_WAY_BYTES)  # type: ignore[attr-defined]  # of TLS alone


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether a connection holds what its peer has not taken.

    A TLS connection does not count what it has handed on encrypted. It is asked of the kernel, whose buffer is
    full before anything waits in ours.
    """
    if transport.get_write_buffer_size():
        return True
    connection = transport.get_extra_info("socket")
    if connection is None or not is_encrypted(transport):
        return False
    try:
        return _held_by_kernel(connection) > 0
    except OSError:
        return False  # it is closed by now


def pieces(
    parts: Sequence[bytes | memoryview], size: int = ON_ITS_WAY_BYTES
) -> Iterator[list[bytes | memoryview]]:
    """Yield what the parts make together in pieces of ``size`` bytes, the last one maybe smaller; uncopied.

    A TLS connection encrypts what it is given at once and hands all of it on, however little the reader takes.
    It only knows that there is no room when it is given the next. So it is given large messages in pieces.
    """
    piece: list[bytes | memoryview] = []
    room = size
    for part in parts:
        rest = part
        while len(rest) > room:
            view = memoryview(rest)
            yield [*piece, view[:room]]
            piece, rest, room = [], view[room:], size
        piece.append(rest)
        room -= len(rest)
    yield piece


def drop(transport: asyncio.Transport) -> None:
    """Drop a connection with whatever its peer has not taken, what the kernel holds for it included.

    Merely closed, the kernel would keep all of that for as long as the peer keeps its window shut. If it is
    empty, a reset would only take from the peer bytes that it has received and not read yet.
    """
    peer = transport.get_extra_info("socket")
    if peer is not None and not transport.is_closing():
        with suppress(OSError):
            if transport.get_write_buffer_size() or _held_by_kernel(peer):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


def _held_by_kernel(peer: socket.socket) -> int:
    """Return the bytes that were written and that the peer's kernel has not acknowledged."""
    queued = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(queued, sys.byteorder)


def on_end(interrupt: Callable[[], None]) -> Callable[[TailraceError], None]:
    """Return the action at the end of a subscription or a read, whose connection may be in a write.

    With `SubscriberTooSlow` the engine frees memory, which the unread message holds: that end interrupts the
    write. At any other end the write continues until it is read, or until its deadline.
    """

    def ended(error: TailraceError) -> None:
        if isinstance(error, SubscriberTooSlow):
            interrupt()

    return ended


class ReaderGone(Exception):
    """The peer of a stream has left, or its connection was ended: nothing more can be sent."""


class Guarded(ABC):
    """A stream that writes one message after the other, and ends when its reader does not read."""

    __slots__ = ("blocked_since", "expired")

    def __init__(self) -> None:
        """Begin between writes."""
        self.blocked_since: float | None = None
        """Loop time at which the write under way began; None between writes."""
        self.expired = False
        """True if the send deadline, or a lack of memory, has ended the stream."""

    def interrupt(self) -> None:
        """End the stream if a write is under way: there is no memory for a reader that does not read."""
        if self.blocked_since is not None and not self.expired:
            self.expired = True
            self._drop()

    def expire(self) -> None:
        """End the stream: its reader has left a message unread past the send deadline. Idempotent."""
        if not self.expired:
            self.expired = True
            self._end_stream()

    @abstractmethod
    def _end_stream(self) -> None:
        """End the write under way and its stream, in the face's own way."""

    def _drop(self) -> None:
        """End it so that unread bytes are freed; send no close message, which would wait behind them."""
        self._end_stream()


class SendGuard:
    """Watches the streams of one face."""

    def __init__(self, deadline_s: float) -> None:
        """Keep the deadline; no timer runs while there is no stream."""
        self.deadline_s = deadline_s
        self.expired = 0
        """Streams ended as too slow, since the guard was made."""
        self._interval_s = min(1.0, deadline_s / 4)
        self._senders: set[Guarded] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, sender: Guarded) -> None:
        """Start to watch a sender."""
        self._senders.add(sender)
        if self._timer is None:
            self._arm()

    def forget(self, sender: Guarded) -> None:
        """Stop watching a sender."""
        self._senders.discard(sender)
        if not self._senders and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._expire_overdue)

    def _expire_overdue(self) -> None:
        latest = asyncio.get_running_loop().time() - self.deadline_s
        for sender in self._senders:
            if sender.blocked_since is not None and sender.blocked_since <= latest:
                self.expired += not sender.expired
                sender.expire()
        self._arm()
