"""TLS of the client: what it takes, and each way that it does not come about, in words that say what to do."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import tailrace
from tailrace import Tls, TlsFailed, TransportError, connect
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.files import TlsFiles
from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening
from tests.support.certificates import Authority, Issued, ServerKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client import Client


@dataclass
class Servers:
    """Servers over TLS, each of its own kind."""

    engine: Engine
    folder: Path
    stack: AsyncExitStack
    authority: Authority
    clients: Authority

    @property
    def ca(self) -> Path:
        return self.authority.write(self.folder)

    def files(self, issued: Issued, *, client_ca: bool = False) -> TlsFiles:
        certificate, key = issued.write(self.folder)
        ca = self.clients.write(self.folder, "clients") if client_ca else None
        return TlsFiles(
            TransportSecuritySettings(tls_certificate=certificate, tls_key=key, tls_client_ca=ca)
        )

    async def start(self, issued: Issued | None = None, **options: Any) -> str:
        """Start a server, over TLS if it is given a certificate, and return its address."""
        tls = None if issued is None else self.files(issued, **options)
        server = GrpcServer(self.engine, tls=tls)
        port = await server.start("127.0.0.1:0")
        self.stack.push_async_callback(server.stop, 1.0)
        return f"localhost:{port}"

    def shown(self, authority: Authority) -> tuple[Path, Path]:
        """Return the files of a client's certificate."""
        return authority.client("me").write(self.folder, "me")


@pytest.fixture
async def servers(log_root: Path, tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(log_root))
        yield Servers(engine, tmp_path / "tls", stack, Authority("a"), Authority("b"))


async def why(client: Client) -> str:
    """Return why a client does not come to a server."""
    async with client:
        with pytest.raises(TlsFailed) as caught:
            await client.list_catalogs()
    return caught.value.reason


async def test_a_file_of_cas_is_trusted_and_a_certificate_shown(servers: Servers) -> None:
    address = await servers.start(servers.authority.server(), client_ca=True)
    certificate, key = servers.shown(servers.clients)
    tls = Tls(ca=servers.ca, certificate=certificate, key=key)
    async with connect(address, tls=tls) as client:
        assert await client.list_catalogs() == ()
    async with connect(f"https://{address}", tls=tls) as client:
        assert await client.list_catalogs() == ()


@pytest.mark.parametrize(
    "key",
    [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)],
    ids=["P-384", "RSA"],
)
async def test_servers_may_have_keys_of_other_kinds(servers: Servers, key: ServerKey) -> None:
    address = await servers.start(servers.authority.server(key=key))
    async with connect(address, tls=servers.ca) as client:
        assert await client.list_catalogs() == ()


async def test_the_systems_roots_are_trusted_where_nothing_else_is_named(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await servers.start(servers.authority.server())
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.ca))
    for client in (connect(f"https://{address}"), connect(address, tls=True)):
        async with client:
            assert await client.list_catalogs() == ()


async def test_a_port_of_plain_text_is_told(servers: Servers) -> None:
    address = await servers.start()
    assert "it does not speak TLS; leave TLS out" in await why(connect(address, tls=servers.ca))


async def test_plain_text_to_a_port_of_tls_is_told(servers: Servers) -> None:
    address = await servers.start(servers.authority.server())
    assert "it speaks TLS, but the connection is plain text" in await why(connect(address))
    mutual = await servers.start(servers.authority.server(), client_ca=True)
    assert "it speaks TLS, but the connection is plain text" in await why(connect(mutual))


async def test_an_unknown_ca_is_told(servers: Servers) -> None:
    address = await servers.start(Authority("another").server())
    assert "is of a CA that is not trusted here" in await why(connect(address, tls=servers.ca))


async def test_a_certificate_for_another_name_is_told_with_the_names_that_it_has(
    servers: Servers,
) -> None:
    issued = servers.authority.server(x509.DNSName("db.example"), x509.DNSName("*.db.example"))
    address = await servers.start(issued)
    told = await why(connect(address, tls=servers.ca))
    assert told.startswith("its certificate is for db.example, *.db.example, not for localhost")


