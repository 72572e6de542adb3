"""CDCV2 as a wire encoding: updates and progress, over a proxy that mangles them, to a client that copes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

import tailrace
from tailrace import (
    CatalogReplaced,
    Criteria,
    ImagesMissing,
    InvalidRequest,
    Operation,
    Row,
    Unsupported,
)
from tailrace.v1.capture_pb2 import Body
from tailrace.v1.change_capture_pb2 import (
    ENCODING_CDCV2,
    DemandRequest,
    Progress,
    SubscribeRequest,
    SubscribeResponse,
)
from tailrace_server.api.json_requests import ELSEWHERE, from_json
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.mangling_proxy import ManglingProxy
from tests.support.model import ModelLog, ModelMutation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace.update_subscription import UpdateSubscription

PRODUCTS = Criteria(entity_type=("product",))


def product(key: str, before: int | None, after: int | None) -> ModelMutation:
    """Return a change of a product's price; None is no row."""
    images = [None if price is None else {"id": key, "price": price} for price in (before, after)]
    operation = Operation.REMOVE if after is None else Operation.UPSERT
    return ModelMutation("product", key, operation, *images)


class Shop:
    """Random transactions over a few products, and what they add up to."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.prices: dict[str, int] = {}

    def transaction(self) -> list[ModelMutation]:
        changes = []
        for key in self._random.sample("abcdefgh", self._random.randint(0, 4)):
            before = self.prices.get(key)
            after = (
                None
                if before is not None and self._random.random() < 0.3
                else self._random.randint(1, 9)
            )
            changes.append(product(key, before, after))
            if after is None:
                del self.prices[key]
            else:
                self.prices[key] = after
        return changes


def row(key: str, price: int) -> Row:
    return Row("product", key, b'{"id": "%s", "price": %d}' % (key.encode(), price))


def rows(prices: dict[str, int]) -> dict[Row, int]:
    return {row(key, price): 1 for key, price in prices.items()}


async def collected(updates: UpdateSubscription, frontier: int) -> list[tuple[Row, int, int]]:
    """Return the updates up to a frontier."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while updates.frontier < frontier:
            finished = await anext(updates)
            found.extend(tuple(update) for update in finished.updates)
    return found


def summed(updates: Iterable[tuple[Row, int, int]]) -> dict[Row, int]:
    counts: dict[Row, int] = {}
    for data, _, diff in updates:
        counts[data] = counts.get(data, 0) + diff
    return {data: count for data, count in counts.items() if count}


async def test_contract_40_a_subscription_survives_a_proxy_that_repeats_and_reorders(
    serve: Any, writer: ModelWriter
) -> None:
    shop = Shop(1)
    writer.write(*(shop.transaction() for _ in range(50)))
    served = await serve(message_bytes=256)
    async with (
        ManglingProxy(served.target, seed=2) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}") as client,
        client.subscribe_cdcv2("shop", since=0) as updates,
    ):
        found = await collected(updates, 51)
        for _ in range(20):
            writer.write(shop.transaction())
        proxy.cut = True
        found += await collected(updates, 71)
        statistics = updates.statistics()
    assert summed(found) == rows(shop.prices)
    assert [time for _, time, _ in found] == sorted(time for _, time, _ in found)
    assert len({(data, time) for data, time, _ in found}) == len(found)
    assert statistics.duplicates + statistics.dropped_finished > 0
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=0) as updates,
    ):
        assert sorted(await collected(updates, 71)) == sorted(found)


