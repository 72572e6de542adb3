"""The state that a subscription begins with, in the engine. Over every transport: tests/conformance."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture import StateComplete
from tailrace.criteria import Content, Criteria, FromState, Operation
from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.v1.change_capture_pb2 import ENCODING_CDCV2, INITIAL_STATE, SubscribeRequest
from tailrace_server.api import requests
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.wal.upkeep.retention import trim
from tests.support.inprocess import objects, observer_of
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription
    from tests.support.inprocess import ModelWriter

PRODUCTS = (Criteria(entity_type=("product",)),)
ROWS = 300


def row(key: str, **columns: object) -> ModelMutation:
    return ModelMutation("product", key, Operation.UPSERT, None, {"id": key, **columns})


async def begun(
    engine: Engine,
    start: FromState | None = None,
    caller: Principal = ANONYMOUS,
    demand: int | None = None,
    limits: SubscriptionLimits | None = None,
) -> Subscription:
    return await engine.subscribe(
        caller,
        "shop",
        PRODUCTS,
        start=start or FromState(),
        content=Content.AFTER,
        codec=JSON,
        demand=demand,
        limits=limits,
    )


async def rows_of(subscription: Subscription) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not isinstance(message := await subscription.receive(), StateComplete):
        if isinstance(message, Frames):
            found += objects(message)
    return found


async def test_contract_13_48_a_state_whose_blocks_are_let_go_goes_on_without_gap_or_repeat(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key), text="x" * 1000) for key in range(ROWS)])
    async with Engine(log_root) as engine:
        subscription = await begun(engine)
        keys: list[str] = []
        while not isinstance(message := await subscription.receive(), StateComplete):
            assert isinstance(message, Frames)
            keys += [each["primaryKey"] for each in objects(message)]
            assert subscription._state is not None
            subscription._state._forget_block()  # as of each reader that has not moved for a while
            engine._cache._evict_down_to(0)
            engine._cache.scans._scans.clear()
        assert len(keys) == len(set(keys)) == ROWS


async def test_contract_48_what_is_left_of_a_block_is_ready_and_each_message_a_place_to_go_on_from(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key), text="x" * 100) for key in range(ROWS)])
    async with Engine(log_root, EngineSettings(message_bytes=2_000)) as engine:
        keys: list[str] = []
        bursts, start = [], FromState()
        while len(keys) < ROWS:
            subscription = await begun(engine, start)
            first = await subscription.receive()
            assert isinstance(first, Frames)
            burst = [first, *islice(subscription.ready(), 5)]
            keys += [each["primaryKey"] for frames in burst for each in objects(frames)]
            start = FromState(subscription.resume_cursor())
            subscription.cancel()
            bursts.append(len(burst))
        assert len(set(keys)) == len(keys) == ROWS
        assert max(bursts) == 6


async def test_contract_48_a_state_ends_by_name_once_what_follows_it_is_trimmed(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key)) for key in range(10)])
    async with Engine(log_root) as engine:
        subscription = await begun(engine, demand=1)
        message = await subscription.receive()
        assert isinstance(message, Frames)
        cursor = Cursor.parse(objects(message)[0]["cursor"])
        writer.write([row("a")], [row("b")])
        trim(log_root / "shop", 3, 0)
        log = observer_of(engine, "shop").log
        await until(lambda: log.view.oldest.version == 3)
        with pytest.raises(PositionCompacted, match="subscribe again with initial STATE"):
            await rows_of(subscription)
        with pytest.raises(PositionCompacted, match="subscribe again with initial STATE"):
            await begun(engine, FromState(cursor))
        assert len(await rows_of(await begun(engine))) == 12


async def test_states_that_begin_together_are_of_one_version_and_read_once(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key)) for key in range(10)])
    async with Engine(log_root) as engine:
        first = await begun(engine, demand=1)
        loads = engine.statistics(ANONYMOUS).cache.misses
        writer.write([row("later")])
        await until(lambda: observer_of(engine, "shop").log.view.published == 2)
        second = await begun(engine)
        assert second.acknowledgement.state_version == first.acknowledgement.state_version == 1
        first.request(100)
        assert await rows_of(first) == await rows_of(second)
        # Of the table two loads: its rows and their frames. What is found of the log comes beside them.
        assert engine.statistics(ANONYMOUS).cache.misses - loads <= 4
        third = await begun(engine)  # nobody is being sent that state any more
        assert third.acknowledgement.state_version == 2


async def test_contract_47_48_a_state_is_what_is_granted_of_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(key, price=1, name="n") for key in ("1", "2", "3")])
    hidden = Columns(frozenset({"price"}))
    grant = Grant((Allowance(frozenset({"product"}), frozenset({"1", "3"}), hidden),))
    async with Engine(log_root) as engine:
        subscription = await begun(engine, caller=Holder({"shop": grant}))
        rows = await rows_of(subscription)
    assert {each["primaryKey"]: [*each["after"]] for each in rows} == {
        "1": ["id", "name"],
        "3": ["id", "name"],
    }


async def test_contract_47_a_cursor_that_somebody_made_tells_nothing_of_other_rows(
    log_root: Path, writer: ModelWriter
) -> None:
    """The digest of a long key can be guessed: the row of another is as one that there is not."""
    mine, other, none = ("x" * 700 + end for end in ("mine", "other", "none"))
    writer.write([row(mine, price=9), row(other, price=1)])
    rows = read_claimed("price > 4").filled({})
    holder = Holder({"shop": Grant((Allowance(frozenset({"product"}), rows=rows),))})
    async with Engine(log_root) as engine:
        stream = await begun(engine, caller=holder, demand=0)
        begin = stream.resume_cursor()
        assert isinstance(begin, StateCursor)
        told = []
        for key in (other, none):
            with pytest.raises(InvalidRequest) as caught:
                await begun(engine, FromState(begin.behind("product", key)), holder)
            told.append(str(caught.value))
        assert told[0] == told[1]
        again = await begun(engine, FromState(begin.behind("product", mine)), holder)
        assert await rows_of(again) == []


async def test_a_row_above_the_limit_comes_as_its_header(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row("large", text="x" * 5_000), row("small")])
    async with Engine(log_root) as engine:
        subscription = await begun(engine, limits=SubscriptionLimits(max_message_bytes=1_024))
        rows = {each["primaryKey"]: each for each in await rows_of(subscription)}
    assert "after" not in rows["large"]
    assert int(rows["large"]["omittedBytes"]) > 5_000
    assert rows["small"]["after"] == {"id": "small"}


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (SubscribeRequest(since_version=3), "since_version: not with initial"),
        (SubscribeRequest(from_time=3), "from_time: not with initial"),
        (SubscribeRequest(encoding=ENCODING_CDCV2), "CDCV2 has no initial state"),
    ],
)
def test_what_a_state_cannot_stand_beside_is_refused(request_: SubscribeRequest, told: str) -> None:
    request_.initial = INITIAL_STATE
    with pytest.raises(InvalidRequest, match=told):
        requests.wish(request_)
