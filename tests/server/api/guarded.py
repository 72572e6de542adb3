"""A server that asks for identities, with an issuer of tokens, on both listeners."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tailrace.errors import TokenExpired, Unauthenticated
from tailrace_server.access.configured import Access
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import AccessSettings, QuotaSettings
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace_server.access.door import Door
    from tailrace_server.api.server.http import HttpFace
    from tests.support.issuer import TokenIssuer


@dataclass
class Guarded:
    """A server that asks for identities, on both listeners."""

    engine: Engine
    door: Door
    face: HttpFace
    http: httpx.AsyncClient
    grpc: GrpcServer
    target: str
    issuer: TokenIssuer

    def credentials(self) -> dict[str, tuple[dict[str, str], type[Exception], str]]:
        """Return what proves nothing: headers, the error, and its code over HTTP."""
        wrong = (Unauthenticated, "UNAUTHENTICATED")
        token = self.issuer.token
        return {
            "none": ({}, *wrong),
            "garbage": ({"authorization": "Bearer garbage"}, *wrong),
            "basic": ({"authorization": "Basic YTpi"}, *wrong),
            "expired": ({"authorization": f"Bearer {token(-1)}"}, TokenExpired, "TOKEN_EXPIRED"),
            "audience": ({"authorization": f"Bearer {token(aud='other')}"}, *wrong),
        }

    def headers(self, **claims: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.issuer.token(**claims)}"}


@asynccontextmanager
async def guarding(
    log_root: Path,
    folder: Path,
    issuer: TokenIssuer,
    quotas: QuotaSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Guarded]:
    """Serve a log root to who has a token of an issuer; ``settings`` are those of the HTTP listener."""
    file = issuer.settings(folder, keys=f"{issuer.address}/jwks")
    access = Access(AccessSettings(identities=file), quotas=Quotas(quotas))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            Engine(log_root, EngineSettings(heartbeat_interval_s=0.05))
        )
        watch = asyncio.create_task(access.run(engine))
        stack.callback(watch.cancel)
        face = await stack.enter_async_context(listening(engine, door=access.door, **settings))
        server = GrpcServer(engine, door=access.door)
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.stop, 0.5)
        url = f"http://127.0.0.1:{face.address.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE_S))
        yield Guarded(engine, access.door, face, http, server, f"127.0.0.1:{port}", issuer)
