"""An etcd of one node, and a writer that speaks its gRPC API in bytes made by hand.

The fields are those of ``rpc.proto`` and ``kv.proto`` of etcd. Keys have one length. All revisions take two
bytes as varints: `etcd` uses up the first 127, and a bench makes fewer than 16,000. So every event of a watch
has the same size, `event_bytes_of`, and the size of a message tells how many events are in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc
import psutil

from bench._harness import SERVER_CPU, Server, ended, free_port
from tailrace_server.codecs.fields import field, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MISSING: Final = shutil.which("etcd") is None
_KEY_BYTES: Final = 10
_PUTS_A_TXN: Final = 300
"""A watch that catches up gets a thousand transactions in one message: with 1,000 puts it is slower by a third,
with 100 puts a live one is."""
_TXNS_AHEAD: Final = 8
"""Transactions on their way: enough for etcd to sync several to the disk at once."""
_ONE_BYTE_REVISIONS: Final = 127
_START_TIMEOUT_S: Final = 30


def watch_request(start_revision: int) -> bytes:
    """Return the request to watch all events from a revision, 0: from now on.

    Messages are as long as they are: etcd takes 40 µs an event to split them.
    """
    keys = field(0x0A, b"e") + field(0x12, b"f")
    return field(0x0A, keys + b"\x18" + varint(start_revision))


def event_bytes_of(payload_bytes: int) -> int:
    """Return the size on the wire of an event whose key and value have so many bytes together."""
    revision = varint(_ONE_BYTE_REVISIONS + 1)
    numbers = b"\x10" + revision + b"\x18" + revision + b"\x20\x01"
    row = field(0x0A, b"k" * _KEY_BYTES) + numbers + field(0x2A, _value(payload_bytes))
    return len(field(0x5A, field(0x12, row)))


def _value(payload_bytes: int) -> bytes:
    return b"x" * (payload_bytes - _KEY_BYTES)


@contextlib.contextmanager
def etcd() -> Iterator[Server]:
    """Run an etcd with its data in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        process = psutil.Popen(
            [
                *("etcd", "--data-dir", folder, "--log-level", "warn", "--logger", "zap"),
                *("--listen-client-urls", clients, "--advertise-client-urls", clients),
                *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                *("--initial-cluster", f"default={peers}"),
                *("--max-txn-ops", str(_PUTS_A_TXN), "--quota-backend-bytes", str(8 << 30)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, SERVER_CPU),
        )
        with ended(process):
            server = Server(process, f"127.0.0.1:{port}")
            with contextlib.closing(EtcdWriter(server.address, _KEY_BYTES)) as writer:
                writer.use_up_revisions()
            yield server


class EtcdWriter:
    """A channel that puts keys; each is new."""

    def __init__(self, address: str, event_bytes: int) -> None:
        self._channel = grpc.insecure_channel(address)
        self._put = self._channel.unary_unary("/etcdserverpb.KV/Put", None, None)
        self._txn = self._channel.unary_unary("/etcdserverpb.KV/Txn", None, None)
        self._value = field(0x12, _value(event_bytes))
        self._written = 0

    def use_up_revisions(self) -> None:
        """Wait for the server, and use up the revisions of one byte, on a key that is not watched."""
        request = field(0x0A, b"0")
        for _ in range(_ONE_BYTE_REVISIONS):
            self._put(request, timeout=_START_TIMEOUT_S, wait_for_ready=True)

    def prepared(self, events: int) -> Callable[[], None]:
        """Return the function that puts so many keys; all are durable when it returns."""
        requests = [
            b"".join(
                field(0x12, field(0x12, self._row()))
                for _ in range(min(_PUTS_A_TXN, events - start))
            )
            for start in range(0, events, _PUTS_A_TXN)
        ]
        return partial(self._fill, requests)

    def _fill(self, requests: Sequence[bytes]) -> None:
        under_way: deque[grpc.Future[bytes]] = deque()
        for request in requests:
            under_way.append(self._txn.future(request))
            if len(under_way) == _TXNS_AHEAD:
                under_way.popleft().result()
        for each in under_way:
            each.result()

    def put(self) -> None:
        """Put one key; it is durable when this returns."""
        self._put(self._row())

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _row(self) -> bytes:
        self._written += 1
        return b"\x0a%c" % _KEY_BYTES + b"e%09d" % self._written + self._value