async def test_a_subscription_does_not_go_on_in_another_log_of_the_same_name(
    serve: Any, writer: ModelWriter, tmp_path: Path
) -> None:
    writer.write([product("a", None, 1)])
    other = ModelWriter(tmp_path / "other", "shop", ModelLog())
    other.write(*([product("b", n - 1 or None, n)] for n in range(1, 9)))
    other.writer.close()
    served, another = await serve(), await serve(root=tmp_path / "other")
    async with (
        ManglingProxy(served.target, seed=4, window=4) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}") as client,
        client.subscribe_cdcv2("shop", since=1) as updates,
    ):
        assert await collected(updates, 2) == [(row("a", 1), 1, 1)]
        known = updates.acknowledgement.catalog_uuid
        proxy.turn_to(another.target)
        with pytest.raises(CatalogReplaced, match="shop") as caught:
            await collected(updates, 9)
        assert caught.value.expected == known
        with pytest.raises(CatalogReplaced):
            await anext(updates)


async def test_a_subscription_goes_on_at_the_frontier_of_an_earlier_one(
    serve: Any, writer: ModelWriter
) -> None:
    shop = Shop(3)
    served = await serve()
    writer.write(*(shop.transaction() for _ in range(10)))
    async with tailrace.connect(served.target) as client:
        async with client.subscribe_cdcv2("shop", since=1) as updates:
            found = await collected(updates, 11)
            frontier = updates.frontier
        writer.write(*(shop.transaction() for _ in range(10)))
        async with client.subscribe_cdcv2("shop", since=frontier) as updates:
            found += await collected(updates, 21)
    assert summed(found) == rows(shop.prices)


async def test_without_a_start_the_next_version_is_the_first(
    serve: Any, writer: ModelWriter
) -> None:
    writer.write([product("a", None, 1)])
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", PRODUCTS) as updates,
    ):
        assert updates.frontier == 2
        writer.write([product("a", 1, 2), ModelMutation("order", "1", Operation.UPSERT, None, {})])
        assert await collected(updates, 3) == [(row("a", 1), 2, -1), (row("a", 2), 2, 1)]
        writer.write([product("a", 2, 2)])
        assert await collected(updates, 4) == []


async def test_a_transaction_of_many_batches_is_finished_once_it_is_whole(
    serve: Any, writer: ModelWriter
) -> None:
    writer.write([product(str(number), None, 1) for number in range(9_000)])
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=1) as updates,
    ):
        found = await collected(updates, 2)
    assert len(found) == 9_000
    assert {data.key for data, _, _ in found} == {str(number) for number in range(9_000)}


async def test_updates_keep_to_the_demand(serve: Any, writer: ModelWriter) -> None:
    writer.write([product("a", None, 1), product("b", None, 1)], [product("a", 1, None)])
    served = await serve()
    request = SubscribeRequest(catalog="shop", since_version=1, encoding=ENCODING_CDCV2)
    call, messages = served.both(DemandRequest(subscribe=request, request=1))
    async with asyncio.timeout(PATIENCE_S):
        for message in messages:
            await call.write(message)
        response = SubscribeResponse()
        while not response.updates:
            response = SubscribeResponse.FromString(await call.read())
        assert [(u.primary_key, u.time, u.diff) for u in response.updates] == [("a", 1, 1)]
        assert not response.HasField("progress")
        await call.write(DemandRequest(request=2).SerializeToString())
        progress: list[Progress] = []
        while not progress or progress[-1].upper[0] < 3:
            response = SubscribeResponse.FromString(await call.read())
            if response.HasField("progress"):
                progress.append(response.progress)
        call.cancel()
    counts = {each.time: each.count for one in progress for each in one.counts}
    assert counts == {1: 2, 2: 1}


@pytest.mark.parametrize(
    "mutation",
    [
        ModelMutation("product", "a", Operation.REMOVE, None, None),
        ModelMutation("product", None, Operation.REMOVE, None, None),
        ModelMutation("product", "a", Operation.UPSERT, None, None),
    ],
    ids=["removal", "truncate", "upsert"],
)
async def test_a_record_without_its_images_ends_the_subscription_by_name(
    serve: Any, writer: ModelWriter, mutation: ModelMutation
) -> None:
    writer.write([product("a", None, 1)], [mutation])
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=1) as updates,
    ):
        with pytest.raises(ImagesMissing, match="version 2") as caught:
            await collected(updates, 3)
    assert (caught.value.version, caught.value.key) == (2, mutation.primary_key)


