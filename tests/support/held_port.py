"""A port of loopback that is nobody else's while a test's servers take it, leave it and take it again.

The kernel gives a port that a server has left to whoever asks next, on a machine with other tests. A
socket that is bound to it and never listens keeps it. It stands in no server's way, since all of them
bind to addresses that such sockets use (``SO_REUSEADDR``).
"""

from __future__ import annotations

import socket


class HeldPort:
    """A port that was free, kept until this is closed or forgotten."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"

    def close(self) -> None:
        """Let anybody have the port; more than once is fine."""
        self._socket.close()

    def __del__(self) -> None:
        self.close()
