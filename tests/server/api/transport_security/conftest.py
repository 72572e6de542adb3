"""Files of TLS, and both listeners with them."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.files import TlsFiles
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.support.certificates import Authority, Issued

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tailrace_server.api.server.http import HttpFace
    from tests.support.inprocess import ModelWriter

    Secure = Callable[..., Awaitable["Secured"]]

LOOK_S = 0.01


@dataclass
class Secured:
    """Both listeners over TLS, with what clients of theirs need."""

    folder: Path
    authority: Authority
    tls: TlsFiles
    engine: Engine
    grpc: GrpcServer
    grpc_port: int
    face: HttpFace
    clients: Authority = field(default_factory=lambda: Authority("clients"))

    @property
    def ports(self) -> tuple[int, int]:
        return self.grpc_port, self.face.address.port

    def context(self, client: Issued | None = None) -> ssl.SSLContext:
        """Return what a client over HTTP needs to trust the server."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        if client is not None:
            context.load_cert_chain(*client.write(self.folder, "of-a-client"))
        return context

    async def served_certificate(self, port: int) -> bytes:
        """Return the certificate that new connections get, as DER."""
        context = self.context()
        context.set_alpn_protocols(["h2"] if port == self.grpc_port else ["http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        assert isinstance(found, bytes)
        return found

    def issue(self) -> bytes:
        """Give the server another certificate, and return that as DER."""
        issued = self.authority.server()
        issued.write(self.folder)
        return ssl.PEM_cert_to_DER_cert(issued.certificate.decode())

    @cached_property
    def certificate_path(self) -> Path:
        return self.folder / "server.crt"


@pytest.fixture
async def secure(log_root: Path, writer: ModelWriter, tmp_path: Path) -> AsyncIterator[Any]:
    """Return a function that serves the log root over TLS until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(*, client_ca: bool = False, **options: Any) -> Secured:
            folder = tmp_path / "tls"
            authority, clients = Authority("servers"), Authority("clients")
            certificate, key = authority.server().write(folder)
            settings = TransportSecuritySettings(
                tls_certificate=certificate,
                tls_key=key,
                tls_client_ca=clients.write(folder, "clients") if client_ca else None,
            )
            tls = TlsFiles(settings, look_s=LOOK_S)
            bounds = EngineSettings(heartbeat_interval_s=0.05)
            engine = await stack.enter_async_context(Engine(log_root, bounds))
            grpc = GrpcServer(engine, tls=tls)
            port = await grpc.start("127.0.0.1:0")
            stack.push_async_callback(grpc.stop, 1.0)
            face = await stack.enter_async_context(listening(engine, tls=tls, **options))
            watch = asyncio.ensure_future(tls.run())

            async def unwatch() -> None:
                watch.cancel()
                await asyncio.wait((watch,))
                assert watch.cancelled()

            stack.push_async_callback(unwatch)
            return Secured(folder, authority, tls, engine, grpc, port, face, clients)

        yield start