async def test_a_row_above_the_limit_ends_the_subscription_by_name(
    serve: Any, writer: ModelWriter
) -> None:
    note = ModelMutation("product", "a", Operation.UPSERT, None, {"note": "x" * 3_000})
    writer.write([note])
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=1, max_message_bytes=1_024) as updates,
    ):
        with pytest.raises(InvalidRequest, match="version 1: the row of key 'a' has 3"):
            await collected(updates, 2)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"since_version": 1, "since_index": 1}, "whole version"),
        ({"after": "1.00000000000040008000000000000001.1.0.0"}, "whole version"),
        ({"from_time": 5}, "whole version"),
        ({"body": [Body.BODY_AFTER]}, "body"),
        ({"criteria": [{"operation": ["OPERATION_REMOVE"]}]}, r"criteria\[0\]"),
        ({"criteria": [{}, {"container_name": ["price"]}]}, r"criteria\[1\]"),
        ({"criteria": [{"area": "AREA_SCHEMA"}]}, "area"),
        ({"encoding": 9}, "encoding"),
    ],
    ids=["index", "cursor", "time", "body", "operation", "column", "area", "encoding"],
)
async def test_what_has_no_meaning_with_updates_is_refused(
    serve: Any, writer: ModelWriter, fields: dict[str, Any], text: str
) -> None:
    writer.write([product("a", None, 1)])
    served = await serve()
    request = SubscribeRequest(**{"catalog": "shop", "encoding": ENCODING_CDCV2, **fields})
    error = await served.refused("Subscribe", request)
    assert isinstance(error, InvalidRequest)
    with pytest.raises(InvalidRequest, match=text):
        raise error


async def test_a_closed_subscription_says_so(serve: Any, writer: ModelWriter) -> None:
    served = await serve()
    async with tailrace.connect(served.target) as client:
        updates = client.subscribe_cdcv2("shop", since=0)
        with pytest.raises(tailrace.SubscriptionClosed):
            _ = updates.acknowledgement
        async with updates:
            pass
        with pytest.raises(tailrace.SubscriptionClosed):
            await anext(updates)


async def test_cancelling_the_wait_loses_nothing(serve: Any, writer: ModelWriter) -> None:
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=0) as updates,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(updates)
        writer.write([product("a", None, 1)])
        assert await collected(updates, 2) == [(row("a", 1), 1, 1)]


async def test_a_version_longer_than_each_wait_for_it_comes_all_the_same(
    serve: Any, writer: ModelWriter
) -> None:
    writer.write([product(str(number), None, number) for number in range(3_000)])
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=0) as updates,
        asyncio.timeout(20),
    ):
        finished: list[Any] = []
        while not finished:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    finished.extend((await anext(updates)).updates)
        assert len(finished) == 3_000
        assert updates.statistics().duplicates == 0, "nothing was asked for again"


async def test_closing_it_under_a_wait_says_so(serve: Any, writer: ModelWriter) -> None:
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_cdcv2("shop", since=0) as updates,
    ):
        waiting = asyncio.create_task(anext(updates))
        await asyncio.sleep(0)
        updates.close()
        with pytest.raises(tailrace.SubscriptionClosed):
            await waiting


async def test_no_server_is_a_timeout_of_the_connection() -> None:
    timeouts = tailrace.Timeouts(connect_s=0.05)
    async with (
        grpc.aio.insecure_channel("127.0.0.1:1"),
        tailrace.connect("127.0.0.1:1", timeouts=timeouts) as client,
    ):
        with pytest.raises(tailrace.TransportError):
            async with client.subscribe_cdcv2("shop"):
                pass


def test_the_json_faces_know_no_encoding() -> None:
    with pytest.raises(Unsupported, match="encoding"):
        from_json(SubscribeRequest, {"encoding": "CDCV2"}, criteria_max=1, without=ELSEWHERE)
