"""Calls that grpc.aio lacks: close a peer's connection, and bound the bytes that the kernel holds for it.

A call whose reader has stalled cannot be ended from this side: the status is behind the message that is not
read, and core keeps the message until it is, whether the handler aborts, returns or is cancelled. If memory is
short that message has to go, and it goes with its connection.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DESCRIPTORS: Final = "/proc/self/fd"
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_LIBC: Final = ctypes.PyDLL(None)
"""Called without letting go of Python's lock. The event loop takes it at each chance, and returns it after
milliseconds: a hundred connections would go one by one, and what others send meanwhile is not looked at."""

_log = structlog.get_logger("tailrace.grpc")


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
    """Whether a socket connects a port of ours to a host and port."""
    if not _is_to(copy, port):
        return False
    host, source = copy.getpeername()[:2]
    return (host.removeprefix("::ffff:"), str(source)) == peer


def _is_to(copy: socket.socket, port: int) -> bool:
    """Whether a socket is a connection to a port of ours; the listener has no peer, and is left alone."""
    return copy.family in _FAMILIES and copy.getsockname()[1] == port and bool(copy.getpeername())
