"""A load that moves the ring all the time: who fell behind comes back live, after so many scans and no more.

Writer and readers take turns, so that who is faster is no matter of the machine: in each turn the writer
commits and publishes one version, the fastest subscriber takes it, by which the ring moves, and every laggard
takes up to two. So a turn brings a laggard one version nearer, and it is live once it is inside the ring.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Operation, Since
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live.subscription import Subscription
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings
from tests.support.inprocess import (
    PATIENCE_S,
    ModelWriter,
    coordinates,
    heartbeat_at,
    objects,
    observer_of,
)
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.model import Coordinates

LAG = 40
"""Versions that the laggards are behind when the load begins."""
CAPTURES = 2
"""Of each version: its lead and one row; each version is one batch."""
RING = 4
WINDOW = 4
"""Versions that the ring holds, and that one scan reads."""
PACE = 2
"""Versions that a laggard takes while one is written."""
SCANS_MAX = LAG * PACE // WINDOW + 1
"""While it takes 2 · LAG versions LAG are written, and then it is there. Every window but the first is whole:
who is not in the ring has at least RING versions before it."""


@dataclass
class Laggard:
    """A subscription that is behind, and what it has been given."""

    subscription: Subscription
    first: int
    taken: list[Coordinates] = field(default_factory=list)

    async def take(self, versions: int, published: int) -> None:
        """Take so many versions, or what there is of those that were published."""
        left = min(versions, published + 1 - self.first - len(self.taken) // CAPTURES) * CAPTURES
        async with asyncio.timeout(PATIENCE_S):
            while left:
                message = await self.subscription.receive()
                if isinstance(message, Frames):
                    self.taken += [coordinates(each) for each in objects(message)]
                    left -= message.count

    @property
    def is_live(self) -> bool:
        return self.subscription.statistics().mode == "live"


def change(number: int) -> ModelMutation:
    return ModelMutation("product", str(number), Operation.UPSERT, None, {"id": number})


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[Subscription]:
    """Return how often each subscription has gone to the log; counted as it goes."""
    counted: Counter[Subscription] = Counter()
    read_log = Subscription._read_log

    async def counting(self: Subscription) -> None:
        counted[self] += 1
        await read_log(self)

    monkeypatch.setattr(Subscription, "_read_log", counting)
    return counted


@pytest.mark.slow
async def test_contract_14_ten_laggards_are_live_again_after_so_many_scans_while_the_ring_moves(
    log_root: Path, writer: ModelWriter, scans: Counter[Subscription]
) -> None:
    """Five were live and stopped reading, five begin far behind; the writer does not pause for any of them."""
    settings = EngineSettings(
        ring_captures=RING * CAPTURES,
        scan_batches=WINDOW,
        message_bytes=1,  # a capture a message
        heartbeat_interval_s=0.01,
    )
    log = writer.log
    writer.write([change(0)])
    async with Engine(log_root, settings) as engine:

        async def subscribed(first: int) -> Laggard:
            start = Since(Position(first))
            return Laggard(
                await engine.subscribe(ANONYMOUS, "shop", start=start, codec=JSON), first
            )

        async def write() -> None:
            writer.write([change(len(log.transactions))])
            await fastest.take(1, len(log.transactions))

        async def turn() -> None:
            """Write, and let everybody read meanwhile."""
            before = len(log.transactions)
            await asyncio.gather(write(), *(each.take(PACE, before) for each in laggards))

        fastest = await subscribed(1)
        stopped = [await subscribed(1) for _ in range(5)]
        for each in (fastest, *stopped):
            await each.take(1, 1)
            while not each.is_live:  # on a busy machine a heartbeat is due before it has read on
                await heartbeat_at(each.subscription, 1)
        for _ in range(LAG):
            await write()
        laggards = [*stopped, *[await subscribed(2 + number) for number in range(5)]]
        (publisher,) = observer_of(engine, "shop").publishers()
        assert publisher.ring.captures == RING * CAPTURES
        scans.clear()
        loads = engine.statistics(ANONYMOUS).cache.misses

        behind = list(laggards)
        for _ in range(LAG):
            await turn()
            behind = [each for each in behind if not each.is_live]
            if not behind:
                break
        assert behind == []
        assert publisher.ring.evicted >= (LAG // 2) * CAPTURES  # the ring moved under them
        for each in laggards:
            assert 0 < scans[each.subscription] <= SCANS_MAX
        # A window is scanned once for all of them, and what was encoded for the fastest serves them too.
        assert engine.statistics(ANONYMOUS).cache.misses - loads <= SCANS_MAX

        asked = scans.total()
        for _ in range(LAG // 2):
            await turn()
        assert scans.total() == asked  # the load goes on, and none of them needs the log again
        for number, each in enumerate(laggards):
            figures = each.subscription.statistics()
            overrun = int(number < len(stopped))
            assert (figures.mode, figures.resyncs, figures.returns) == ("live", overrun, overrun)
            await each.take(len(log.transactions), len(log.transactions))
            assert each.taken == log.expected((), each.first)
        assert fastest.taken == log.expected(())
        assert fastest.subscription.statistics().resyncs == 0
