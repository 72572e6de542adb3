"""Reading closed ranges: contract 39."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tailrace import END, CatalogReplaced, Criteria, Cursor, InvalidRequest, PositionCompacted
from tailrace_server.wal.upkeep.retention import trim
from tests.conformance.reading import coordinates, published
from tests.conformance.shop import COLUMNS, SHOP, upsert
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace import Capture
    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter


def by_version(captures: list[Capture]) -> dict[int, int]:
    return {each.version: each.commit_timestamp for each in captures}


async def test_contract_39_bounds_mean_the_same_in_both_directions(
    serve: Serve, writer: ModelWriter
) -> None:
    for transaction in SHOP:
        writer.write(transaction)
    driver = await serve()
    whole = (await driver.read()).captures
    at = by_version(whole)
    cursor = next(each.cursor for each in whole if each.position == (4, 1))
    ranges: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"since_version": 0}, lambda c: True),
        ({"since_version": 2}, lambda c: c.version >= 2),
        ({"since_version": 4, "since_index": 2}, lambda c: c.position >= (4, 2)),
        ({"after": cursor}, lambda c: c.position > (4, 1)),
        ({"from_time": at[3]}, lambda c: c.version >= 3),
        ({"from_time": at[3] + 1}, lambda c: c.version >= 4),
        ({"until_version": 4}, lambda c: c.version <= 4),
        ({"until_version": 4, "until_index": 1}, lambda c: c.position <= (4, 1)),
        ({"until_version": 99}, lambda c: True),
        ({"before": cursor}, lambda c: c.position < (4, 1)),
        ({"to_time": at[4]}, lambda c: c.version < 4),
        ({"from_time": at[2], "to_time": at[4]}, lambda c: 2 <= c.version < 4),
        ({"from_time": at[5] + 1}, lambda c: False),
        ({"since_version": 4, "until_version": 3}, lambda c: False),
        ({"from_time": at[4], "to_time": at[2]}, lambda c: False),
        ({"since_version": 6}, lambda c: False),
        ({"since_version": 99}, lambda c: False),
        ({"after": whole[-1].cursor}, lambda c: False),
        ({"after": Cursor(cursor.catalog_uuid, 5, END)}, lambda c: False),
        ({"before": whole[0].cursor}, lambda c: False),
        ({"before": Cursor(cursor.catalog_uuid, 99, 3)}, lambda c: True),
        ({"until_version": 0}, lambda c: False),
    )
    for reverse, (bounds, wanted) in product((False, True), ranges):
        expected = [each for each in whole if wanted(each)]
        page = await driver.read(reverse=reverse, **bounds)
        assert page.captures == (expected[::-1] if reverse else expected), (reverse, bounds)
        assert page.next_cursor is None


async def test_contract_39_pages_are_whole_records_pinned_to_the_first(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    newest = len(SHOP)
    driver = await serve()
    for reverse, limit in product((False, True), (1, 2, 5, 100)):
        await published(driver, newest)
        expected = writer.log.expected((COLUMNS,))
        page = await driver.read((COLUMNS,), reverse=reverse, limit=limit)
        anchor, captures = page.anchor, page.captures
        assert anchor == newest
        while page.next_cursor is not None:
            writer.write([upsert("more")])
            newest += 1
            bound: dict[str, Any] = {"before" if reverse else "after": page.next_cursor}
            page = await driver.read(
                (COLUMNS,), reverse=reverse, limit=limit, anchor=anchor, **bound
            )
            assert 0 < len({each.position for each in page.captures}) <= limit
            assert page.anchor == anchor
            captures += page.captures
        assert coordinates(captures) == (expected[::-1] if reverse else expected), (reverse, limit)


async def test_contract_39_a_poll_from_closed_until_misses_nothing(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    seen: list[Capture] = []
    closed_until = 0
    for number in range(6):
        writer.commit([upsert(str(number))])
        if number % 2:
            writer.publish()
            await published(driver, number + 1)
        page = await driver.read(from_time=closed_until)
        seen += page.captures
        closed_until = page.closed_until
    assert coordinates(seen) == writer.log.expected(())
    timestamps = list(by_version(seen).values())
    assert timestamps == sorted(set(timestamps))
    assert closed_until == timestamps[-1] + 1


async def test_contract_39_a_range_below_retention_is_refused_or_says_that_it_is_truncated(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    for number in range(6):
        writer.write([upsert(str(number))])
    driver = await serve()
    at = by_version((await driver.read()).captures)
    trim(log_root / "shop", 4, 0)
    await until(lambda: observer_of(driver.engine, "shop").log.view.oldest == (4, 0))
    expected = writer.log.expected((), 4)
    answered: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"from_time": 0}, True),
        ({"from_time": at[2]}, True),
        ({"from_time": at[3]}, True),
        ({"from_time": at[3] + 1}, False),
        ({"from_time": at[4]}, False),
        ({}, False),
        ({"since_version": 0}, False),
        ({"from_time": at[2], "until_version": 6}, True),
        ({"to_time": at[6] + 1}, False),
    )
    for reverse, (bounds, truncated) in product((False, True), answered):
        page = await driver.read(reverse=reverse, **bounds)
        assert coordinates(page.captures) == (expected[::-1] if reverse else expected), bounds
        assert page.truncated == truncated, (reverse, bounds)
    for reverse, to_time in product((False, True), (at[2], at[4])):
        page = await driver.read(reverse=reverse, to_time=to_time)
        assert (page.captures, page.truncated) == ([], True)
    uuid = writer.writer.uuid
    refused: tuple[dict[str, Any], ...] = (
        {"since_version": 3},
        {"after": Cursor(uuid, 3, 0)},
        {"before": Cursor(uuid, 3, 1, 0)},
        {"before": Cursor(uuid, 4, 0, 0)},
        {"before": Cursor(uuid, 2, 1), "from_time": at[2]},
        {"until_version": 3},
        {"until_version": 2, "since_version": 0},
        {"anchor": 3},
    )
    for reverse, compacted in product((False, True), refused):
        with pytest.raises(PositionCompacted) as raised:
            await driver.read(reverse=reverse, **compacted)
        assert raised.value.oldest == (4, 0), compacted
        assert raised.value.wanted < raised.value.oldest, compacted
    for reverse in (False, True):
        page = await driver.read(reverse=reverse, before=Cursor(uuid, 4, 1, 0))
        assert coordinates(page.captures) == [(4, 0, 0)]
        page = await driver.read(reverse=reverse, before=Cursor(uuid, 4, 0, 0), from_time=at[4])
        assert page.captures == []
    trim(log_root / "shop", 7, 0)
    await until(lambda: observer_of(driver.engine, "shop").log.view.oldest == (7, 0))
    for reverse in (False, True):
        page = await driver.read(reverse=reverse, from_time=at[6])
        assert (page.captures, page.truncated) == ([], True)
        page = await driver.read(reverse=reverse, from_time=page.closed_until)
        assert (page.captures, page.truncated) == ([], False)


async def test_contract_39_reverse_pages_that_retention_overtakes_end_by_name(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    for number in range(6):
        writer.write([upsert(str(number))])
    driver = await serve()
    page = await driver.read(reverse=True, limit=8)
    assert page.next_cursor == Cursor(writer.writer.uuid, 3, 0, 0)
    trim(log_root / "shop", 5, 0)
    await until(lambda: observer_of(driver.engine, "shop").log.view.oldest == (5, 0))
    with pytest.raises(PositionCompacted):
        await driver.read(reverse=True, limit=8, anchor=page.anchor, before=page.next_cursor)


async def test_contract_25_39_a_foreign_cursor_is_refused_before_anything_else(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write(*SHOP)
    trim(log_root / "shop", 4, 0)
    driver = await serve()
    foreign = Cursor(UUID(int=7), 1, 0, 0)
    with pytest.raises(CatalogReplaced):
        await driver.read(after=foreign)
    with pytest.raises(CatalogReplaced):
        await driver.read(before=foreign)


async def test_a_read_without_meaning_is_refused(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    driver = await serve()
    meaningless: tuple[tuple[str, Any], ...] = (
        ("limit", 0),
        ("limit", -1),
        ("anchor", 99),
        ("anchor", -1),
        ("until_version", -1),
    )
    for bound, value in meaningless:
        with pytest.raises(InvalidRequest, match=str(value)):
            await driver.read((Criteria(),), **{bound: value})
