"""The observer's publishers. Routing is covered in test_fairness.py and test_recovery.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Criteria
from tailrace.errors import CatalogReplaced, InternalError
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import observer_of, receive
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_criteria_that_mean_the_same_share_a_publisher_until_the_last_one_leaves(
    log_root: Path, writer: ModelWriter
) -> None:
    ways = [Criteria(entity_type=names) for names in (("a", "b"), ("b", "a"))]
    async with Engine(log_root) as engine:
        observer = observer_of(engine, "shop")
        one, other = [await engine.subscribe(ANONYMOUS, "shop", [way], codec=JSON) for way in ways]
        (publisher,) = observer.publishers()
        assert publisher.subscriptions == {one, other}
        one.cancel()
        assert observer.publishers() == (publisher,)
        other.cancel()
        assert observer.publishers() == ()


async def test_without_publishers_what_is_published_is_passed_over(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        writer.write([upsert(1)], [upsert(2)])
        await until(lambda: log.routed == 4)
        assert log.routed_position == log.newest


async def test_an_observer_that_has_ended_takes_nobody(log_root: Path, writer: ModelWriter) -> None:
    async with Engine(log_root) as engine:
        observer = observer_of(engine, "shop")
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        gone = InternalError("the tailer broke")
        observer.end(gone)
        assert subscription.error is gone
        with pytest.raises(InternalError, match="the tailer broke") as raised:
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        assert raised.value is not gone  # its traceback would grow with every caller
        assert not isinstance(raised.value, CatalogReplaced)


async def test_one_publisher_is_fed_whichever_of_its_subscriptions_came_last(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        both = [await engine.subscribe(ANONYMOUS, "shop", codec=JSON) for _ in range(2)]
        writer.write([upsert(1)])
        first, second = [await receive(each, 2) for each in both]
        assert first == second
