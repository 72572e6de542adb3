"""The other end of a connection. As it is shown over each transport: tests/conformance/test_peers.py."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from tailrace_server.api.peers import over_grpc, over_http
from tailrace_server.grants.principal import Peer


def test_addresses_are_written_as_people_write_them() -> None:
    agent = (("user-agent", "grpc-node-js/1.9"), ("x-trace", b"1"))
    assert over_grpc("ipv4:10.0.0.7:50112", agent) == Peer(
        "grpc", "10.0.0.7:50112", "grpc-node-js/1.9"
    )
    assert over_grpc("ipv6:%5B::1%5D:50112", None) == Peer("grpc", "[::1]:50112")
    assert over_grpc("unix:/run/tailrace.sock", ()) == Peer("grpc")
    scope = {"type": "http", "headers": [(b"user-agent", b"curl/8.5.0")], "client": ("::1", 5)}
    assert over_http("rest_events", HTTPConnection(scope)) == Peer(
        "rest_events", "[::1]:5", "curl/8.5.0"
    )


def test_of_a_long_user_agent_the_beginning_is_kept() -> None:
    scope = {"type": "http", "headers": [(b"user-agent", b"x" * 60_000)], "client": None}
    assert over_http("rest_events", HTTPConnection(scope)).client == "x" * 200
    assert over_grpc("", [("user-agent", b"y" * 8_000)]).client == "y" * 200
