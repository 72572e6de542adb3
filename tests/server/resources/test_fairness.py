"""Long work on the event loop gives way, and what comes and goes meanwhile loses nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Criteria, Operation, Since
from tailrace.position import Position
from tailrace_server.catalogs.observer import Observer
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.catalog_reader import CatalogReader
from tailrace_server.resources import event_loop
from tailrace_server.resources.event_loop import Turn
from tailrace_server.resources.settings import EngineSettings
from tests.support.inprocess import ModelWriter, coordinates, observer_of, receive
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.live.subscription import Subscription

PUBLISHERS = 60


def upsert(number: int) -> ModelMutation:
    return ModelMutation("product", str(number), Operation.UPSERT, None, {"id": number})


def key(number: int) -> Criteria:
    return Criteria(entity_type=("product",), primary_key=(str(number),))


async def test_a_turn_ends_by_time_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Turn().is_over()
    monkeypatch.setattr(event_loop, "TURN_S", 0.0)
    subject = Turn()
    assert subject.is_over()
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "had their turn")
    await subject.give_way()
    assert others


async def test_contract_18_routing_to_many_publishers_gives_way_and_loses_nothing(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers come and go between two steps of one batch's routing, and start inside that batch."""
    monkeypatch.setattr(event_loop, "TURN_S", 0.0)
    mutations = [upsert(number) for number in range(PUBLISHERS)]
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.01)) as engine:
        observer = observer_of(engine, "shop")
        early = [
            await engine.subscribe(ANONYMOUS, "shop", [key(number)], codec=JSON)
            for number in range(PUBLISHERS)
        ]
        writer.write(mutations)
        turns = 0
        opened: list[tuple[int, Subscription]] = []
        while observer.log.routed < PUBLISHERS + 1:
            await asyncio.sleep(0)
            if not observer.log.view.published:
                continue
            number = turns % PUBLISHERS
            early[number].cancel()
            again = await engine.subscribe(
                ANONYMOUS, "shop", [key(number)], start=Since(Position(1)), codec=JSON
            )
            opened.append((number, again))
            turns += 1
        assert turns > PUBLISHERS / 2  # that is, others had their turn all along
        writer.write(mutations)
        for number, subscription in [*enumerate(early), *opened]:
            if subscription.error is None:
                received = [coordinates(each) for each in await receive(subscription, 2)]
                assert received == [(1, number + 1, 0), (2, number + 1, 0)]


@pytest.mark.parametrize("at_hand", [True, False])
async def test_routing_goes_on_over_small_batches_for_a_part_of_a_ring(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch, at_hand: bool
) -> None:
    """Nobody is hungry any more after the first batch; the ring keeps room for those who are slower."""
    if not at_hand:
        monkeypatch.setattr(CatalogReader, "has_head", lambda *_: False)
    async with Engine(log_root, EngineSettings(ring_captures=64)) as engine:
        observer = observer_of(engine, "shop")
        begin = observer.log.routed
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
        for number in range(10):
            writer.commit([upsert(number)])
        writer.publish()
        await until(lambda: observer.log.routed >= begin + 8)
        for _ in range(100):
            await asyncio.sleep(0)
        assert observer.log.routed == begin + 8
        subscription.request(20)
        received = [coordinates(each) for each in await receive(subscription, 20)]
        assert received == [(1 + number, index, 0) for number in range(10) for index in range(2)]
        assert subscription.statistics().resyncs == 0


async def test_contract_18_what_is_opened_while_a_batch_is_routed_reads_it_without_waiting_for_more(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Observer._find
    late: list[dict[str, Any]] = []

    async def finding(self: Observer, *batch: Any) -> Any:
        found = await find(self, *batch)
        start = Since(Position(self.log.view.published))
        subscription = await engine.subscribe(ANONYMOUS, "shop", [key(1)], start=start, codec=JSON)
        late.extend(await receive(subscription, 1))
        return found

    monkeypatch.setattr(Observer, "_find", finding)
    async with Engine(log_root) as engine:
        early = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        writer.write([upsert(1)])
        assert len(await receive(early, 2)) == 2
        assert [coordinates(each) for each in late] == [(1, 1, 0)]
