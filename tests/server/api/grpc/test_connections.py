"""Connections are found by the name that grpc has for their peer, and nobody else's is touched."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tailrace_server.api.grpc import connections
from tailrace_server.api.grpc.connections import disconnect
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.api.settings import GrpcSettings
from tailrace_server.engine.engine import Engine
from tests.support.raw_http2 import hello

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("family", "host", "peer"),
    [
        (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:{port}"),
        (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:{port}"),
        (socket.AF_INET6, "::1", "ipv6:[::1]:{port}"),
    ],
)
def test_the_connection_of_a_peer_is_shut_down_and_that_of_its_neighbour_stays(
    family: socket.AddressFamily, host: str, peer: str
) -> None:
    with closing(socket.socket(family)) as listener:
        listener.bind((host, 0))
        listener.listen()
        with (
            closing(socket.socket(family)) as client,
            closing(socket.socket(family)) as neighbour,
        ):
            for each in (client, neighbour):
                each.settimeout(10)
                each.connect(listener.getsockname())
            with closing(listener.accept()[0]), closing(listener.accept()[0]) as other:
                port = client.getsockname()[1]
                with capture_logs() as lines:
                    assert disconnect(peer.format(port=port), listener.getsockname()[1])
                (line,) = lines
                assert line["peer"].endswith(f":{port}")
                assert client.recv(1) == b""
                other.sendall(b"x")
                assert neighbour.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:", "unix:/tmp/socket", "", "ipv4:"])
def test_a_peer_that_is_not_connected_is_nobody(peer: str) -> None:
    assert not disconnect(peer, 1)


def test_a_connection_from_the_same_port_to_another_listener_stays() -> None:
    """As one to HTTP may be: only both ends together name a connection."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_connection(listener.getsockname())) as client,
        closing(listener.accept()[0]) as accepted,
    ):
        host, port = client.getsockname()
        assert not disconnect(f"ipv4:{host}:{port}", listener.getsockname()[1] ^ 1)
        accepted.sendall(b"x")
        client.settimeout(10)
        assert client.recv(1) == b"x"


async def test_the_kernel_holds_no_more_for_a_grpc_connection_than_the_setting_says(
    log_root: Path,
) -> None:
    """Core sets no buffer of its own, and what it accepts has that of the listener."""
    asked = 100_000
    async with Engine(log_root) as engine:
        server = GrpcServer(engine, GrpcSettings(grpc_send_buffer_bytes=asked))
        port = await server.start("127.0.0.1:0")
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            client.settimeout(10)
            client.sendall(hello(1 << 16))
            await asyncio.to_thread(client.recv, 1)  # core has accepted it, and speaks
            found = []
            for each in connections._sockets():
                with each:
                    if each.family != socket.AF_UNIX and each.getsockname()[1] == port:
                        found.append(each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        await server.stop(1)
    assert found == [asked, asked]  # the listener and what it accepted