async def test_an_expired_certificate_is_told(servers: Servers) -> None:
    issued = servers.authority.server(since=timedelta(days=2), lasts=-timedelta(days=1))
    address = await servers.start(issued)
    assert "its certificate has expired" in await why(connect(address, tls=servers.ca))


async def test_a_certificate_of_the_client_that_is_missing_or_refused_is_told(
    servers: Servers,
) -> None:
    address = await servers.start(servers.authority.server(), client_ca=True)
    told = await why(connect(address, tls=servers.ca))
    assert "it requires a client certificate" in told
    certificate, key = servers.shown(Authority("strangers"))
    told = await why(connect(address, tls=Tls(ca=servers.ca, certificate=certificate, key=key)))
    assert "it rejected the client's certificate" in told


async def test_the_http_port_over_tls_is_told(servers: Servers) -> None:
    files = servers.files(servers.authority.server())
    async with listening(servers.engine, tls=files) as face:
        told = await why(connect(f"localhost:{face.address.port}", tls=servers.ca))
    assert "give the server's gRPC address, not its HTTP address" in told


async def test_a_subscription_that_never_stood_ends_at_once(servers: Servers) -> None:
    """It would wait for ten seconds for what a setting has to change."""
    address = await servers.start(Authority("another").server())
    async with connect(address, tls=servers.ca) as client:
        with pytest.raises(TlsFailed):
            async with client.subscribe("shop"):
                pass


async def test_a_server_that_is_not_there_is_told_as_that(servers: Servers) -> None:
    server = GrpcServer(servers.engine)
    port = await server.start("127.0.0.1:0")
    await server.stop(1.0)
    async with connect(f"127.0.0.1:{port}", tls=servers.ca) as client:
        with pytest.raises(
            tailrace.TransportError, match=r"cannot reach .*onnection refused"
        ) as got:
            await client.list_catalogs()
    assert not isinstance(got.value, TlsFailed)


def test_what_tls_may_be_is_told() -> None:
    with pytest.raises(tailrace.InvalidRequest, match="tls 7: write True for the system's roots"):
        connect("here", tls=7)  # type: ignore[arg-type]


def test_files_are_judged_before_anything_is_sent(servers: Servers) -> None:
    ca = servers.ca
    certificate, key = servers.shown(servers.clients)
    garbage = servers.folder / "garbage"
    garbage.write_text("garbage")
    for tls, told in (
        (Tls(ca=ca.with_name("none")), "ca .*none: no such file or directory"),
        (Tls(ca=garbage), "ca .*garbage: not in PEM form"),
        (Tls(ca=ca, key=key), "a key without its certificate"),
        (Tls(ca=ca, certificate=certificate), "key .*me.crt: not in PEM form"),
        (
            Tls(
                ca=ca,
                certificate=certificate,
                key=Authority().client("x").write(servers.folder, "x")[1],
            ),
            "not the key of the certificate",
        ),
    ):
        with pytest.raises(tailrace.InvalidRequest, match=rf"^connect: tls:? {told}|{told}"):
            connect("here", tls=tls)


async def test_changed_files_are_taken_once_a_handshake_fails(servers: Servers) -> None:
    """And only whole ones: what is being written is not."""
    address = await servers.start(servers.authority.server(), client_ca=True)
    certificate, key = servers.shown(Authority("strangers"))
    tls = Tls(ca=servers.ca, certificate=certificate, key=key)
    async with connect(address, tls=tls) as client:
        for _ in range(2):
            with pytest.raises(TlsFailed, match="rejected the client's certificate"):
                await client.list_catalogs()
            key.write_text("half a key")
        servers.shown(servers.clients)
        with pytest.raises(TransportError) as caught:
            await client.list_catalogs()
        assert caught.value.retriable
        assert not isinstance(caught.value, TlsFailed)
        assert await client.list_catalogs() == ()
