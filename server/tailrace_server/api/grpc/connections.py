"""What grpc.aio has no call for: closing a peer's connection, and bounding what the kernel holds for it.

A call whose reader has stalled cannot be ended from this side: the status stands behind the message that is not
read, and core keeps the message until it is, whether the handler aborts, returns or is cancelled. Where
memory is short that message is what has to go, and it goes with its connection.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS: Final = "/proc/self/fd"


def disconnect(peer: str) -> bool:
    """Shut down the connections of a peer, as grpc names it; return whether there was one.

    Every stream on it ends; clients resume. Linux only, and not for sockets with a path, which have no peer.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"} or not os.path.isdir(_DESCRIPTORS):
        return False
    host, _, port = address.rpartition(":")
    wanted = host.strip("[]"), port
    found = False
    for copy in _sockets():
        with copy, suppress(OSError):  # it is closed by now, or not connected
            found |= _shut_down(copy, wanted)
    return found


def disconnect_all(port: int) -> None:
    """Shut down every connection to a port of this process, whatever its peer reads. Linux only."""
    if not os.path.isdir(_DESCRIPTORS):
        return
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it is closed by now, no socket, or not connected
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                _shut_down_at(int(name), port)


def _shut_down_at(descriptor: int, port: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family in {socket.AF_INET, socket.AF_INET6} and copy.getsockname()[1] == port:
            copy.getpeername()  # the listener has none, and is left alone
            copy.shutdown(socket.SHUT_RDWR)


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
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it is closed by now
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(name)))


def _shut_down(copy: socket.socket, wanted: tuple[str, str]) -> bool:
    """Shut down a socket if it is connected to a host and port; core, whose it is, closes it then."""
    if copy.family not in {socket.AF_INET, socket.AF_INET6}:
        return False
    host, port = copy.getpeername()[:2]
    if (host.removeprefix("::ffff:"), str(port)) != wanted:
        return False
    copy.shutdown(socket.SHUT_RDWR)
    return True
