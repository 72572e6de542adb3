"""Waiting for a version: who has written one reads it, in history and live, over every transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import After, Criteria, Cursor, DeadlineExceeded, InvalidRequest, Operation
from tailrace.position import END
from tests.conformance.reading import collect, coordinates
from tests.conformance.shop import SHOP, upsert
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.conformance.conftest import Serve
    from tests.conformance.ways import Driver
    from tests.support.inprocess import ModelWriter

ROWS = (Criteria(entity_type=("product",), operation=(Operation.UPSERT,)),)
PATIENT: dict[str, Any] = {"wait_for_version": len(SHOP) + 1, "wait_ms": 600_000}


async def waiting(driver: Driver, asked: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin what waits for a version, and return once the server waits for it."""
    waits = observer_of(driver.engine, "shop").log.waits
    before = len(waits)
    task = asyncio.ensure_future(asked)
    await until(lambda: len(waits) == before + 1 or task.done())
    assert not task.done(), task
    return task


async def test_contract_48_history_waits_for_the_version_that_was_written(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    task = await waiting(driver, driver.read(ROWS, since_version=len(SHOP) + 1, **PATIENT))
    writer.write([upsert("mine")])
    page = await task
    assert page.anchor == len(SHOP) + 1
    assert [each.primary_key for each in page.captures] == ["mine"]
    # What is published is not waited for.
    again = await driver.read(ROWS, since_version=len(SHOP) + 1, wait_for_version=1)
    assert again.captures == page.captures


async def test_contract_48_a_page_may_begin_behind_what_it_waits_for(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    uuid = observer_of(driver.engine, "shop").log.view.uuid
    asked = driver.read(ROWS, after=Cursor(uuid, len(SHOP) + 1, END, END), **PATIENT)
    task = await waiting(driver, asked)
    writer.write([upsert("mine")])
    assert (await task).captures == []


async def test_contract_48_a_subscription_is_acknowledged_once_the_version_is_published(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    uuid = observer_of(driver.engine, "shop").log.view.uuid
    later = await waiting(driver, driver.subscribe(ROWS, **PATIENT))
    mine = await waiting(
        driver, driver.subscribe(ROWS, start=After(Cursor(uuid, len(SHOP), END, END)), **PATIENT)
    )
    writer.write([upsert("mine")])
    subscription = await mine
    assert subscription.acknowledgement.published == len(SHOP) + 1
    assert [each.primary_key for each in await collect(subscription, 1)] == ["mine"]
    # Without a start it begins behind what it has waited for.
    other = await later
    assert other.acknowledgement.start == (len(SHOP) + 2, 0)
    writer.write([upsert("next")])
    assert coordinates(await collect(other, 1)) == [(len(SHOP) + 2, 1, 0)]
    await subscription.cancel()
    await other.cancel()


async def test_a_version_that_does_not_come_in_time_is_told(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    with pytest.raises(DeadlineExceeded, match=r"version 99 .* within 0.01 s"):
        await driver.read(wait_for_version=99, wait_ms=10)
    with pytest.raises(DeadlineExceeded, match=r"version 99 .* within 0.01 s"):
        await driver.subscribe(wait_for_version=99, wait_ms=10)
    assert not len(observer_of(driver.engine, "shop").log.waits)


async def test_a_wait_without_meaning_is_refused(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    driver = await serve()
    without_meaning: tuple[tuple[dict[str, Any], str], ...] = (
        ({"wait_for_version": -1}, "-1: must be at least 0"),
        ({"wait_for_version": 1, "wait_ms": 600_001}, "600001: must be from 0 to 600000"),
        ({"wait_for_version": 1, "anchor": 1}, "not with anchor"),
    )
    for asked, named in without_meaning:
        with pytest.raises(InvalidRequest, match=named):
            await driver.read(**asked)
    if "anchor" not in asked:
        with pytest.raises(InvalidRequest, match=named):
            await driver.subscribe(**asked)
