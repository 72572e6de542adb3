"""The pace: hungry subscriptions, and when the routing task is woken."""

from __future__ import annotations

import asyncio

from tailrace_server.live.ring import RoutingPace


def test_a_subscription_is_hungry_until_it_is_fed() -> None:
    pace = RoutingPace()
    assert not pace
    pace.hungry("a")
    pace.hungry("b")
    pace.fed(["a"])
    assert pace
    pace.fed(["b", "c"])
    assert not pace


async def test_hunger_and_a_notice_each_end_one_wait() -> None:
    pace = RoutingPace()
    for cause in (pace.notify, lambda: pace.hungry("a")):
        waiting = asyncio.ensure_future(pace.change())
        await asyncio.sleep(0)
        assert not waiting.done()
        cause()
        await waiting


async def test_what_happened_before_the_wait_is_not_missed() -> None:
    pace = RoutingPace()
    pace.notify()
    await pace.change()
