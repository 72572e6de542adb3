"""Connections are found by the name that grpc has for their peer, and nobody else's is touched."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from tailrace_server.api.grpc.connections import disconnect


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
                assert disconnect(peer.format(port=client.getsockname()[1]))
                assert client.recv(1) == b""
                other.sendall(b"x")
                assert neighbour.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:", "unix:/tmp/socket", "", "ipv4:"])
def test_a_peer_that_is_not_connected_is_nobody(peer: str) -> None:
    assert not disconnect(peer)
