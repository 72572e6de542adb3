"""RabbitMQ's stream protocol, as much of it as a bench needs, and a server that speaks it.

A frame is its length, a key, a version and fields, all big-endian; a request carries a number that its answer
repeats with a status, 1 where all is well. See ``PROTOCOL.adoc`` of RabbitMQ's stream plugin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bench._harness import SERVER_CPU, Server, ended, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STREAM: Final = "s"
DELIVER: Final = 8
SUBSCRIBED: Final = 0x8007
DELIVER_HEAD: Final = struct.Struct(">IHHBBBHI")
"""Of a delivered chunk: length, key, version, subscription, magic, kind, entries, records."""
_HEAD: Final = struct.Struct(">IHH")
_DECLARE_PUBLISHER, _PUBLISH, _CONFIRM, _SUBSCRIBE, _CREDIT, _CREATE = 1, 2, 3, 7, 9, 13
_PEER_PROPERTIES, _SASL_HANDSHAKE, _SASL_AUTHENTICATE, _TUNE, _OPEN = 17, 18, 19, 20, 21
_OK: Final = 1
_SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_ENTRIES_A_FRAME: Final = 1_000
_UNCONFIRMED_MAX: Final = 50_000

MISSING: Final = not (Path(_SERVER).exists() and shutil.which("epmd"))


def frame(key: int, *fields: bytes) -> bytes:
    """Return a frame."""
    body = b"".join(fields)
    return _HEAD.pack(len(body) + 4, key, 1) + body


def text(value: str) -> bytes:
    """Return a string as the protocol has it."""
    return struct.pack(">H", len(value)) + value.encode()


def subscribe(*, from_first: bool, credit: int) -> bytes:
    """Return the request for what is there, or only for what comes, with so many chunks ahead."""
    offset = struct.pack(">H", 1 if from_first else 3)
    return frame(
        _SUBSCRIBE, struct.pack(">IB", 0, 0), text(STREAM), offset, struct.pack(">HI", credit, 0)
    )


CREDIT: Final = frame(_CREDIT, struct.pack(">BH", 0, 1))
"""Leave to send one chunk more."""


class Connection:
    """A connection that is logged in, used from code without an event loop."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", int(address)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self.ask(_PEER_PROPERTIES, struct.pack(">I", 0))
        self.ask(_SASL_HANDSHAKE)
        login = b"\0guest\0guest"
        self.ask(_SASL_AUTHENTICATE, text("PLAIN"), struct.pack(">I", len(login)) + login)
        self.socket.sendall(frame(_TUNE, self.read(_TUNE)[:4], struct.pack(">I", 0)))
        self.ask(_OPEN, text("/"))

    def ask(self, key: int, *fields: bytes) -> None:
        """Send a request and wait until it is done."""
        self.socket.sendall(frame(key, struct.pack(">I", 0), *fields))
        _, status = struct.unpack_from(">IH", self.read(0x8000 | key))
        assert status == _OK, f"request {key}: status {status}"

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def read(self, wanted: int) -> bytes:
        """Return the fields of the next frame of a kind; those before it are passed over."""
        while True:
            while len(self._got) < 4 or len(self._got) < 4 + self._length():
                more = self.socket.recv(1 << 20)
                assert more, "the server has closed the connection"
                self._got += more
            end = 4 + self._length()
            _, key, _ = _HEAD.unpack_from(self._got)
            fields, self._got = self._got[_HEAD.size : end], self._got[end:]
            if key == wanted:
                return fields

    def _length(self) -> int:
        return int.from_bytes(self._got[:4])


class RabbitmqWriter(Connection):
    """A connection that publishes."""

    def __init__(self, address: str, event_bytes: int) -> None:
        super().__init__(address)
        self._entry = struct.pack(">QI", 0, event_bytes) + b"x" * event_bytes
        self.ask(_DECLARE_PUBLISHER, struct.pack(">B", 0), text(""), text(STREAM))

    def prepared(self, events: int) -> Callable[[], None]:
        """Return the function that publishes so many; all are confirmed when it returns."""
        step = min(events, _ENTRIES_A_FRAME)
        assert events % step == 0
        publication = frame(_PUBLISH, struct.pack(">BI", 0, step), self._entry * step)
        return partial(self._publish, publication, events, step)

    def _publish(self, publication: bytes, events: int, step: int) -> None:
        unconfirmed = 0
        for _ in range(events // step):
            self.socket.sendall(publication)
            unconfirmed += step
            while unconfirmed > _UNCONFIRMED_MAX:
                unconfirmed -= self._confirmed()
        while unconfirmed:
            unconfirmed -= self._confirmed()

    def put(self) -> None:
        """Publish one entry; it is confirmed when this returns."""
        self.prepared(1)()

    def _confirmed(self) -> int:
        _, entries = struct.unpack_from(">BI", self.read(_CONFIRM))
        return int(entries)


@contextlib.contextmanager
def rabbitmq() -> Iterator[Server]:
    """Run a RabbitMQ of one node with one stream, and streams alone, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = Path(name)
        stream, names, nodes = (free_port() for _ in range(3))
        (folder / "plugins").write_text("[rabbitmq_stream].\n")
        (folder / "rabbit.conf").write_text(
            "listeners.tcp = none\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
            "log.console = true\nlog.file = false\n"
        )
        environment = (
            os.environ
            | {
                "HOME": name,
                "ERL_EPMD_PORT": str(names),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_NODENAME": "bench@localhost",
                "RABBITMQ_DIST_PORT": str(nodes),
                "RABBITMQ_MNESIA_BASE": str(folder / "data"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_CONFIG_FILE": str(folder / "rabbit.conf"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
                "RABBITMQ_ALLOW_INPUT": "1",  # as this process and not below it: its CPU time is asked for
                "RABBITMQ_SERVER_START_ARGS": "-noinput",
            }
        )
        # The names of Erlang's nodes: a server that RabbitMQ would otherwise leave running behind it.
        epmd = ["epmd", "-address", "127.0.0.1", "-port", str(names)]
        running.enter_context(ended(psutil.Popen(epmd, stdout=subprocess.DEVNULL)))
        process = psutil.Popen(
            [_SERVER],
            env=environment,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, SERVER_CPU),
        )
        running.enter_context(ended(process))
        server = Server(process, str(stream))
        server.wait_for(b"Server startup complete")
        with contextlib.closing(Connection(server.address)) as connection:
            connection.ask(_CREATE, text(STREAM), struct.pack(">I", 0))
        yield server
