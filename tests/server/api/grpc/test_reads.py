"""Calls that read: behind a trusted proxy each is recorded with the address that the proxy names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.transport.grpc import SERVICE
from tailrace.v1.change_capture_pb2 import ReadChangesRequest, ReadStateRequest, SubscribeRequest
from tailrace.v1.sql_pb2 import QuerySqlRequest
from tailrace_server.api.transport_security.proxies import TrustedProxies
from tailrace_server.resources.admission import FreeAdmission
from tests.conformance.shop import upsert
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.support.inprocess import ModelWriter

CLIENT = "203.0.113.7"


class NotedPeers(FreeAdmission):
    """Admits everything, and notes the address of each caller."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def subscription(self, *asked: Any) -> FreeAdmission:
        self.addresses.append(asked[1].address)
        return self

    history = subscription


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Subscribe", SubscribeRequest(catalog="shop")),
        ("ReadChanges", ReadChangesRequest(catalog="shop")),
        ("ReadState", ReadStateRequest(catalog="shop", entity_type="product")),
        ("QuerySql", QuerySqlRequest(catalog="shop", statement="SELECT 1")),
    ],
)
async def test_every_read_behind_a_trusted_proxy_has_the_address_of_its_client(
    serve: Any, writer: ModelWriter, method: str, request_: Message
) -> None:
    writer.write([upsert("1")])
    noted = NotedPeers()
    served = await serve(admissions=noted, proxies=TrustedProxies(("127.0.0.1",)))
    call = served.channel.unary_stream(f"/{SERVICE}/{method}", None, None)(
        request_.SerializeToString(), metadata=(("x-forwarded-for", CLIENT),)
    )
    async with asyncio.timeout(PATIENCE_S):
        await call.read()
    call.cancel()
    assert noted.addresses == [CLIENT]
