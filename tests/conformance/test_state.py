"""Reading tables: the state at every version is the fold of what history gives, and goes on from there."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import (
    After,
    Area,
    Content,
    Criteria,
    DeadlineExceeded,
    EntityTypeUnknown,
    InvalidRequest,
    Operation,
    PositionCompacted,
)
from tailrace.conditions import ConditionTree
from tailrace_server.wal.upkeep.retention import trim
from tests.conformance.reading import collect, published
from tests.conformance.shop import SHOP, remove, upsert
from tests.support.inprocess import observer_of
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace import Capture
    from tests.conformance.conftest import Serve
    from tests.conformance.ways import Driver, Rows
    from tests.support.inprocess import ModelWriter

WAYS = ("in-process", "client", "stub", "rest-ws")
over_every_way = pytest.mark.parametrize("way_in", WAYS)

Row = tuple[tuple[int, int], int, bytes | None]
"""Position and commit timestamp of the last change, and the image."""

TRANSACTIONS: tuple[list[ModelMutation], ...] = (
    *SHOP,
    [upsert(str(key), name=f"p{key}", price=key) for key in range(20)],
    [upsert("late", "order", total=1), upsert("", name="the empty key")],
    [remove("3"), remove("never"), upsert("4", name="again"), upsert("ключ", name="ä")],
    [ModelMutation("product", None, Operation.REMOVE, None, None), upsert("5", name="after")],
    [upsert("5", name="after that"), remove("5"), upsert("5", name="last")],
)


def folded(captures: Iterable[Capture], entity_type: str) -> dict[str, Row]:
    """Return the rows that captures, applied in order, leave."""
    rows: dict[str, Row] = {}
    for each in captures:
        if each.area is not Area.DATA or each.entity_type != entity_type:
            continue
        if each.primary_key is None:
            rows.clear()
        elif each.operation is Operation.UPSERT:
            rows[each.primary_key] = row_of(each)
        else:
            rows.pop(each.primary_key, None)
    return rows


def row_of(capture: Capture) -> Row:
    return (capture.version, capture.index), capture.commit_timestamp, capture.after


def rows_of(state: Rows) -> dict[str, Row]:
    rows = {each.primary_key or "": row_of(each) for each in state.captures}
    assert len(rows) == len(state.captures), "a key came twice"
    return rows


async def history(driver: Driver, version: int) -> list[Capture]:
    page = await driver.read(content=Content.AFTER, until_version=version)
    return page.captures


@over_every_way
async def test_contract_48_state_at_every_version_is_what_history_leaves(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*TRANSACTIONS)
    driver = await serve()
    whole = await history(driver, len(TRANSACTIONS))
    asked = product(("product", "order"), range(len(TRANSACTIONS) + 1))
    for entity_type, version in asked:
        state = await driver.state(entity_type, at_version=version)
        assert state.version == version
        assert rows_of(state) == folded((c for c in whole if c.version <= version), entity_type)
        assert all(each.ordinal == 0 and each.changed is None for each in state.captures)


@over_every_way
async def test_contract_48_a_table_and_the_changes_behind_it_have_no_gap_and_no_overlap(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*TRANSACTIONS[:7])
    driver = await serve()
    state = await driver.state()
    assert state.version == 7
    writer.write(*TRANSACTIONS[7:])
    await published(driver, len(TRANSACTIONS))
    criteria = (Criteria(area=Area.DATA, entity_type=("product",)),)
    subscription = await driver.subscribe(
        criteria, start=After(state.cursor), content=Content.AFTER
    )
    count = len(writer.log.expected(criteria, first=8))
    captures = await collect(subscription, count)
    await subscription.cancel()
    assert {each.version for each in captures} == {8, 9, 10}
    found = folded((*state.captures, *captures), "product")
    assert found == rows_of(await driver.state())


@over_every_way
async def test_contract_48_state_of_a_log_that_is_empty_goes_on_with_its_first_version(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    state = await driver.state(at_version=0)
    assert (state.captures, state.version, state.next_page) == ([], 0, None)
    writer.write([upsert("1")])
    subscription = await driver.subscribe(start=After(state.cursor))
    assert [each.version for each in await collect(subscription, 2)] == [1, 1]
    await subscription.cancel()


@over_every_way
async def test_keys_choose_rows_of_those_that_there_are(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*TRANSACTIONS[:8])
    driver = await serve()
    whole = rows_of(await driver.state())
    state = await driver.state(primary_key=["ключ", "4", "", "4", "never was", "3"])
    assert rows_of(state) == {key: whole[key] for key in ("ключ", "4", "")}
    assert not (await driver.state(primary_key=["never was"])).captures


@over_every_way
async def test_columns_are_cut_out_of_the_text_as_it_was_sent(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*TRANSACTIONS[:6])
    driver = await serve()
    for each in (await driver.state(column=["price"])).captures:
        assert each.after == b'{"price":%s}' % (each.primary_key or "").encode()
    keys_only = await driver.state(keys_only=True)
    assert {each.primary_key for each in keys_only.captures} == {*map(str, range(20))}
    assert {each.after for each in keys_only.captures} == {None}


@over_every_way
async def test_contract_48_pages_are_of_one_version_and_fit_together(
    serve: Serve, writer: ModelWriter
) -> None:
    long = "k" * 5_000
    writer.write(*TRANSACTIONS[:6], [upsert(long, name="long"), upsert(long + "2", name="too")])
    driver = await serve()
    for chosen in ((), ("1", "2", "3", "4", "19", "no such key")):
        asked: dict[str, Any] = {"primary_key": chosen, "limit": 4}
        # What was written a turn ago may not have come to the server yet.
        newest = len(writer.log.transactions)
        whole = await driver.state(primary_key=chosen, wait_for_version=newest)
        page = await driver.state(**asked)
        captures = page.captures
        while page.next_page is not None:
            writer.write([upsert("1", name="newer"), remove("0")])
            page = await driver.state(**asked, page=page.next_page)
            assert page.version == whole.version
            assert 0 < len(page.captures) <= 4
            captures += page.captures
        assert captures == whole.captures


@over_every_way
async def test_messages_of_any_size_have_the_same_rows(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert(str(key), name="x" * (key % 7) * 100) for key in range(60)])
    driver = await serve(message_bytes=1_000)
    whole = await driver.state(at_version=1)
    assert len(whole.captures) == 60
    cut = await driver.state(at_version=1, max_message_bytes=1_024)
    assert cut.captures == whole.captures


@pytest.mark.parametrize("way_in", [way for way in WAYS if way != "in-process"])
async def test_a_row_above_the_largest_message_comes_without_its_image(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", name="x" * 5_000), upsert("2", name="y")])
    driver = await serve()
    state = await driver.state(max_message_bytes=2_000)
    found = {each.primary_key: (each.after, each.omitted_bytes) for each in state.captures}
    assert found["1"][0] is None
    assert found["1"][1] > 5_000
    assert json.loads(found["2"][0] or b"") == {"id": "2", "name": "y"}


@over_every_way
async def test_a_time_is_the_last_version_until_then(serve: Serve, writer: ModelWriter) -> None:
    for transaction in TRANSACTIONS:
        writer.write(transaction)
    driver = await serve()
    at = {each.version: each.commit_timestamp for each in await history(driver, 99)}
    for version, time_us in at.items():
        for moment, expected in ((time_us, version), (time_us - 1, version - 1)):
            state = await driver.state(at_time=moment)
            assert state.version == expected
    now = await driver.state(at_time=time.time_ns() // 1_000)
    assert now.version == len(TRANSACTIONS)


@over_every_way
async def test_contract_48_who_has_written_a_version_waits_until_it_reads_it(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", name="old")])
    driver = await serve()
    waiting = asyncio.ensure_future(driver.state(wait_for_version=2, wait_ms=600_000))
    await asyncio.sleep(0)
    writer.write([upsert("1", name="new")])
    state = await waiting
    assert state.version >= 2
    assert b"new" in (state.captures[0].after or b"")
    at_once = await driver.state(wait_for_version=1, at_version=1, wait_ms=0)
    assert at_once.version == 1


@over_every_way
async def test_a_version_that_is_never_reached_is_waited_for_no_longer_than_said(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    driver = await serve()
    with pytest.raises(DeadlineExceeded, match="version 5 of catalog 'shop'") as caught:
        await driver.state(wait_for_version=5, wait_ms=20)
    assert (caught.value.version, caught.value.published) == (5, 1)
    assert caught.value.retriable


MEANINGLESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"at_version": 2}, "newest published version is 1"),
    ({"at_version": -1}, "at_version -1"),
    ({"at_time": 1 << 52}, "future"),
    ({"limit": 0}, "limit 0"),
    ({"page": "s1.no"}, "page: 's1.no' is not a page"),
    ({"keys_only": True, "column": ["id"]}, "keys_only"),
    ({"at_version": 1, "wait_for_version": 2}, "is below wait_for_version 2"),
    ({"wait_for_version": 1, "wait_ms": 600_001}, "wait_ms"),
)


@over_every_way
async def test_what_has_no_meaning_is_refused_by_name(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert("1")])
    driver = await serve()
    for asked, told in MEANINGLESS:
        with pytest.raises(InvalidRequest) as caught:
            await driver.state(**asked)
        assert plain(told) in plain(str(caught.value))


def plain(text: str) -> str:
    """Return a text whatever the style of its names, which are the caller's."""
    return text.replace("_", "").lower()


