"""Two servers of one log agree on who reads a name, and one that is killed takes nothing along."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Criteria, Retry, SubscriptionTakenOver
from tests.process.commands import KILL, ServerProcess, outcome
from tests.process.test_serve import write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


async def take(captures: tailrace.Subscription, count: int) -> list[str | None]:
    """Return the keys of the next captures."""
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(captures)).primary_key for _ in range(count)]


async def test_contract_51_a_name_moves_between_servers_and_outlives_a_kill(log_root: Path) -> None:
    write(log_root, 10)
    here, there = ServerProcess(log_root), ServerProcess(log_root)
    asked = ("subscription", "create", "billing", "--catalog", "shop", "--from", "earliest")
    async with (
        here.up(),
        there.up() as other,
        tailrace.connect(here.grpc) as client,
        tailrace.connect(there.grpc, retry=Retry(attempts_max=1)) as killed,
        AsyncExitStack() as stack,
    ):
        status, _, notes = await outcome(*asked, "--entity-type", "product", "--server", here.grpc)
        assert (status, notes) == (0, "· created billing: it begins with 1:0")
        [found] = await killed.list_subscriptions("shop")
        assert found.criteria == (Criteria(entity_type=("product",)),)
        async with client.subscribe("shop", name="billing") as first:
            assert await take(first, 3) == ["0", "1", "2"]
            await first.acknowledge(durable=True)
            second = await stack.enter_async_context(killed.subscribe("shop", name="billing"))
            assert await take(second, 4) == ["3", "4", "5", "6"]
            # Fenced from the first moment, whichever server is asked; ended within a second.
            with pytest.raises(SubscriptionTakenOver):
                await client._acknowledge("shop", "billing", 1, first.cursor)
            with pytest.raises(SubscriptionTakenOver):
                await take(first, 20)
            await second.acknowledge(durable=True)
            assert await take(second, 1) == ["7"]
            await second.acknowledge()
            other.send(KILL)
            await other.process.wait()
            with pytest.raises(tailrace.TailraceError):
                await take(second, 20)
        async with client.subscribe("shop", name="billing") as third:
            # Nothing is missing; of what was not durable at the kill some may come again.
            again = await take(third, 2)
            assert again in (["7", "8"], ["8", "9"])
