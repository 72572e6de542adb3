"""Many operations on one event stream: reservations, order, omission, ends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tailrace_server.api.settings import HttpSettings
from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.shop import SHOP, upsert
from tests.server.api.graphql.conftest import PATH
from tests.server.api.graphql.transports.conftest import EVENTS, Event, Events, stream
from tests.support.living import without_collector
from tests.support.polling import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

EACH = 5
"""Streams: what so many leave behind is no accident."""
LIVE = "subscription ($v: Long) { onCatalogChange(sinceVersion: $v) { version index } }"


class Reserved:
    """A reservation as its client sees it."""

    def __init__(self, served: Served, token: str) -> None:
        self.served = served
        self.token = token
        self.headers = {"x-graphql-event-stream-token": token}

    async def begin(self, id: str, query: str = LIVE, **variables: Any) -> httpx.Response:
        asked = {"query": query, "variables": variables, "extensions": {"operationId": id}}
        return await self.served.http.post(PATH, json=asked, headers=self.headers)

    async def end(self, id: str) -> httpx.Response:
        path = f"{PATH}?operationId={id}"
        return await self.served.http.delete(path, headers=self.headers)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Events]:
        async with stream(self.served, method="GET", headers=self.headers) as events:
            yield events


async def reserve(served: Served) -> Reserved:
    answer = await served.http.put(PATH)
    assert (answer.status_code, answer.headers["content-type"][:10]) == (201, "text/plain")
    return Reserved(served, answer.text)


def subscriptions(served: Served) -> int:
    return served.engine.statistics(ANONYMOUS).subscriptions


def of(id: str, events: list[Event]) -> list[Any]:
    """Return the payloads of one operation."""
    return [each.data["payload"] for each in events if each.data["id"] == id]


async def test_operations_share_a_stream_and_each_has_exactly_its_changes_in_order(
    serve: Serve, writer: ModelWriter
) -> None:
    """Those that begin before the stream is opened as well; a query is one result."""
    writer.write(*SHOP)
    expected = [[version, index] for version, index, *_ in writer.log.expected(())]
    served = await serve()
    reserved = await reserve(served)
    assert (await reserved.begin("early", v=0)).status_code == 202
    assert subscriptions(served) == 0
    async with reserved.stream() as events:
        assert (await reserved.begin("late", v=3)).status_code == 202
        later = [each for each in expected if each[0] >= 3]
        found = await events.several(len(expected) + len(later))
        assert (await reserved.begin("query", "{ __typename }")).status_code == 202
        answer, completed = await events.several(2)
        writer.write([upsert("9")])
        found += await events.several(4)
    assert answer == Event("next", {"id": "query", "payload": {"data": {"__typename": "Query"}}})
    assert completed == Event("complete", {"id": "query"})
    expected += (new := [[len(SHOP) + 1, 0], [len(SHOP) + 1, 1]])
    for id, changes in (("early", expected), ("late", [*later, *new])):
        data = [payload["data"]["onCatalogChange"] for payload in of(id, found)]
        assert [[each["version"], each["index"]] for each in data] == changes
    await until(lambda: subscriptions(served) == 0)
    assert (await reserved.begin("gone")).status_code == 404
    assert served.face.sockets.statistics().open == 0


async def test_a_large_change_between_small_ones_and_one_left_out_come_whole(
    serve: Serve, writer: ModelWriter
) -> None:
    """In the middle of another operation's events; a deleted operation's half event spoils nothing."""
    writer.write([upsert("1")], [upsert("2", text="x" * 300_000)], [upsert("3")])
    served = await serve(max_message_bytes=1 << 20)
    query = (
        "subscription ($m: Int) { onProductChange(sinceVersion: 1, maxMessageBytes: $m) "
        "{ primaryKey omittedBytes after { text } } }"
    )
    reserved = await reserve(served)
    async with reserved.stream() as events:
        await reserved.begin("dropped", query)
        await reserved.end("dropped")
        await reserved.begin("all", query)
        await reserved.begin("small", query, m=100_000)
        found: list[Event] = []
        while len(of("all", found)) < 3 or len(of("small", found)) < 3:
            found.append(await events.next())
    for id in ("all", "small"):
        keys = [each["data"]["onProductChange"]["primaryKey"] for each in of(id, found)]
        assert keys == ["1", "2", "3"]
    assert len(of("all", found)[1]["data"]["onProductChange"]["after"]["text"]) == 300_000
    left_out = of("small", found)[1]
    assert left_out["data"]["onProductChange"]["after"] is None
    assert left_out["data"]["onProductChange"]["omittedBytes"] > 300_000
    assert left_out["errors"][0]["extensions"]["code"] == "BODIES_OMITTED"


async def test_an_operation_ends_by_delete_or_with_its_errors_and_its_id_is_free_again(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    reserved = await reserve(served)
    async with reserved.stream() as events:
        assert (await reserved.begin("1")).status_code == 202
        assert (await reserved.begin("1")).status_code == 409
        await until(lambda: subscriptions(served) == 1)
        assert (await reserved.end("1")).status_code == 200
        await until(lambda: subscriptions(served) == 0)
        assert (await reserved.end("1")).status_code == 200
        bad = LIVE.replace("sinceVersion: $v", 'after: "x"').replace("($v: Long) ", "")
        assert (await reserved.begin("1", bad)).status_code == 202
        told, completed = await events.several(2)
        assert told.data["payload"]["errors"][0]["extensions"]["code"] == "CURSOR_INVALID"
        assert completed == Event("complete", {"id": "1"})
        for answer, status in (
            (await reserved.begin("2", "{ nothing }"), 400),
            (await reserved.begin("", LIVE), 400),
            (await reserved.end(""), 400),
            (await served.http.delete(f"{PATH}?operationId=1"), 400),
            (await served.http.get(PATH, headers={**reserved.headers, **EVENTS}), 409),
        ):
            assert answer.status_code == status
            assert answer.json()["errors"][0]["message"]


async def test_a_server_that_stops_tells_each_operation_and_ends_the_stream(
    serve: Serve, writer: ModelWriter
) -> None:
    """One without operations ends as well: nobody waits for it."""
    served = await serve()
    reserved, idle = await reserve(served), await reserve(served)
    async with reserved.stream() as events, idle.stream() as quiet:
        await reserved.begin("1")
        await reserved.begin("2")
        await until(lambda: subscriptions(served) == 2)
        served.engine.stop_subscriptions()
        await served.face.drain(10)
        found = await events.rest()
        assert await quiet.rest() == []
    told = [each for each in found if each.name == "next"]
    assert {each.data["id"] for each in told} == {"1", "2"}
    codes = {each.data["payload"]["errors"][0]["extensions"]["code"] for each in told}
    assert codes == {"SERVER_STOPPING"}


async def test_operations_go_on_over_streams_that_reach_their_age(
    serve: Serve, writer: ModelWriter
) -> None:
    """Each is told where, however far it was; nothing is missed or comes twice."""
    writer.write(*SHOP)
    served = await serve(max_connection_age_s=1)
    # One that is kept may reach its age as it is used again.
    served.http.headers["connection"] = "close"
    query = LIVE.replace("($v: Long)", "($v: Long, $after: String)").replace(
        "sinceVersion: $v", "sinceVersion: $v, after: $after"
    )
    starts: dict[str, dict[str, Any]] = {"1": {"v": 0}, "2": {"v": 3}}
    found: dict[str, list[list[int]]] = {"1": [], "2": []}
    last = [len(SHOP) + 1, 1]
    streams = 0
    while any(last not in changes for changes in found.values()):
        reserved = await reserve(served)
        for id, start in starts.items():
            assert (await reserved.begin(id, query, **start)).status_code == 202
        async with reserved.stream() as events:
            told = [each for each in await events.rest() if each.name == "next"]
        assert (await reserved.begin("3")).status_code == 404  # it has ended with its stream
        for id in starts:
            *changes, end = of(id, told)
            data = [each["data"]["onCatalogChange"] for each in changes]
            found[id] += [[each["version"], each["index"]] for each in data]
            extensions = end["errors"][0]["extensions"]
            assert (extensions["code"], extensions["retriable"]) == ("SUBSCRIPTION_BROKEN", True)
            starts[id] = {"after": extensions["figures"]["resume_cursor"]}
        if streams == 0:
            writer.write([upsert("9")])
        streams += 1
    assert streams > 1
    expected = [[version, index] for version, index, *_ in writer.log.expected(())]
    assert found == {"1": expected, "2": [each for each in expected if each[0] >= 3]}


async def test_a_reservation_is_for_its_catalog_and_the_oldest_makes_room(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve(HttpSettings(graphql_reservations=2))
    assert (await served.http.put(PATH.replace("shop", "ship"))).status_code == 404
    oldest, used, _waits = [await reserve(served) for _ in range(3)]
    assert (await oldest.begin("1")).status_code == 404
    elsewhere = await served.http.get("/v1/system/graphql", headers={**used.headers, **EVENTS})
    assert elsewhere.status_code == 404
    await used.begin("1")
    async with used.stream() as events:
        await until(lambda: subscriptions(served) == 1)
        gone = await served.http.get(PATH, headers={**oldest.headers, **EVENTS})
        assert "PUT" in gone.json()["errors"][0]["message"]
        writer.write([upsert("9")])
        assert (await events.next()).data["id"] == "1"


async def test_a_reservation_is_forgotten_after_its_time(serve: Serve) -> None:
    served = await serve(HttpSettings(graphql_reservation_s=0.01))
    waits = await reserve(served)
    async with asyncio.timeout(PATIENCE_S):
        while (await waits.end("1")).status_code != 404:
            pass


async def test_operations_that_wait_are_charged_and_refused_above_the_budget(
    serve: Serve, writer: ModelWriter
) -> None:
    """And what is above the limit of one stream."""
    served = await serve(HttpSettings(ws_subscriptions=2))
    reserved = await reserve(served)
    assert (await reserved.begin("1")).status_code == 202
    assert (await reserved.begin("2")).status_code == 202
    above = await reserved.begin("3")
    assert (above.status_code, "ws_subscriptions" in above.text) == (400, True)
    served.face.sockets.inbound.bytes_max = 400_000
    first, second = await reserve(served), await reserve(served)
    for each in (first, second):
        assert (await each.begin("1", unused="x" * 150_000)).status_code == 202
    assert (await first.end("1")).status_code == 404
    assert (await second.end("1")).status_code == 200
    assert served.guards == {"inbound_memory": 1}
    assert (await second.begin("1", unused="x" * 290_000)).status_code == 413


async def test_a_quiet_stream_is_kept_by_comments(serve: Serve, writer: ModelWriter) -> None:
    served = await serve(HttpSettings(ws_ping_interval_s=0.01))
    reserved = await reserve(served)
    async with reserved.stream() as events:
        for _ in range(3):
            assert await events.any() == Event(None, None)


async def test_streams_that_end_leave_nothing_for_the_collector(
    serve: Serve, writer: ModelWriter
) -> None:
    """With operations that wait for the stream, that run, and that have only just begun when it ends."""
    writer.write(*SHOP)
    served = await serve()

    async def one() -> None:
        reserved = await reserve(served)
        await reserved.begin("early", v=0)
        async with reserved.stream() as events:
            await events.several(3)
            late = asyncio.ensure_future(reserved.begin("late", v=0))
            await asyncio.sleep(0)
        await asyncio.gather(late, return_exceptions=True)

    await one()
    with without_collector("tailrace_server.api.graphql.transports") as living:
        for _ in range(EACH):
            await one()
        await until(lambda: not subscriptions(served))
        await living.back(EACH)
