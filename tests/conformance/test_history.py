"""Reading closed ranges: contract 39."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace import END, Criteria, Cursor, InvalidRequest
from tests.conformance.reading import coordinates, published
from tests.conformance.shop import COLUMNS, SHOP, upsert

if TYPE_CHECKING:
    from tailrace import Capture
    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter


def by_version(captures: list[Capture]) -> dict[int, int]:
    return {each.version: each.commit_timestamp for each in captures}


@pytest.mark.parametrize("reverse", [False, True])
async def test_contract_39_bounds_mean_the_same_in_both_directions(
    serve: Serve, writer: ModelWriter, reverse: bool
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
        ({"since_version": 6}, lambda c: False),
        ({"since_version": 99}, lambda c: False),
        ({"after": whole[-1].cursor}, lambda c: False),
        ({"after": Cursor(cursor.catalog_uuid, 5, END)}, lambda c: False),
        ({"after": Cursor(cursor.catalog_uuid, 99, 3)}, lambda c: False),
        ({"before": whole[0].cursor}, lambda c: False),
        ({"before": Cursor(cursor.catalog_uuid, 99, 3)}, lambda c: True),
        ({"until_version": 0}, lambda c: False),
    )
    for bounds, wanted in ranges:
        expected = [each for each in whole if wanted(each)]
        page = await driver.read(reverse=reverse, **bounds)
        assert page.captures == (expected[::-1] if reverse else expected), bounds
        assert page.next_cursor is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_contract_39_pages_are_whole_records_pinned_to_the_first(
    serve: Serve, writer: ModelWriter, reverse: bool, limit: int
) -> None:
    writer.write(*SHOP)
    expected = writer.log.expected((COLUMNS,))
    driver = await serve()
    page = await driver.read((COLUMNS,), reverse=reverse, limit=limit)
    anchor, captures = page.anchor, page.captures
    assert anchor == 5
    while page.next_cursor is not None:
        writer.write([upsert("more")])
        bound: dict[str, Any] = {"before" if reverse else "after": page.next_cursor}
        page = await driver.read((COLUMNS,), reverse=reverse, limit=limit, anchor=anchor, **bound)
        assert 0 < len({each.position for each in page.captures}) <= limit
        assert page.anchor == anchor
        captures += page.captures
    assert coordinates(captures) == (expected[::-1] if reverse else expected)


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


@pytest.mark.parametrize(
    "bounds",
    [{"limit": 0}, {"limit": -1}, {"anchor": 99}, {"anchor": -1}, {"until_version": -1}],
    ids=str,
)
async def test_a_read_without_meaning_is_refused(
    serve: Serve, writer: ModelWriter, bounds: dict[str, Any]
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    with pytest.raises(InvalidRequest):
        await driver.read((Criteria(),), **bounds)
