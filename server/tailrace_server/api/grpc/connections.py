"""Connections of gRPC peers: close one, bound its buffers, and measure the bytes that core holds for it.

A call whose reader has stalled cannot be ended from this side: the status is behind the message that is not
read, and core keeps the message until it is, whether the handler aborts, returns or is cancelled. If memory is
short that message has to go, and it goes with its connection.

Core also holds beginnings of messages, and calls without a waiting handler, without a bound over all calls, and
does not say how much. A stream may have the largest
request but for its last byte, a connection 10,000 such streams. The kernel knows what each connection has
sent, so::

    held = received - (requests taken + 8 KiB a call + an eighth of what was read + 128 bytes a second)

Calls have header fields, readers send window updates and pings: these terms are more than any client needs. The
rest is at least the memory that core holds for the connection, but for some kilobytes a call. It never counts
below zero, so a peer cannot save up for later.

The bound: all connections together may hold one part in eight of the memory budget, and one may hold more than
64 KiB for as long as a request may take. The policy is *disconnect*, those that hold most first: other streams
on the connection resume. Linux only (``TCP_INFO``); elsewhere nothing is bounded here.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import structlog

from tailrace_server.log_cache.batch_cache import anonymous_bytes
from tailrace_server.resources.memory import RECEIVED_SHARE, SHORT_FROM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace_server.resources.memory import MemoryBook


_DESCRIPTORS: Final = "/proc/self/fd"
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_LIBC: Final = ctypes.PyDLL(None)
"""Called without letting go of Python's lock. The event loop takes it at each chance, and returns it after
milliseconds: a hundred connections would go one by one, and what others send meanwhile is not looked at."""

_log = structlog.get_logger("tailrace.grpc")


_FLOOR_BYTES: Final = 64 << 10
"""Held by one connection, is no matter: the window that each stream begins with."""
_PENDING_SHARE: Final = 8
_PENDING_MIN: Final = 64
_PENDING_MAX: Final = 3_000
_CALL_BYTES: Final = 8 << 10
"""Of header fields, that one call may have; above it core refuses calls."""
_READ_PARTS: Final = 8
"""A reader may send one byte for so many that it has read: window updates, pings, small requests."""
_SECOND_BYTES: Final = 128
"""Bytes that a connection may send in a second without a reason."""
_LOOK_S: Final = 0.02
"""How often the memory is looked at, and where it is short or has grown, the connections."""
_GROWTH_PARTS: Final = 4
"""Growth by one part in so many of what all may hold is a reason to look at them."""
_SCAN_S: Final = 1.0
"""How often the connections are looked at in any case."""
_SCAN_PARTS: Final = 50
"""Looking at them, in a thread, takes at most one part in so many of the time."""
_SHORT_PARTS: Final = 10
"""The same where memory is short."""
_ESTABLISHED: Final = 1
_ENDED: Final = (4, 5, 7)
"""Shut down by us, by both, or reset: FIN_WAIT1, FIN_WAIT2, CLOSE of linux/tcp_states.h."""
_TCP_INFO_BYTES: Final = 136
_TCP_INFO: Final = struct.Struct("=B119xQQ")
"""Of linux/tcp.h: ``tcpi_state``, ``tcpi_bytes_acked``, ``tcpi_bytes_received``."""


def disconnect(peer: str, port: int) -> bool:
    """Shut down the connection of a peer, as grpc names it, that does not read; return whether there was one.

    It is one to ``port``, of the listener: a peer may have another one from the same port of its own, to HTTP.
    Every stream on it ends; clients resume. Linux only, and not for sockets with a path, which have no peer.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"} or not os.path.isdir(_DESCRIPTORS):
        return False
    host, _, source = address.rpartition(":")
    is_its = partial(_is_of, peer=(host.strip("[]"), source), port=port)
    was_there = any([shut_down(descriptor, is_its) for descriptor in _descriptors()])
    if was_there:
        reason = "what it does not read is in memory that others wait for"
        _log.warning("connection cut: it does not read", peer=f"{host}:{source}", reason=reason)
    return was_there


def disconnect_all(port: int) -> None:
    """Shut down every connection to a port of this process, whatever its peer reads. Linux only."""
    if os.path.isdir(_DESCRIPTORS):
        for descriptor in _descriptors():
            shut_down(descriptor, partial(_is_to, port=port))


