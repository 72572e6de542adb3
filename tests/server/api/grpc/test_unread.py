"""Peers that do not finish what they send: they go, and nobody else does."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Operation
from tailrace.criteria import Criteria
from tailrace.transport.grpc import SERVICE
from tailrace_server.api.grpc import GrpcSettings
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.unfinished import UnfinishedRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.grpc.conftest import Served

    Serve = Callable[..., Awaitable[Served]]

SUBSCRIBE = f"/{SERVICE}/Subscribe"
MIB = 1 << 20


def write(writer: ModelWriter, key: str) -> None:
    writer.write([ModelMutation("product", key, Operation.REMOVE, None, None)])


async def test_contract_16_a_request_that_is_never_finished_has_its_deadline(
    serve: Serve, writer: ModelWriter
) -> None:
    """One below the window of a stream costs next to nothing, and stays."""
    served = await serve(GrpcSettings(request_s=0.5))
    async with (
        UnfinishedRequests(served.port, SUBSCRIBE, streams=1, size=MIB) as large,
        UnfinishedRequests(served.port, SUBSCRIBE, streams=1, size=1000) as small,
        tailrace.connect(served.target) as client,
        client.subscribe("shop", since=0) as neighbour,
        asyncio.timeout(PATIENCE_S),
    ):
        rest = asyncio.ensure_future(small.run())
        await large.run()
        assert served.server.statistics().connections_cut == 1
        write(writer, "later")
        await anext(neighbour)
        assert not rest.done()
        rest.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["Subscribe", "SubscribeWithDemand"])
async def test_contract_13_16_unfinished_requests_share_their_part_of_the_memory(
    serve: Serve, writer: ModelWriter, method: str
) -> None:
    """Those that hold most go. A neighbour with the largest request that there may be is served meanwhile."""
    served = await serve(memory_bytes=128 * MIB)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        peers = [
            await stack.enter_async_context(
                UnfinishedRequests(served.port, f"/{SERVICE}/{method}", streams=20, size=4 * MIB)
            )
            for _ in range(4)
        ]
        running = [asyncio.ensure_future(each.run()) for each in peers]
        client = await stack.enter_async_context(tailrace.connect(served.target))
        keys = tuple(f"{number:0390}" for number in range(10_000))
        wish = Criteria(primary_key=(*keys, "wanted"))
        reader = await stack.enter_async_context(client.subscribe("shop", wish, since=0))
        await until(lambda: served.server.statistics().connections_cut >= 3)
        write(writer, "wanted")
        assert (await anext(reader)).primary_key == "wanted"
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.slow
async def test_contract_13_many_calls_of_one_connection_count_as_read(serve: Serve) -> None:
    served = await serve(GrpcSettings(request_s=0.5))
    call = served.channel.unary_unary(f"/{SERVICE}/ListCatalogs", None, None)
    metadata = (("x-token", "t" * 4000),)
    loop = asyncio.get_running_loop()
    until_then = loop.time() + 2.5
    while loop.time() < until_then:
        await asyncio.gather(*(call(b"", metadata=metadata) for _ in range(50)))
    assert served.server.statistics().connections_cut == 0
