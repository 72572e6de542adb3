"""Closing a peer's connection, for which grpc.aio has no call.

A call whose reader has stalled cannot be ended from this side: the status stands behind the message that is not
read, and core keeps the message until it is, whether the handler aborts, returns or is cancelled. Where
memory is short that message is what has to go, and it goes with its connection.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

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
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it is closed by now, or not connected
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                found |= _shut_down(int(name), wanted)
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


def _shut_down(descriptor: int, peer: tuple[str, str]) -> bool:
    """Shut down a socket if it is connected to a host and port; core, whose it is, closes it then."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in {socket.AF_INET, socket.AF_INET6}:
            return False
        host, port = copy.getpeername()[:2]
        if (host.removeprefix("::ffff:"), str(port)) != peer:
            return False
        copy.shutdown(socket.SHUT_RDWR)
        return True
