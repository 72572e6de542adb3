"""What a client's certificate calls it, over both listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import httpx
from cryptography import x509
from starlette.applications import Starlette
from websockets import Subprotocol
from websockets.asyncio.client import connect

import tailrace
from tailrace_server.api.grpc.service import ChangeCaptureService
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.transport_security import certificate_names
from tailrace_server.api.transport_security.certificate_names import (
    names_over_grpc,
    names_over_http,
)
from tests.support.certificates import Authority

if TYPE_CHECKING:
    import pytest

    from tests.server.api.transport_security.conftest import Secure

NAMES = (
    "cn:reports",
    "dns:reports.example.com",
    "dns:*.jobs.example.com",
    "uri:spiffe://example/reports",
    "email:reports@example.com",
)
OF_A_CLIENT = (
    x509.RFC822Name("reports@example.com"),
    x509.DNSName("reports.example.com"),
    x509.UniformResourceIdentifier("spiffe://example/reports"),
    x509.DNSName("*.jobs.example.com"),
)


async def test_names_come_over_http_and_over_websockets(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []
    real = Starlette.__call__

    async def noted(self: Any, scope: Any, receive: Any, send: Any) -> None:
        seen.append(names_over_http(scope))
        await real(self, scope, receive, send)

    monkeypatch.setattr(Starlette, "__call__", noted)
    served = await secure(client_ca=True)
    context = served.context(served.clients.client("reports", *OF_A_CLIENT))
    port = served.face.address.port
    async with httpx.AsyncClient(verify=context, base_url=f"https://localhost:{port}") as http:
        assert (await http.get("/health")).status_code == 200
    async with connect(
        f"wss://localhost:{port}/v1/catalogs/shop/changes/live",
        ssl=context,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        proxy=None,
    ):
        assert seen == [NAMES, NAMES]


async def test_names_come_over_grpc(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    real = ChangeCaptureService.list_catalogs

    async def noted(self: Any, data: bytes, context: Any) -> bytes:
        seen.append(names_over_grpc(context))
        return await real(self, data, context)

    monkeypatch.setattr(ChangeCaptureService, "list_catalogs", noted)
    served = await secure(client_ca=True)
    issued = served.clients.client("reports", *OF_A_CLIENT)
    credentials = grpc.ssl_channel_credentials(
        served.authority.certificate, issued.key, issued.certificate
    )
    async with tailrace.connect(
        f"https://localhost:{served.grpc_port}", credentials=credentials
    ) as client:
        await client.list_catalogs()
    assert seen == [NAMES]


def test_a_certificate_may_have_one_name_alone() -> None:
    issued = Authority().client("someone")
    assert certificate_names._of_pem(issued.certificate) == ("cn:someone",)
