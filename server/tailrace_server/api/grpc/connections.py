"""Connections of gRPC peers: close one, bound its buffers, and measure the bytes that core holds for it.

The server cannot end a call whose reader has stalled: the status waits after the unread message, and core
retains this message until it is read, whether the handler aborts, returns or is cancelled. If memory is short,
the message can only be dropped with its connection.

Core also retains unfinished messages, and calls that no handler has accepted, without a bound over all calls
and without reporting how much. A stream may have sent the largest request except for its last byte, and a
connection may have 10,000 such streams. But the kernel knows how many bytes each connection has sent, so::

    held = received - (requests taken + 8 KiB a call + an eighth of what was read + 128 bytes a second)

The allowances are for header fields of calls, window updates and pings of readers; they are more than any
client needs. The rest is about the memory that core holds for the connection, to some kilobytes a call. It
never becomes negative, so a peer cannot save up an allowance for later.

The bound: all connections together may hold 1/8 of the memory budget, and a connection may hold more than 64
KiB only as long as a request may take. The policy is *disconnect*, those that hold most first; other streams of
such a connection resume. Linux only (``TCP_INFO``); on other systems there is no bound.
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
"""The C library, called without releasing the GIL. If each call released the GIL, the event loop would take it
for milliseconds each time. Cutting a hundred connections would take long, and new input would not be measured
meanwhile."""

_log = structlog.get_logger("tailrace.grpc")


_FLOOR_BYTES: Final = 64 << 10
"""Bytes that any connection may hold: the initial window of a stream."""
_PENDING_SHARE: Final = 8
_PENDING_MIN: Final = 64
_PENDING_MAX: Final = 3_000
_CALL_BYTES: Final = 8 << 10
"""Most bytes of header fields of one call; core refuses a call with more."""
_READ_PARTS: Final = 8
"""A reader may send 1 byte for this many bytes that it has read: window updates, pings, small requests."""
_SECOND_BYTES: Final = 128
"""Bytes that a connection may send in a second for no known reason."""
_LOOK_S: Final = 0.02
"""Seconds between checks of the process's memory; if it is short or has grown, the connections are measured."""
_GROWTH_PARTS: Final = 4
"""The connections are measured when memory has grown by 1/4 of the bytes that all of them may hold."""
_SCAN_S: Final = 1.0
"""Seconds after which the connections are measured in any case."""
_SCAN_PARTS: Final = 50
"""Measuring, in a thread, takes at most 1/50 of the time."""
_SHORT_PARTS: Final = 10
"""Measuring takes at most 1/10 of the time while memory is short."""
_ESTABLISHED: Final = 1
_ENDED: Final = (4, 5, 7)
"""Shut down by us, by both, or reset: FIN_WAIT1, FIN_WAIT2, CLOSE of linux/tcp_states.h."""
_TCP_INFO_BYTES: Final = 136
_TCP_INFO: Final = struct.Struct("=B119xQQ")
"""Members of ``tcp_info`` in linux/tcp.h: ``tcpi_state``, ``tcpi_bytes_acked``, ``tcpi_bytes_received``."""


def disconnect(peer: str, port: int) -> bool:
    """Shut down the connection of a peer that does not read; return True if there was one.

    Every stream on the connection ends; clients resume. Linux only, and not for Unix sockets, which have no
    peer.

    Args:
        peer: The peer, as grpc names it.
        port: The port of the listener. A peer may use one local port for a connection to HTTP too.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"} or not os.path.isdir(_DESCRIPTORS):
        return False
    host, _, source = address.rpartition(":")
    is_its = partial(_is_of, peer=(host.strip("[]"), source), port=port)
    was_there = any([shut_down(descriptor, is_its) for descriptor in _descriptors()])
    if was_there:
        reason = "its unread messages take memory that other connections wait for"
        _log.warning(
            "connection cut: the client does not read", peer=f"{host}:{source}", reason=reason
        )
    return was_there


def disconnect_all(port: int) -> None:
    """Shut down every connection to a port of this process. Linux only."""
    if os.path.isdir(_DESCRIPTORS):
        for descriptor in _descriptors():
            shut_down(descriptor, partial(_is_to, port=port))


def shut_down(descriptor: int, is_it: Callable[[socket.socket], bool]) -> bool:
    """Shut down the connection of one of core's descriptors if ``is_it`` accepts it; return True if so.

    A copy of the descriptor is used, since core may close its own meanwhile. Core closes connections that were
    shut down.

    Args:
        descriptor: A descriptor, which may be closed or reused by now.
        is_it: Returns True if a socket is to be shut down; an OSError counts as False.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return is_it(copy) and _LIBC.shutdown(copy.fileno(), socket.SHUT_RDWR) == 0
    except OSError:
        return False  # the descriptor is closed by now, no socket, or not connected


