"""A Redis without persistence, and a writer of one of its streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Final

import psutil

from bench._harness import SERVER_CPU, Server, ended, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MISSING: Final = shutil.which("redis-server") is None
STREAM: Final = b"s"
_FIRST_ID: Final = 10**12
"""Ids count from here, so that all have the same digits."""
_ENTRIES_A_TRANSACTION: Final = 2_000


def entry_id(number: int) -> bytes:
    """Return the id of an entry, which counts from 0."""
    return b"%d-0" % (_FIRST_ID + number)


def command(*words: bytes) -> bytes:
    """Return a command as Redis takes it."""
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in words
    )


@contextlib.contextmanager
def redis() -> Iterator[Server]:
    """Run a Redis without persistence on a free port of loopback."""
    port = free_port()
    process = psutil.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, SERVER_CPU),
    )
    with ended(process):
        server = Server(process, str(port))
        server.wait_for(b"Ready to accept connections")
        yield server


class RedisWriter:
    """A connection that adds entries."""

    def __init__(self, address: str, event_bytes: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(address)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._payload = b"x" * event_bytes
        self._written = 0

    def prepared(self, events: int) -> Callable[[], None]:
        """Return the function that adds so many, thousands a transaction; all are there when it returns."""
        transactions = [
            b"".join(
                [
                    command(b"MULTI"),
                    *(self._add() for _ in range(min(_ENTRIES_A_TRANSACTION, events - start))),
                    command(b"EXEC"),
                ]
            )
            for start in range(0, events, _ENTRIES_A_TRANSACTION)
        ]
        return partial(self._fill, transactions)

    def _fill(self, transactions: Sequence[bytes]) -> None:
        self._socket.sendall(command(b"CLIENT", b"REPLY", b"OFF"))
        for each in transactions:
            self._socket.sendall(each)
        self._socket.sendall(command(b"CLIENT", b"REPLY", b"ON") + command(b"XLEN", STREAM))
        self._expect(b"+OK\r\n:%d\r\n" % self._written)

    def put(self) -> None:
        """Add one entry; it is there when this returns."""
        name = entry_id(self._written)
        self._socket.sendall(self._add())
        self._expect(b"$%d\r\n%s\r\n" % (len(name), name))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _add(self) -> bytes:
        self._written += 1
        return command(b"XADD", STREAM, entry_id(self._written - 1), b"d", self._payload)

    def _expect(self, wanted: bytes) -> None:
        answer = b""
        while len(answer) < len(wanted) and (more := self._socket.recv(len(wanted))):
            answer += more
        assert answer == wanted, answer