@over_every_way
async def test_an_entity_type_that_no_version_knows_is_refused_with_those_that_there_are(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1"), upsert("7", "order")])
    driver = await serve()
    with pytest.raises(EntityTypeUnknown) as caught:
        await driver.state("widget")
    assert caught.value.entity_type == "widget"
    assert {"product", "order"} <= {*caught.value.known}


@over_every_way
async def test_a_column_that_the_table_lacks_is_refused_with_the_nearest_name(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", plate="x")], [upsert("2", weight=1)])
    driver = await serve()
    for asked, told in (
        (
            {"column": ["id", "plat"]},
            "'product' has no column 'plat' at version 2; did you mean plate?",
        ),
        ({"column": ["plat"], "primary_key": ["never"], "limit": 1}, "did you mean plate?"),
        ({"column": ["weight"], "at_version": 1}, "no column 'weight' at version 1; known: "),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await driver.state(**asked)
        assert told in str(caught.value)


@over_every_way
async def test_a_page_of_another_table_and_of_another_choice_is_refused(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert(key, kind) for key in "123" for kind in ("product", "order")])
    driver = await serve()
    page = (await driver.state(limit=1)).next_page
    with pytest.raises(InvalidRequest, match="page: it names"):
        await driver.state("order", page=page)
    with pytest.raises(InvalidRequest, match="page: it names"):
        await driver.state(primary_key=["no such"], page=page)


@over_every_way
async def test_what_is_no_longer_kept_is_refused(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    for key in range(6):
        writer.write([upsert(str(key))])
    driver = await serve()
    timestamp = (await driver.state(at_version=2)).captures[-1].commit_timestamp
    trim(log_root / "shop", 4, 0)
    await until(lambda: observer_of(driver.engine, "shop").log.view.oldest == (4, 0))
    for asked in ({"at_version": 2}, {"at_time": timestamp}):
        with pytest.raises(PositionCompacted):
            await driver.state(**asked)


@over_every_way
async def test_contract_49_rows_that_meet_a_condition_are_those_of_the_table_that_do(
    serve: Serve, writer: ModelWriter
) -> None:
    """At any version, with pages of any size; a row that SQL is not sure of is not among them."""
    writer.write(*TRANSACTIONS[:8])
    driver = await serve()
    whole = rows_of(await driver.state())
    images = {key: json.loads(image) for key, (_, _, image) in whole.items() if image is not None}
    where = "price >= :least::DECIMAL AND name LIKE 'p%' OR name = 'ä'"
    asked: dict[str, Any] = {"where": where, "where_parameter": ["least=5"]}
    wanted = {
        key for key, image in images.items() if image.get("price", -1) >= 5 or image["name"] == "ä"
    }
    assert len(wanted) > 10
    found = rows_of(await driver.state(**asked))
    assert found == {key: row for key, row in whole.items() if key in wanted}
    paged: dict[str, Row] = {}
    page: dict[str, Any] = {}
    while True:
        answer = await driver.state(**asked, **page, limit=4)
        assert not paged.keys() & rows_of(answer).keys()
        paged |= rows_of(answer)
        if answer.next_page is None:
            break
        page = {"page": answer.next_page}
    assert paged == found
    tree = ConditionTree.of(
        {
            "or": [
                {
                    "and": [
                        {"column": "price", "gte": {"parameter": "least", "type": "NUMBER"}},
                        {"column": "name", "like": "p%"},
                    ]
                },
                {"column": "name", "eq": "ä"},
            ]
        }
    )
    assert rows_of(await driver.state(where_tree=tree, where_parameter=["least=5"])) == found
    assert rows_of(await driver.state(where="price IS NULL", at_version=3)) == {}
    [row] = rows_of(await driver.state(where="id = '7'", column=["name"])).values()
    assert row[2] == b'{"name":"p7"}'
    assert {*rows_of(await driver.state(where="price < 2", keys_only=True))} == {"0", "1"}


@over_every_way
async def test_a_condition_that_cannot_be_is_refused(serve: Serve, writer: ModelWriter) -> None:
    """Before any row, and with the names as they were written."""
    writer.write(*TRANSACTIONS[:8])
    driver = await serve()
    cannot_be: tuple[tuple[dict[str, Any], str], ...] = (
        ({"where": "prise > 1"}, "character 1: there is no column 'prise'; did you mean price"),
        ({"where": "price >"}, "cannot be parsed after 'price >'"),
        ({"where": "price > CAST(:least AS INT)"}, "the parameter 'least' has no value"),
        ({"where": "price > 1", "where_parameter": ["least=1"]}, "uses the parameter 'least'"),
        ({"where_parameter": ["least=1"]}, "also needs where"),
        ({"where": "price IN (1, 'x')"}, "the type of 'price' is unknown"),
        (
            {"where_tree": ConditionTree.of({"not": {"column": "prise", "gt": 1}})},
            "where, at not.column: there is no column 'prise'; did you mean price",
        ),
    )
    for asked, told in cannot_be:
        with pytest.raises(InvalidRequest, match=told):
            await driver.state(**asked)