def bound_send_buffers(port: int, nbytes: int) -> None:
    """Bound the kernel's send buffer of each connection that is accepted from now on. Linux only.

    Core has no option for this buffer, but connections inherit it from their listener. By default the kernel
    lets it grow to megabytes for each client that does not read.

    Args:
        port: The port of the listeners.
        nbytes: Bytes of memory, including the kernel's overhead: the kernel doubles the value that it is given.
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
    """The kernel's figures of one connection."""

    peer: str
    descriptor: int
    acked: int
    received: int


@dataclass(slots=True)
class _Connection:
    """The figures of one connection at the last measurement."""

    received: int
    """Bytes received from the peer, as the kernel counts."""
    acked: int
    """Bytes sent that the peer's kernel has acknowledged."""
    at: float
    """Monotonic time of the measurement."""
    since: float
    """Monotonic time since which the connection holds more than ``_FLOOR_BYTES``."""
    made: float
    """Monotonic time when the connection was first seen; it may be a second older."""
    descriptor: int = -1
    """Descriptor of the socket in this process, at the last measurement."""
    held: float = 0
    """Estimate of the received bytes that core has not passed to a handler."""


class UnreadWatch:
    """The watch that disconnects peers whose unfinished requests fill the memory, while ``run`` runs."""

    def __init__(self, book: MemoryBook, deadline_s: float) -> None:
        """Open an account in the memory budget; ``deadline_s`` is how long a request may take."""
        self._short_from = book.memory_bytes * SHORT_FROM
        self._bytes_max = book.memory_bytes // RECEIVED_SHARE
        self._held = 0
        """Bytes of all connections that hold more than `_FLOOR_BYTES`, at the last measurement."""
        book.open("received over gRPC", self._bytes_max, lambda: self._held)
        self._deadline_s = deadline_s
        self.port = 0
        """The port of the listener; 0 before ``run``."""
        self._connections: dict[str, _Connection] = {}
        self._taken: Counter[str] = Counter()
        """Bytes of whole requests of each peer since the last measurement, by its host and port."""
        self._taking = Lock()
        """Held while ``_taken`` is increased or replaced."""
        self.cut = 0
        """Number of connections ended since the watch began."""

    def took(self, peer: str, nbytes: int = 0) -> None:
        """Count a new call of a peer, or a request that has arrived completely."""
        with self._taking:
            self._taken[_plain(peer)] += nbytes + _CALL_BYTES

    def age_s(self, peer: str) -> float:
        """Return the seconds since a connection was first seen; 0 if it was not measured yet."""
        one = self._connections.get(_plain(peer))
        return 0.0 if one is None else monotonic() - one.made

    async def run(self, port: int) -> None:
        """Watch the connections to a port until cancelled."""
        self.port = port
        if sys.platform != "linux":
            return
        # Use a separate thread: core receives bytes even while the event loop is busy, and it is busiest when
        # much is received.
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
            # Measuring all connections is expensive, so a cheap look at the process's memory decides if it is
            # needed.
            size = anonymous_bytes()
            pressing = size >= self._short_from or size - before >= self._bytes_max // _GROWTH_PARTS
            if begun >= due or (begun >= soon and pressing):
                before = size
                # Exchange the counts before measuring. Requests that are taken during the measurement count the
                # next time: so no bytes are allowed before the kernel has counted them.
                with self._taking:
                    taken, self._taken = self._taken, Counter()
                found, spent = _look(port)
                self._judge(found, taken, monotonic())
                due = begun + max(_SCAN_S, _SCAN_PARTS * spent)
                soon = begun + _SHORT_PARTS * spent

    def _judge(self, found: list[_Looked], taken: Counter[str], now: float) -> None:
        # 1. Estimate what each connection holds now. Connections that have ended are dropped.
        connections: dict[str, _Connection] = {}
        for peer, descriptor, acked, received in found:
            one = self._connections.get(peer)
            # Fewer bytes than before: the peer's port has been reused by a new connection.
            if one is None or received < one.received:
                one = _Connection(received=0, acked=0, at=now, since=now, made=now)
            may = taken[peer] + (acked - one.acked) / _READ_PARTS + (now - one.at) * _SECOND_BYTES
            one.held = max(0.0, one.held + received - one.received - may)
            one.received, one.acked, one.at = received, acked, now
            one.descriptor = descriptor
            if one.held <= _FLOOR_BYTES:
                one.since = now
            connections[peer] = one
        self._connections = connections  # replaced as a whole, because the event loop reads it
        # 2. Cut the connections that are too slow, and those that hold most until there is room.
        holders = [each for each in self._connections.items() if each[1].held > _FLOOR_BYTES]
        holders.sort(key=lambda each: each[1].held, reverse=True)
        total = sum(one.held for _, one in holders)
        #    If any must be cut, free half of the room: bytes that arrive before the next measurement need it.
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
        # 3. Log only after all were cut, because writing the log may be slow.
        for peer, held, late in gone:
            _log.warning(
                "connection cut: the client does not finish its requests",
                peer=peer,
                bytes=held,
                reason=f"for more than {self._deadline_s:g} s" if late else "and memory is short",
            )