def shut_down(descriptor: int, is_it: Callable[[socket.socket], bool]) -> bool:
    """Shut down the connection under a descriptor of core's, if it is one that is meant; return whether.

    It is done through a copy, since core may close its own meanwhile. Core closes what was shut down.

    Args:
        descriptor: It may be closed by now, or of something else.
        is_it: Returns whether a socket is meant; OSError counts as no.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return is_it(copy) and _LIBC.shutdown(copy.fileno(), socket.SHUT_RDWR) == 0
    except OSError:
        return False  # it is closed by now, no socket, or not connected


def bound_send_buffers(port: int, nbytes: int) -> None:
    """Bound the kernel's send buffer of each connection that is accepted from now on; Linux only.

    Core has no option for it, and connections inherit it from their listener. Left to the kernel it grows to
    megabytes for each client that does not read from its socket.

    Args:
        port: Of the listeners.
        nbytes: Of memory, the kernel's overhead included: it doubles what it is given.
    """
    if not os.path.isdir(_DESCRIPTORS):
        return
    for copy in _sockets():
        with copy, suppress(OSError):  # it is closed by now
            listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and copy.getsockname()[1] == port:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(1, nbytes // 2))


def _sockets() -> Iterator[socket.socket]:
    """Yield a copy of each socket of this process, for the caller to close."""
    for descriptor in _descriptors():
        with suppress(OSError):  # it is closed by now
            yield socket.socket(fileno=os.dup(descriptor))


def _descriptors() -> Iterator[int]:
    """Yield the descriptor of each socket of this process."""
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it is closed by now
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                yield int(name)


def _is_of(copy: socket.socket, peer: tuple[str, str], port: int) -> bool:
    """Return True if a socket connects a port of ours to a host and port."""
    if not _is_to(copy, port):
        return False
    host, source = copy.getpeername()[:2]
    return (host.removeprefix("::ffff:"), str(source)) == peer


def _is_to(copy: socket.socket, port: int) -> bool:
    """Return True if a socket is a connection to the given port, and not the listener, which has no peer."""
    return copy.family in _FAMILIES and copy.getsockname()[1] == port and bool(copy.getpeername())


class _Looked(NamedTuple):
    """A connection, as the kernel has it."""

    peer: str
    descriptor: int
    acked: int
    received: int


@dataclass(slots=True)
class _Connection:
    """One connection, as it was when last looked at."""

    received: int
    """Bytes that have come, as the kernel counts."""
    acked: int
    """Bytes of ours that the peer's kernel has."""
    at: float
    """When it was looked at, by the monotonic clock."""
    since: float
    """Since when it has held more than is no matter."""
    made: float
    """When it was first seen: it may be a second older."""
    descriptor: int = -1
    """Of its socket in this process, when last looked at."""
    held: float = 0
    """Bytes that core has not handed over at all."""


class UnreadWatch:
    """Disconnects peers that fill the memory with what they do not finish, while ``run`` runs."""

    def __init__(self, book: MemoryBook, deadline_s: float) -> None:
        """Open an account in the memory budget; ``deadline_s`` is how long a request may take."""
        self._short_from = book.memory_bytes * SHORT_FROM
        self._bytes_max = book.memory_bytes // RECEIVED_SHARE
        self._held = 0
        """Bytes of all connections above `_FLOOR_BYTES`, at the last look."""
        book.open("received over gRPC", self._bytes_max, lambda: self._held)
        self._deadline_s = deadline_s
        self.port = 0
        """Of the listener, once it runs."""
        self._connections: dict[str, _Connection] = {}
        self._taken: Counter[str] = Counter()
        """The bytes that each peer may have sent since the last look, by its host and port."""
        self._taking = Lock()
        """Held while ``_taken`` is counted up, or put in its place anew."""
        self.cut = 0
        """Connections that were ended, since it began."""

    def took(self, peer: str, nbytes: int = 0) -> None:
        """Note a call of a peer, or a request of one, that has come whole."""
        with self._taking:
            self._taken[_plain(peer)] += nbytes + _CALL_BYTES

    def age_s(self, peer: str) -> float:
        """Return how long ago a connection was first seen; 0 of one that was not looked at yet."""
        one = self._connections.get(_plain(peer))
        return 0.0 if one is None else monotonic() - one.made

    async def run(self, port: int) -> None:
        """Watch the connections to a port until cancelled."""
        self.port = port
        if sys.platform != "linux":
            return
        # In a thread of its own: core takes what comes whether or not the event loop has a turn to spare, which
        # is least likely when much comes.
        stopped = Event()
        with ThreadPoolExecutor(1, "unread") as thread:
            try:
                await asyncio.get_running_loop().run_in_executor(thread, self._watch, port, stopped)
            finally:
                stopped.set()

    def _watch(self, port: int, stopped: Event) -> None:
        due = soon = 0.0
        before = anonymous_bytes()
        while not stopped.wait(_LOOK_S):
            begun = monotonic()
            size = anonymous_bytes()
            pressing = size >= self._short_from or size - before >= self._bytes_max // _GROWTH_PARTS
            if begun >= due or (begun >= soon and pressing):
                before = size
                # What is taken meanwhile counts the next time, and so it is never counted before it has come.
                with self._taking:
                    taken, self._taken = self._taken, Counter()
                found, spent = _look(port)
                self._judge(found, taken, monotonic())
                due = begun + max(_SCAN_S, _SCAN_PARTS * spent)
                soon = begun + _SHORT_PARTS * spent

    def _judge(self, found: list[_Looked], taken: Counter[str], now: float) -> None:
        # 1. What each holds now. Who has gone is forgotten.
        connections: dict[str, _Connection] = {}
        for peer, descriptor, acked, received in found:
            one = self._connections.get(peer)
            if one is None or received < one.received:
                one = _Connection(received=0, acked=0, at=now, since=now, made=now)
            may = taken[peer] + (acked - one.acked) / _READ_PARTS + (now - one.at) * _SECOND_BYTES
            one.held = max(0.0, one.held + received - one.received - may)
            one.received, one.acked, one.at = received, acked, now
            one.descriptor = descriptor
            if one.held <= _FLOOR_BYTES:
                one.since = now
            connections[peer] = one
        self._connections = connections  # whole, as the event loop reads it
        # 2. Those that are too slow, then those that hold most, until there is room.
        holders = [each for each in self._connections.items() if each[1].held > _FLOOR_BYTES]
        holders.sort(key=lambda each: each[1].held, reverse=True)
        total = sum(one.held for _, one in holders)
        #    Once some have to go, half of the room is made free: what comes until the next look needs it.
        room = self._bytes_max // 2 if total > self._bytes_max else self._bytes_max
        gone: list[tuple[str, int, bool]] = []
        for peer, one in holders:
            late = now - one.since > self._deadline_s
            if total > room or late:
                total -= one.held
                del self._connections[peer]
                if shut_down(one.descriptor, partial(_is_to_peer, peer=peer, port=self.port)):
                    self.cut += 1
                    gone.append((peer, int(one.held), late))
        self._held = int(total)
        # 3. A line for each only when all have gone: whoever reads the log may be slow.
        for peer, held, late in gone:
            _log.warning(
                "connection cut: it sends what it does not finish",
                peer=peer,
                bytes=held,
                reason=f"for more than {self._deadline_s:g} s" if late else "and memory is short",
            )


