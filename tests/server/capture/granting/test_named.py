"""Named subscriptions are their owner's: others neither see nor move them, unless they operate the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Content, Criteria
from tailrace.errors import (
    NotPermitted,
    PositionCompacted,
    SubscriptionTakenOver,
    SubscriptionUnknown,
)
from tailrace_server.capture.codecs import JSON
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.grant import READING, Action, Allowance, Grant
from tailrace_server.capture.named.values import NameAsked, NamedAsked
from tailrace_server.capture.principal import ANONYMOUS
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import write
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cursor import Cursor
    from tailrace_server.capture.delivery.subscription import Subscription

OWN = READING | {Action.NAMED}


def holder(name: str, actions: frozenset[Action] = OWN, *types: str) -> Holder:
    allowance = Allowance(frozenset(types) if types else None, actions=actions)
    return Holder({"shop": Grant((allowance,))}, name)


async def read(engine: Engine, caller: Holder, name: str) -> Subscription:
    """Subscribe by a name."""
    return await engine.named.reading(NameAsked(name))(
        caller, "shop", content=Content.HEADER, codec=JSON
    )


async def test_a_subscription_is_its_owners_and_the_operators(log_root: Path) -> None:
    write(log_root, "shop", 3)
    ann, bob = holder("ann"), holder("bob")
    operator = holder("oscar", OWN | {Action.OPERATE})
    async with Engine(log_root) as engine:
        names = engine.named
        made = await names.create(ann, "shop", NamedAsked(name="billing"))
        assert made.document.owner == "ann"
        assert [each.name for each in await names.list(ann, "shop")] == ["billing"]
        assert [each.name for each in await names.list(operator, "shop")] == ["billing"]
        assert await names.list(bob, "shop") == []
        # In the same words as of one that there is not.
        for call in (
            names.get(bob, "shop", "billing"),
            names.reset(bob, "shop", "billing", "latest"),
            names.pause(bob, "shop", "billing", paused=True),
            names.delete(bob, "shop", "billing"),
            read(engine, bob, "billing"),
        ):
            with pytest.raises(SubscriptionUnknown, match="'billing'; it has: none yet"):
                await call
        mine = await read(engine, ann, "billing")
        at = mine.resume_cursor()
        with pytest.raises(SubscriptionUnknown):
            await names.acknowledge(bob, "shop", "billing", 1, at)
        assert await names.acknowledge(ann, "shop", "billing", 1, at) == at
        await read(engine, operator, "billing")
        assert isinstance(mine.error, SubscriptionTakenOver)


async def test_without_the_right_there_are_none(log_root: Path) -> None:
    write(log_root, "shop", 3)
    caller = holder("ann", READING)
    async with Engine(log_root) as engine:
        await engine.named.create(ANONYMOUS, "shop", NamedAsked(name="billing"))
        for call in (
            engine.named.create(caller, "shop", NamedAsked(name="mine")),
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
    orders = NamedAsked(name="orders", criteria=(Criteria(entity_type=("order",)),))
    async with Engine(log_root) as engine:
        with pytest.raises(NotPermitted):
            await engine.named.create(caller, "shop", orders)
        await engine.named.create(ANONYMOUS, "shop", orders)
        with pytest.raises(NotPermitted):
            await read(engine, caller, "orders")
        # Nobody lost the name to who was refused.
        assert (await engine.named.get(ANONYMOUS, "shop", "orders")).document.epoch == 0


async def test_a_reader_that_comes_too_late_is_told_of_the_state(log_root: Path) -> None:
    write(log_root, "shop", 10)
    async with Engine(log_root) as engine:
        asked = NamedAsked(name="billing", place="4", hold_us=0)
        await engine.named.create(ANONYMOUS, "shop", asked)
        trim(log_root / "shop", 8, CommitLog.open(log_root / "shop").view.newest_timestamp)
        await until(lambda: engine.catalogs(ANONYMOUS)[0].oldest.version == 8)
        with pytest.raises(PositionCompacted, match="Read the state of its tables") as caught:
            await engine.named.reading(NameAsked("billing"))(
                ANONYMOUS, "shop", content=Content.HEADER, codec=JSON
            )
        assert caught.value.oldest.version == 8


def _cursor(log_root: Path) -> Cursor:
    return CommitLog.open(log_root / "shop").view.cursor(2, 0)
