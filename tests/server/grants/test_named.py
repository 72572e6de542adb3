"""Named subscriptions are their owner's: others neither see nor move them, unless they operate the catalog."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Content, Criteria
from tailrace.errors import (
    InvalidRequest,
    NotPermitted,
    PositionCompacted,
    SubscriptionExists,
    SubscriptionTakenOver,
    SubscriptionUnknown,
)
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import READING, Action, Allowance, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.named.requests import NamedReader, NewSubscription
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import write
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cursor import Cursor
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

OWN = READING | {Action.NAMED}


def holder(name: str, actions: frozenset[Action] = OWN, *types: str) -> Holder:
    allowance = Allowance(frozenset(types) if types else None, actions=actions)
    return Holder({"shop": Grant((allowance,))}, name)


async def read(engine: Engine, caller: Holder, name: str) -> Subscription:
    """Subscribe by a name."""
    return await engine.subscribe(
        caller, "shop", content=Content.HEADER, codec=JSON, named=NamedReader(name)
    )


async def test_contract_51_a_subscription_is_its_owners_and_the_operators(log_root: Path) -> None:
    write(log_root, "shop", 3)
    ann, bob = holder("ann"), holder("bob")
    operator = holder("oscar", OWN | {Action.OPERATE})
    async with Engine(log_root) as engine:
        names = engine.named
        made = await names.create(ann, "shop", NewSubscription(name="billing"))
        assert made.document.owner == "ann"
        assert [each.name for each in await names.list(ann, "shop")] == ["billing"]
        (its_name,) = [each.name for each in await names.list(operator, "shop")]
        assert its_name == made.document.name != "billing"
        assert await names.list(bob, "shop") == []
        # In the same words as of one that there is not.
        for call in (
            names.get(bob, "shop", "billing"),
            names.reset(bob, "shop", "billing", "latest"),
            names.pause(bob, "shop", "billing", paused=True),
            names.delete(bob, "shop", "billing"),
            read(engine, bob, "billing"),
        ):
            with pytest.raises(SubscriptionUnknown, match=r"'billing'$"):
                await call
        mine = await read(engine, ann, "billing")
        at = mine.resume_cursor()
        with pytest.raises(SubscriptionUnknown):
            await names.acknowledge(bob, "shop", "billing", 1, at)
        assert await names.acknowledge(ann, "shop", "billing", 1, at) == at
        await read(engine, operator, its_name)
        assert isinstance(mine.error, SubscriptionTakenOver)
        assert mine.error.name == "billing"


async def test_two_owners_have_the_same_name_and_do_not_learn_of_each_other(log_root: Path) -> None:
    write(log_root, "shop", 3)
    ann, bob = holder("ann"), holder("bob")
    async with Engine(log_root) as engine:
        names = engine.named
        await names.create(ann, "shop", NewSubscription(name="billing", place="2"))
        await names.create(bob, "shop", NewSubscription(name="billing", place="3"))
        with pytest.raises(SubscriptionExists, match="already has a named subscription 'billing'"):
            await names.create(bob, "shop", NewSubscription(name="billing"))
        foreign = (await names.get(ann, "shop", "billing")).document.name
        with pytest.raises(SubscriptionUnknown, match=f"'{foreign}'; it has: billing$"):
            await names.delete(bob, "shop", foreign)
        await names.delete(bob, "shop", "billing")
        assert (await names.get(ann, "shop", "billing")).hold.needed == Position(2, 0)
        # A name of no owner is usable, so it is known to be taken.
        await names.create(ANONYMOUS, "shop", NewSubscription(name="shared"))
        with pytest.raises(SubscriptionExists, match="already has a named subscription 'shared'"):
            await names.create(ann, "shop", NewSubscription(name="shared"))
        with pytest.raises(InvalidRequest, match="is not a valid name of a subscription"):
            await names.create(bob, "shop", NewSubscription(name=foreign))


async def test_an_owner_leaves_names_to_others_also_if_it_asks_for_many_at_once(
    log_root: Path,
) -> None:
    write(log_root, "shop", 3)
    settings = EngineSettings(named_subscriptions_of_owner=2)

    async with Engine(log_root, settings) as engine:
        callers: tuple[tuple[Principal, int], ...] = (
            (holder("ann"), 2),
            (holder("bob"), 2),
            (ANONYMOUS, 5),
        )
        for caller, made in callers:
            found = await asyncio.gather(
                *(
                    engine.named.create(caller, "shop", NewSubscription(name=f"n{each}"))
                    for each in range(5)
                ),
                return_exceptions=True,
            )
            refused = [each for each in found if isinstance(each, InvalidRequest)]
            assert (len(refused), len(found)) == (5 - made, 5)
            assert all("named_subscriptions_of_owner" in str(each) for each in refused)


async def test_a_reader_whose_name_was_deleted_elsewhere_learns_no_other_names(
    log_root: Path,
) -> None:
    write(log_root, "shop", 3)
    ann = holder("ann")
    async with Engine(log_root) as engine, Engine(log_root) as other:
        await engine.named.create(holder("bob"), "shop", NewSubscription(name="secret"))
        await engine.named.create(ann, "shop", NewSubscription(name="billing"))
        reader = await read(engine, ann, "billing")
        at = reader.resume_cursor()
        await other.named.delete(ann, "shop", "billing")
        with pytest.raises(SubscriptionUnknown) as caught:
            await engine.named.acknowledge(ann, "shop", "billing", 1, at)
        assert caught.value.known == ()
        assert isinstance(reader.error, SubscriptionUnknown)
        assert reader.error.known == ()


async def test_without_the_right_there_are_none(log_root: Path) -> None:
    write(log_root, "shop", 3)
    caller = holder("ann", READING)
    async with Engine(log_root) as engine:
        await engine.named.create(ANONYMOUS, "shop", NewSubscription(name="billing"))
        for call in (
            engine.named.create(caller, "shop", NewSubscription(name="mine")),
            engine.named.list(caller, "shop"),
            engine.named.acknowledge(caller, "shop", "billing", 1, _cursor(log_root)),
            read(engine, caller, "billing"),
        ):
            with pytest.raises(NotPermitted, match="named subscriptions are not granted"):
                await call
        # What nobody in particular has created is everybody's who has the right.
        assert [each.name for each in await engine.named.list(holder("bob"), "shop")] == ["billing"]


async def test_criteria_that_are_not_granted_are_neither_created_nor_read(log_root: Path) -> None:
    write(log_root, "shop", 3)
    caller = holder("ann", OWN, "product")
    orders = NewSubscription(name="orders", criteria=(Criteria(entity_type=("order",)),))
    async with Engine(log_root) as engine:
        with pytest.raises(NotPermitted):
            await engine.named.create(caller, "shop", orders)
        await engine.named.create(ANONYMOUS, "shop", orders)
        with pytest.raises(NotPermitted):
            await read(engine, caller, "orders")
        # Nobody lost the name to who was refused.
        assert (await engine.named.get(ANONYMOUS, "shop", "orders")).document.epoch == 0


async def test_contract_51_a_reader_that_comes_too_late_learns_of_the_state(log_root: Path) -> None:
    write(log_root, "shop", 10)
    async with Engine(log_root) as engine:
        asked = NewSubscription(name="billing", place="4", hold_us=0)
        await engine.named.create(ANONYMOUS, "shop", asked)
        trim(log_root / "shop", 8, CommitLog.open(log_root / "shop").view.newest_timestamp)
        await until(lambda: engine.catalogs(ANONYMOUS)[0].oldest.version == 8)
        with pytest.raises(PositionCompacted, match="Read the state of its tables") as caught:
            await engine.subscribe(
                ANONYMOUS, "shop", content=Content.HEADER, codec=JSON, named=NamedReader("billing")
            )
        assert caught.value.oldest.version == 8


def _cursor(log_root: Path) -> Cursor:
    return CommitLog.open(log_root / "shop").view.cursor(2, 0)
