"""Readers that get the latest alone, while the log moves on under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture import Heartbeat, StateComplete
from tailrace.criteria import (
    Area,
    CatchUp,
    Content,
    Criteria,
    FromState,
    Operation,
    OverrunPolicy,
)
from tailrace.errors import (
    InvalidRequest,
    PositionCompacted,
    SubscriptionClosed,
    SubscriptionOverrun,
)
from tailrace.v1.change_capture_pb2 import (
    CATCH_UP_LATEST,
    ENCODING_CDCV2,
    OVERRUN_POLICY_LATEST,
    SubscribeRequest,
)
from tailrace_server.api import requests
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tests.conformance.shop import OLDEST
from tests.support.inprocess import observer_of, receive
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.criteria import Start
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription
    from tests.support.inprocess import ModelWriter

ROWS = (Criteria(area=Area.DATA),)
QUICK = EngineSettings(heartbeat_interval_s=0.02, ring_captures=4)


def upsert(key: str, price: int = 0, **more: object) -> ModelMutation:
    return ModelMutation(
        "product", key, Operation.UPSERT, None, {"id": key, "price": price, **more}
    )


async def latest(
    engine: Engine,
    demand: int | None = None,
    caller: Principal = ANONYMOUS,
    start: Start | FromState = OLDEST,
    **limits: Any,
) -> Subscription:
    return await engine.subscribe(
        caller,
        "shop",
        ROWS,
        start=start,
        content=Content.AFTER,
        codec=JSON,
        demand=demand,
        limits=SubscriptionLimits(catch_up=CatchUp.LATEST, overrun=OverrunPolicy.LATEST, **limits),
    )


def told(captures: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(each["primaryKey"], each["version"], each.get("kind", "CHANGE")) for each in captures]


async def test_who_falls_behind_again_gets_the_latest_of_what_came_meanwhile(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(key)] for key in "abab"))
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, demand=1)
        found = await receive(subscription, 1)
        # It takes one, and more comes than the ring holds, for those who are live.
        other = await engine.subscribe(ANONYMOUS, "shop", ROWS, codec=JSON)
        for price in range(10):
            writer.write([upsert("b", price), upsert("c", price)])
            await receive(other, 2)
        subscription.request(100)
        found += await receive(subscription, 3)
        assert told(found) == [
            ("a", 3, "LATEST"),
            ("b", 4, "LATEST"),
            ("b", 14, "LATEST"),
            ("c", 14, "LATEST"),
        ]
        writer.write([upsert("a", 1)])
        assert told(await receive(subscription, 1)) == [("a", 15, "CHANGE")]


@pytest.mark.parametrize("commits", [1, 40], ids=["one commit", "many commits"])
@pytest.mark.parametrize("policy", [OverrunPolicy.LATEST, OverrunPolicy.DISCONNECT])
async def test_a_policy_applies_to_a_slow_reader_without_neighbours(
    log_root: Path, writer: ModelWriter, policy: OverrunPolicy, commits: int
) -> None:
    """Its own lag decides; nobody else has to take what it does not."""
    async with Engine(log_root, QUICK) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS,
            "shop",
            ROWS,
            content=Content.AFTER,
            codec=JSON,
            demand=1,
            limits=SubscriptionLimits(overrun=policy, queue_captures=2),
        )
        writer.write([upsert("live")])
        assert told(await receive(subscription, 1)) == [("live", 1, "CHANGE")]
        rows = [upsert("hot", number) for number in range(40)]
        for number in range(commits):
            writer.write(*([row] for row in rows[number::commits]))
        subscription.request(100)
        log = observer_of(engine, "shop").log
        await until(lambda: log.routed == log.view.end_row and log.view.published == 41)
        if policy is OverrunPolicy.DISCONNECT:
            with pytest.raises(SubscriptionOverrun):
                await receive(subscription, 40)
        else:
            assert (await receive(subscription, 1))[-1]["kind"] == "LATEST"


async def test_a_policy_spares_a_slow_reader_whose_ring_still_holds_all_it_has_missed(
    log_root: Path, writer: ModelWriter
) -> None:
    """Records that its criteria do not match are no lag."""
    async with Engine(log_root, QUICK) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS,
            "shop",
            (Criteria(primary_key=("rare",)),),
            codec=JSON,
            demand=0,
            limits=SubscriptionLimits(overrun=OverrunPolicy.DISCONNECT),
        )
        writer.write(*([upsert("hot", number)] for number in range(40)), [upsert("rare")])
        log = observer_of(engine, "shop").log
        await until(lambda: log.routed == log.view.end_row and log.view.published == 41)
        subscription.request(1)
        assert told(await receive(subscription, 1)) == [("rare", 41, "CHANGE")]


async def test_readers_of_the_same_criteria_share_a_pass_and_its_frames(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(str(number % 7), number)] for number in range(40)))
    async with Engine(log_root, QUICK) as engine:
        subscriptions = [await latest(engine, demand=7) for _ in range(5)]
        (publisher,) = observer_of(engine, "shop").publishers()
        shown = [told(await receive(each, 7)) for each in subscriptions]
        assert shown == [[(str(n % 7), n + 1, "LATEST") for n in range(33, 40)]] * 5
        assert len(publisher.newest) == 1
        # It goes with its last reader.
        writer.write([upsert("live")])
        for each in subscriptions:
            each.request(1)
            assert told(await receive(each, 1)) == [("live", 41, "CHANGE")]
        assert len(publisher.newest) == 0


async def test_contract_47_the_latest_is_of_what_is_granted(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(key, price, cost=9)] for price, key in enumerate("abcab")))
    hidden = Columns(frozenset({"cost"}))
    grant = Grant((Allowance(frozenset({"product"}), frozenset({"a", "c"}), hidden),))
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, caller=Holder({"shop": grant}))
        found = await receive(subscription, 2)
        assert told(found) == [("c", 3, "LATEST"), ("a", 4, "LATEST")]
        assert [[*each["after"]] for each in found] == [["id", "price"]] * 2


async def test_what_comes_while_a_state_is_sent_comes_as_the_latest_behind_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert("a"), upsert("b")])
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, demand=1, start=FromState())
        found = await receive(subscription, 1)
        other = await engine.subscribe(ANONYMOUS, "shop", ROWS, codec=JSON)
        for price in range(10):
            writer.write([upsert("a", price)])
            await receive(other, 1)
        subscription.request(1)
        found += await receive(subscription, 1)
        assert sorted(told(found)) == [("a", 1, "STATE"), ("b", 1, "STATE")]
        while isinstance(message := await subscription.receive(), Heartbeat):
            pass
        assert isinstance(message, StateComplete)
        subscription.request(100)
        assert told(await receive(subscription, 1)) == [("a", 11, "LATEST")]


@pytest.mark.parametrize(
    "asked", [{"catch_up": CATCH_UP_LATEST}, {"overrun_policy": OVERRUN_POLICY_LATEST}]
)
def test_cdcv2_refuses_the_latest(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="leave LATEST out"):
        requests.wish(SubscribeRequest(encoding=ENCODING_CDCV2, **asked))


async def test_a_phase_goes_on_in_a_compacted_log(log_root: Path, writer: ModelWriter) -> None:
    for number in range(8):
        writer.write([upsert("hot", number), upsert(str(number), number)])
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, demand=2)
        found = await receive(subscription, 2)
        assert writer.writer.compact() is not None
        assert delete_unnamed(log_root / "shop", 2**62)
        subscription.request(100)
        found += await receive(subscription, 7)
        keys = [key for key, _, _ in told(found)]
        assert keys == ["0", "1", "2", "3", "4", "5", "6", "hot", "7"]
        writer.write([upsert("live")])
        assert told(await receive(subscription, 1)) == [("live", 9, "CHANGE")]


@pytest.mark.parametrize("before", [4, 6])
async def test_what_is_not_the_newest_may_be_trimmed(
    log_root: Path, writer: ModelWriter, before: int
) -> None:
    writer.write([upsert("first")], *([upsert("hot", n)] for n in range(3)), [upsert("last")])
    writer.write([upsert("hot", 9)])
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, demand=1, queue_captures=1)
        assert told(await receive(subscription, 1)) == [("first", 1, "LATEST")]
        writer.writer.trim(before=before)
        await until(lambda: observer_of(engine, "shop").log.view.oldest.version == before)
        if subscription.error is None:
            subscription.request(100)
        if before == 4:
            assert told(await receive(subscription, 2)) == [
                ("last", 5, "LATEST"),
                ("hot", 6, "LATEST"),
            ]
        else:
            with pytest.raises(PositionCompacted):
                await receive(subscription, 1)


async def test_whoever_leaves_ends_the_pass_that_it_alone_waits_for(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(str(number % 7), number)] for number in range(40)))
    async with Engine(log_root, QUICK) as engine:
        log = observer_of(engine, "shop").log
        async with log.newest_turns, log.newest_turns:  # nobody may look
            subscription = await latest(engine)
            (publisher,) = observer_of(engine, "shop").publishers()
            assert not isinstance(
                await subscription.receive(), bytes
            )  # heartbeats come all the same
            assert len(publisher.newest) == 1
            subscription.cancel()
            assert len(publisher.newest) == 0
            with pytest.raises(SubscriptionClosed):
                await subscription.receive()


async def test_a_capture_that_is_too_large_comes_as_its_marked_header(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert("large")], [upsert("large", text="x" * 4_000)])
    async with Engine(log_root, QUICK) as engine:
        subscription = await latest(engine, max_message_bytes=1_024)
        (only,) = await receive(subscription, 1)
        assert only["omittedBytes"] > 4_000
        assert (only["version"], only["kind"]) == (2, "LATEST")
