"""Readers are told how long it takes until retention may take what they still need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tailrace.capture import Heartbeat
from tailrace.criteria import Content, Criteria, Since
from tailrace.position import Position
from tailrace_server.api.server import metrics
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.loss import NO_LOSS, NO_TERMS, Loss, RetentionTerms, loss_of
from tailrace_server.named import loss_watch
from tailrace_server.named.requests import NamedReader, NewSubscription
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import write
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.state.view import LogView

HOUR = 3600 * 1_000_000
DAY = 24 * HOUR


@pytest.fixture
def view(log_root: Path) -> LogView:
    write(log_root, "shop", 10)
    return CommitLog.open(log_root / "shop").view


def at(view: LogView, version: int, age: int) -> int:
    """Return the time at which a version has an age."""
    return view.timestamp_of(version) + age


def test_without_settings_nothing_goes_by_itself(view: LogView) -> None:
    now = at(view, 4, 300 * DAY)
    assert loss_of(view, Position(4), NO_TERMS, (HOUR, 1 << 40), now) == NO_LOSS
    assert RetentionTerms.of({}) == NO_TERMS


def test_who_needs_nothing_that_is_there_loses_nothing(view: LogView) -> None:
    terms = RetentionTerms.of({"max_lookback": HOUR})
    assert loss_of(view, Position(11), terms, (0, 0), at(view, 10, DAY)) == NO_LOSS


def test_a_lookback_takes_by_time_and_a_hold_puts_it_off(view: LogView) -> None:
    terms = RetentionTerms.of({"max_lookback": DAY, "max_bytes": 1})
    assert loss_of(view, Position(4), terms, (0, 0), at(view, 4, HOUR)) == Loss(DAY - HOUR)
    assert loss_of(view, Position(4), terms, (0, 0), at(view, 4, 2 * DAY)) == Loss(0)
    hold = (3 * DAY, 1 << 30)
    assert loss_of(view, Position(4), terms, hold, at(view, 4, HOUR)) == Loss(3 * DAY - HOUR)
    left = (1 << 30) - view.bytes_from(Position(4))
    assert loss_of(view, Position(4), terms, hold, at(view, 4, 2 * DAY)) == Loss(DAY, left)
    assert loss_of(view, Position(4), terms, (3 * DAY, 1), at(view, 4, HOUR)) == Loss(DAY - HOUR)
    assert loss_of(view, Position(4), terms, (HOUR, 1 << 30), at(view, 4, 0)) == Loss(DAY)


def test_a_bound_of_bytes_takes_by_size_and_a_hold_puts_it_off(view: LogView) -> None:
    terms = RetentionTerms.of({"max_bytes": 8 << 20})
    size, now = view.bytes_from(Position(4)), at(view, 4, HOUR)
    assert loss_of(view, Position(4), terms, (0, 0), now) == Loss(None, (7 << 20) - size)
    hold = (DAY, 1 << 30)
    assert loss_of(view, Position(4), terms, hold, now) == Loss(None, (1 << 30) - size)
    tight = RetentionTerms.of({"max_bytes": 8})
    assert loss_of(view, Position(4), tight, (0, 0), now) == Loss(None, 0)
    assert loss_of(view, Position(4), tight, hold, now) == Loss(DAY - HOUR, (1 << 30) - size)


async def test_contract_38_heartbeats_metrics_and_the_log_warn_of_a_loss_that_is_near(
    log_root: Path, view: LogView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_watch, "_EVERY_S", 0.05)
    path = log_root / "shop"
    change_settings(LocalFiles(path), view, {"max_lookback": HOUR}, 0)
    with capture_logs() as lines:
        async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.05)) as engine:
            await engine.named.create(
                ANONYMOUS, "shop", NewSubscription(name="billing", place="4", hold_us=1)
            )
            await until(lambda: bool(engine.named.watched(ANONYMOUS)))
            # 1. Who is behind is told; who has everything is not.
            behind = await engine.subscribe(
                ANONYMOUS, "shop", start=Since(Position(4)), codec=JSON, demand=0
            )
            beat = await behind.receive()
            assert isinstance(beat, Heartbeat)
            assert beat.lost_in_s is not None
            assert 0 < beat.lost_in_s <= 3600
            assert beat.lost_in_bytes is None
            newest = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
            beat = await newest.receive()
            assert isinstance(beat, Heartbeat)
            assert beat.lost_in_s is None
            # 2. A reader by name is told of its own hold, too.
            named = await engine.subscribe(
                ANONYMOUS,
                "shop",
                content=Content.HEADER,
                codec=JSON,
                demand=0,
                named=NamedReader("billing"),
            )
            assert named.hold == (1, 10 << 30)
            # 3. A metric for each name; one that has lost its place is told in the log, once.
            registry = CollectorRegistry()
            metrics.register(registry, metrics.named, lambda: engine.named.watched(ANONYMOUS))
            labels = {"catalog": "shop", "name": "billing"}
            name = "tailrace_named_subscription"
            seconds = registry.get_sample_value(f"{name}_lost_in_seconds", labels)
            assert seconds is not None
            assert 0 < seconds <= 3600
            assert registry.get_sample_value(f"{name}_kept", labels) == 0
            trim(path, 6, CommitLog.open(path).view.newest_timestamp + 2 * HOUR)
            await until(lambda: any(line.get("health") == "LOST" for line in lines))
    told = [line for line in lines if line.get("name") == "billing"]
    assert [line["log_level"] for line in told] == ["warning"] * len(told)
    assert told[-1]["event"] == "named subscription has no hold"
    assert sum(line["health"] == "LOST" for line in told) == 1


async def test_a_hold_that_is_nearly_over_is_told_once(
    log_root: Path, view: LogView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_watch, "_EVERY_S", 0.02)
    monkeypatch.setattr(loss_watch, "_NEAR", 1)  # all that is not whole is near
    change_settings(LocalFiles(log_root / "shop"), view, {"max_lookback": HOUR}, 0)
    with capture_logs() as lines:
        async with Engine(log_root, EngineSettings()) as engine:
            await engine.named.create(
                ANONYMOUS,
                "shop",
                NewSubscription(name="billing", criteria=(Criteria(),), place="4"),
            )
            near = "named subscription loses its place soon"
            await until(lambda: any(line["event"] == near for line in lines))
            looks = engine.named.watched(ANONYMOUS)
            await until(lambda: engine.named.watched(ANONYMOUS)[0] is not looks[0])
    assert sum(line["event"] == near for line in lines) == 1
