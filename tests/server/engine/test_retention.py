"""Readers of a log that upkeep trims by itself: who is near goes on, and who is behind is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace.capture import Heartbeat
from tailrace.criteria import Operation, Since
from tailrace.errors import PositionCompacted
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import keeping
from tailrace_server.wal.upkeep.process import run_if_due
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tests.support.inprocess import PATIENCE_S, ModelWriter, coordinates, receive
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.live.subscription import Subscription

DAY = 86_400_000_000


def upsert(number: int) -> ModelMutation:
    return ModelMutation("product", str(number), Operation.UPSERT, None, {"id": number})


async def test_contract_21_38_a_server_follows_a_log_that_is_trimmed_by_itself(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader is live, one is behind and still within what is kept, one needs what goes."""
    for name, value in (("_SLACK", DAY + 1), ("_SLACK_MIN", 0)):
        monkeypatch.setattr(keeping, name, value)
    for number in range(6):
        writer.write([upsert(number)])
    log = CommitLog.open(log_root / "shop")
    change_settings(log.store, log.view, {"max_lookback": DAY}, 1)
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.01)) as engine:
        live = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        near, far = [
            await engine.subscribe(
                ANONYMOUS, "shop", start=Since(Position(version)), codec=JSON, demand=demand
            )
            for version, demand in ((6, 2), (1, 0))
        ]
        await receive(near, 2)
        for number in range(6, 9):
            writer.write([upsert(number)])
        # By a clock at which version 6 is just old enough.
        run_if_due(log.path, CommitLog.open(log.path).view.timestamp_of(6) + DAY)
        assert delete_unnamed(log.path, 2**62)
        with pytest.raises(PositionCompacted) as gone:
            await heartbeats_of(far)
        assert gone.value.oldest == Position(7, 0)
        writer.write([upsert(9)])
        near.request(8)
        for each in (live, near):
            assert [coordinates(found)[0] for found in await receive(each, 8)][::2] == [7, 8, 9, 10]


async def heartbeats_of(subscription: Subscription) -> None:
    """Receive heartbeats until the subscription ends."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert isinstance(await subscription.receive(), Heartbeat)
