"""Calls to methods that there are not: each is refused, and nothing else happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import tailrace
from tailrace import Operation
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.model import ModelMutation
from tests.support.raw_http2 import RawCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.grpc.conftest import Served

    Serve = Callable[..., Awaitable[Served]]


@pytest.mark.parametrize(
    "path", [b"/x\x92", b"\xff" * 1000, b"/", b"/tailrace.v1.ChangeCapture/\xc3", b"/x/y"]
)
async def test_contract_13_22_no_path_ends_the_loop_that_accepts_calls(
    serve: Serve, writer: ModelWriter, path: bytes
) -> None:
    """A path that is no UTF-8 ends grpc.aio's own."""
    served = await serve()
    async with (
        RawCall(served.port, path, b"", window=65_535) as bad,
        asyncio.timeout(PATIENCE_S),
    ):
        assert b"grpc-status\x0212" in await bad.until_ended()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe("shop", since=0) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        writer.write([ModelMutation("product", "1", Operation.REMOVE, None, None)])
        await anext(captures)


async def test_a_method_that_there_is_not_is_named_as_such(serve: Serve) -> None:
    served = await serve()
    with pytest.raises(grpc.aio.AioRpcError, match="no such method") as error:
        await served.channel.unary_unary("/tailrace.v1.ChangeCapture/Nope", None, None)(b"")
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    health = health_pb2_grpc.HealthStub(served.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status