def pending_calls_max(memory_bytes: int) -> int:
    """Return how many calls may wait in core until the event loop takes them. The others are cancelled.

    Each may hold a stream's first window, also once its connection is gone: whoever connects again and again is
    bounded by nothing else. Together they get an eighth of the memory, and core's own bound where that is less.
    """
    return min(max(memory_bytes // _PENDING_SHARE // _FLOOR_BYTES, _PENDING_MIN), _PENDING_MAX)


def _look(port: int) -> tuple[list[_Looked], float]:
    """Return the connections to a port, and the processor's seconds that it took to look at them."""
    begun = thread_time()
    return list(_connections(port)), thread_time() - begun


def _connections(port: int) -> Iterator[_Looked]:
    """Yield each connection to a port of this process, and wake core for those that have ended."""
    for name in os.listdir("/proc/self/fd"):
        # The descriptor is core's and only borrowed. Core may close it meanwhile: then it is passed over.
        try:
            borrowed = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=int(name))
        except OSError:
            continue  # it is a file
        try:
            state, acked, received = _tcp_info(borrowed)
            if borrowed.getsockname()[1] != port:
                continue
            if state == _ESTABLISHED:
                peer = _named(*borrowed.getpeername()[:2])
                yield _Looked(peer, int(name), acked, received)
            elif state in _ENDED:
                # Core misses the end of a connection where it comes while core reads: it then waits for an
                # event that was there before. It would keep all until its keepalive. This is another event.
                shut_down(int(name), partial(_has_ended, port=port))
        except (OSError, struct.error):
            pass
        finally:
            borrowed.detach()


def _tcp_info(connection: socket.socket) -> tuple[int, int, int]:
    """Return its state, and the bytes that were acknowledged and received."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    state, acked, received = _TCP_INFO.unpack_from(info)
    return state, acked, received


def _is_to_peer(connection: socket.socket, peer: str, port: int) -> bool:
    return connection.getsockname()[1] == port and _named(*connection.getpeername()[:2]) == peer


def _has_ended(connection: socket.socket, port: int) -> bool:
    return connection.getsockname()[1] == port and _tcp_info(connection)[0] in _ENDED


def _named(host: str, port: int | str) -> str:
    return f"{host.removeprefix('::ffff:')}:{port}"


def _plain(peer: str) -> str:
    """Return the name here of a peer as grpc names it: ``ipv4:10.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``."""
    kind, _, address = peer.partition(":")
    if kind == "ipv4":
        return address
    host, _, port = unquote(address).rpartition(":")
    return _named(host.strip("[]"), port)