def pending_calls_max(memory_bytes: int) -> int:
    """Return the most calls that may wait in core for the event loop; further calls are cancelled.

    Each waiting call may hold the initial window of a stream, even after its connection has ended. This is the
    only bound for a client that connects again and again. The calls together get 1/8 of the memory, within
    limits.
    """
    return min(max(memory_bytes // _PENDING_SHARE // _FLOOR_BYTES, _PENDING_MIN), _PENDING_MAX)


def _look(port: int) -> tuple[list[_Looked], float]:
    """Return the connections to a port, and the CPU time in seconds that measuring them took."""
    begun = thread_time()
    return list(_connections(port)), thread_time() - begun


def _connections(port: int) -> Iterator[_Looked]:
    """Yield each connection to a port of this process, and wake core for those that have ended."""
    for name in os.listdir("/proc/self/fd"):
        # The descriptor belongs to core and is only borrowed. If core closes it meanwhile, it is skipped.
        try:
            borrowed = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=int(name))
        except OSError:
            continue  # the descriptor is a file
        try:
            state, acked, received = _tcp_info(borrowed)
            if borrowed.getsockname()[1] != port:
                continue
            if state == _ESTABLISHED:
                peer = _named(*borrowed.getpeername()[:2])
                yield _Looked(peer, int(name), acked, received)
            elif state in _ENDED:
                # Core misses the end of a connection that comes while core reads, since it then waits for an
                # event that has already happened. It would retain everything until keepalive. The shutdown is a
                # new event.
                shut_down(int(name), partial(_has_ended, port=port))
        except (OSError, struct.error):
            pass
        finally:
            borrowed.detach()


def _tcp_info(connection: socket.socket) -> tuple[int, int, int]:
    """Return the state of a connection, its acknowledged bytes and its received bytes."""
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
    """Return ``HOST:PORT`` of a peer that grpc names ``ipv4:10.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    kind, _, address = peer.partition(":")
    if kind == "ipv4":
        return address
    host, _, port = unquote(address).rpartition(":")
    return _named(host.strip("[]"), port)
