"""What may stand for a server, the same in `connect` and in the commands' ``--server``."""

from __future__ import annotations

import grpc
import pytest

from tailrace import InvalidRequest, connect
from tailrace.tls import Tls
from tailrace.transport.target import Target
from tailrace_server.cli.terminal.options import ServerOptions
from tests.server.cli.command_line import made


@pytest.mark.parametrize(
    ("text", "name", "host"),
    [
        ("127.0.0.1:7411", "127.0.0.1:7411", "127.0.0.1"),
        ("localhost", "localhost:7411", "localhost"),
        ("db.example.com:80", "db.example.com:80", "db.example.com"),
        ("[::1]:7412", "[::1]:7412", "::1"),
        ("[::1]", "[::1]:7411", "::1"),
        ("::1", "[::1]:7411", "::1"),
        ("grpc://db", "db:7411", "db"),
        ("http://db:80/", "db:80", "db"),
        ("HTTP://[fe80::2%eth0]:80", "[fe80::2%eth0]:80", "fe80::2%eth0"),
        ("dns:///db:7411", "dns:///db:7411", ""),
        ("unix:/run/tailrace", "unix:/run/tailrace", ""),
    ],
)
def test_an_address_is_read_alike_by_connect_and_the_commands(
    text: str, name: str, host: str
) -> None:
    assert Target.parse(text) == Target(name, host)
    assert made(ServerOptions, server=text).target.name == name
    connect(text)


def test_a_form_may_ask_for_tls_and_options_do() -> None:
    assert made(ServerOptions, server="https://db").trust == Tls()
    assert made(ServerOptions, server="db", tls=True).trust == Tls()
    assert made(ServerOptions, server="db", tls_ca="ca.crt", tls_key="").trust == Tls(ca="ca.crt")
    assert made(ServerOptions, server="db").trust is None
    with pytest.raises(InvalidRequest, match=r"--server .*plain text, but TLS was requested"):
        made(ServerOptions, server="http://db", tls=True).connect()


def test_tls_has_its_own_port() -> None:
    assert Target.parse("https://db", tls=True).name == "db:443"
    assert Target.parse("grpcs://db:7411", tls=True).name == "db:7411"
    assert Target.parse("db", tls=True).name == "db:7411"
    connect("https://db", credentials=grpc.ssl_channel_credentials())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ws://db:7412", "speaks gRPC, not ws"),
        ("http://db/v1", "a gRPC address has no path"),
        ("http://db?catalog=shop", "a gRPC address has no path"),
        ("http://ada:pw@db", "has a user"),
        ("db:0", "0 is not a port"),
        ("db:65536", "65536 is not a port"),
        ("db:999999999999999999999", "not a port"),
        ("db:", "host:port"),
        (":7411", "host:port"),
        ("a b:7411", "host:port"),
        ("db/v1", "host:port"),
        ("db:port", "host:port"),
        ("[db]:7411", "host:port"),
        ("1:2:3", "host:port"),
        ("", "host:port"),
    ],
)
def test_what_is_no_address_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        connect(text)
    with pytest.raises(InvalidRequest, match=f"--server .*{told}"):
        made(ServerOptions, server=text).connect()


def test_credentials_do_not_go_with_plain_text() -> None:
    with pytest.raises(InvalidRequest, match="plain text"):
        connect("http://db", credentials=grpc.ssl_channel_credentials())


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="connect: 7411: write the server's address as host:port"
    ):
        connect(7411)  # type: ignore[arg-type]
