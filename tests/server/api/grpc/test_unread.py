"""Peers that do not finish what they send: they go, and nobody else does."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Operation
from tailrace.criteria import Criteria
from tailrace.transport.grpc import SERVICE
from tailrace_server.api.grpc import GrpcSettings
from tailrace_server.api.grpc.connections import UnreadWatch
from tailrace_server.resources.memory import MemoryBook
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
FIN_WAIT2 = 5


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
        await until(lambda: served.server.statistics().connections_cut == 1)
        write(writer, "later")
        await anext(neighbour)
        assert not rest.done()
        rest.cancel()


async def test_contract_13_16_the_first_window_of_a_call_stays_small(serve: Serve) -> None:
    """It is all that a call can make the server keep before somebody takes it."""
    served = await serve(GrpcSettings(request_s=0.5))
    async with (
        UnfinishedRequests(served.port, SUBSCRIBE, streams=20, size=MIB) as peer,
        asyncio.timeout(PATIENCE_S),
    ):
        await peer.run()
        assert sum(peer.sent.values()) > MIB
        assert peer.first_window == 65_535


async def test_contract_13_16_who_owns_a_connection_is_told_again_that_it_has_ended() -> None:
    """Core can miss it, and has what the connection sent until it knows."""
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as events:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0] as ours:
            events.register(ours, select.EPOLLIN | select.EPOLLET)
            ours.shutdown(socket.SHUT_RDWR)
            await until(
                lambda: ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) & 0xFF == FIN_WAIT2
            )
            while events.poll(0):
                pass
            watching = asyncio.ensure_future(UnreadWatch(MemoryBook(1 << 30), 10.0).run(address[1]))
            try:
                assert await asyncio.to_thread(events.poll, PATIENCE_S)
            finally:
                watching.cancel()
                await asyncio.wait((watching,))


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
    served = await serve(GrpcSettings(request_s=2.0))
    call = served.channel.unary_unary(f"/{SERVICE}/ListCatalogs", None, None)
    metadata = (("x-token", "t" * 4000),)
    loop = asyncio.get_running_loop()
    until_then = loop.time() + 5.0
    while loop.time() < until_then:
        await asyncio.gather(*(call(b"", metadata=metadata) for _ in range(50)))
    assert served.server.statistics().connections_cut == 0
