"""An event stream for each operation. What all transports promise is proven by tests/conformance."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from tailrace.cursor import Cursor
from tailrace.position import END
from tailrace_server.api.settings import HttpSettings
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.conformance.shop import SHOP, upsert
from tests.server.api.graphql.conftest import PATH, client
from tests.server.api.graphql.transports.conftest import COMPLETE, EVENTS, Event, stream
from tests.support.browser import chromium
from tests.support.inprocess import PATIENCE_S
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

LIVE = (
    "subscription ($v: Long, $a: String) "
    "{ onCatalogChange(sinceVersion: $v, after: $a) { version index } }"
)
COMPLETED = Event("complete", None, COMPLETE)


def place(event: Event) -> tuple[int, int]:
    change = event.data["data"]["onCatalogChange"]
    return change["version"], change["index"]


async def test_a_browser_goes_on_behind_the_last_id_whatever_its_document_says(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    expected = [(version, index) for version, index, *_ in writer.log.expected(())]
    served = await serve()
    async with stream(served, LIVE, method="GET", v=0) as events:
        first = await events.several(3)
    assert [*map(place, first)] == expected[:3]
    again = {"last-event-id": first[-1].id or ""}
    async with stream(served, LIVE, method="GET", headers=again, v=0) as events:
        assert [*map(place, await events.several(len(expected) - 3))] == expected[3:]
    path = f"{PATH}?lastEventId={first[0].id}&_=17"
    async with stream(served, LIVE, path=path, a="nonsense") as events:
        assert place(await events.next()) == expected[1]


async def test_where_nothing_matches_the_id_moves_without_an_event(
    serve: Serve, writer: ModelWriter
) -> None:
    """From the beginning on: one that comes back before its first change has missed none."""
    writer.write(*SHOP)
    served = await serve()
    query = 'subscription { onCatalogChange(criteria: [{entityType: ["none"]}]) { cursor } }'
    async with stream(served, query, method="GET") as events:
        began = await events.any()
        assert began is not None
        assert (began.name, Cursor.parse(began.id or "").version) == (None, len(SHOP))
        writer.write([upsert("9")])
        end = Cursor(writer.writer.uuid, len(SHOP) + 1, END)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                beat = await events.any()
                assert beat is not None
                assert beat.name is None
                if Cursor.parse(beat.id or "") == end:
                    break


async def test_a_message_of_a_kilobyte_of_lines_stays_one_event(
    serve: Serve, log_root: Path
) -> None:
    """An image may have line ends between its tokens, and so have queries that show it."""
    with LogWriter.open(log_root, "lines") as log:
        for key in "12":
            log.append([Mutation("product", key, after=b'{\n"id": \r\n%b}' % key.encode())])
    served = await serve()
    path = PATH.replace("shop", "lines")
    query = "subscription { onCatalogChange(sinceVersion: 1, criteria: [{area: DATA}]) { after } }"
    async with stream(served, query, path=path) as events:
        shown = [each.data["data"]["onCatalogChange"]["after"] for each in await events.several(2)]
    query = "{ changes(criteria: [{area: DATA}]) { edges { node { after } } } }"
    async with stream(served, query, path=path) as events:
        (answer, completed) = await events.rest()
    edges = answer.data["data"]["changes"]["edges"]
    assert [each["node"]["after"] for each in edges] == shown == [{"id": 1}, {"id": 2}]
    assert completed == COMPLETED


async def test_what_is_wrong_is_told_on_the_stream_which_is_over_then(
    serve: Serve, writer: ModelWriter
) -> None:
    """Also to an EventSource, which knows no status; it comes back once, and is told that this was all."""
    served = await serve()
    for path, query, code in (
        (PATH, "{ nothing }", "INVALID_REQUEST"),
        (PATH, 'subscription { onCatalogChange(after: "x") { cursor } }', "CURSOR_INVALID"),
        (PATH.replace("shop", "ship"), "{ __typename }", "CATALOG_UNKNOWN"),
    ):
        for method in ("GET", "POST"):
            async with stream(served, query, path=path, method=method) as events:
                told, completed = await events.rest()
            assert told.data["errors"][0]["extensions"]["code"] == code
            assert (told.name, completed) == ("next", COMPLETED)
    over = await served.http.get(
        PATH, params={"query": "{ nothing }"}, headers={**EVENTS, "last-event-id": COMPLETE}
    )
    assert over.status_code == 204
    assert served.face.sockets.statistics().open == 0


async def test_a_stream_that_cannot_be_opened_now_sends_a_browser_back(
    serve: Serve, writer: ModelWriter
) -> None:
    """Whoever can send a body sees the status."""
    served = await serve(HttpSettings(http_connections=1))
    async with client(served):
        refused = await served.http.get(PATH, params={"query": LIVE}, headers=EVENTS)
        assert refused.status_code == 200
        assert re.fullmatch(
            r'retry: [1-5][0-9]{3}\nevent: next\ndata: \{"errors":.*"retriable":true.*\}\n\n',
            refused.text,
        )
        post = await served.http.post(PATH, json={"query": LIVE}, headers=EVENTS)
        assert post.status_code == 429
        assert "http_connections" in post.json()["errors"][0]["message"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_server_that_stops_completes_streams_that_do_not_come_back_by_themselves(
    serve: Serve, writer: ModelWriter, method: str
) -> None:
    served = await serve()
    async with stream(served, LIVE, method=method, v=0) as events:
        await events.any()
        served.engine.stop_subscriptions()
        told, *completed = await events.rest()
    assert told.data["errors"][0]["extensions"]["code"] == "SERVER_STOPPING"
    assert completed == ([] if method == "GET" else [COMPLETED])
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)


async def test_whoever_takes_a_stream_or_an_object_is_given_what_the_operation_needs(
    serve: Serve, writer: ModelWriter
) -> None:
    """As urql does, which names both for every operation."""
    served = await serve()
    headers = {"accept": "application/graphql-response+json, application/json, text/event-stream"}
    writer.write(*SHOP)
    async with stream(served, LIVE, headers=headers, v=1) as events:
        assert place(await events.next()) == (1, 0)
    answer = await served.http.post(PATH, json={"query": "{ __typename }"}, headers=headers)
    assert answer.json() == {"data": {"__typename": "Query"}}


async def test_equal_selections_share_their_events_and_those_of_sockets_are_others(
    serve: Serve, writer: ModelWriter
) -> None:
    """Compiled once for all transports, however they are written."""
    writer.write(*SHOP)
    served = await serve()
    async with (
        stream(served, LIVE, v=0) as one,
        stream(served, LIVE, method="GET", v=0) as other,
        client(served) as socket,
    ):
        assert await one.several(4) == await other.several(4)
        await socket.payloads(await socket.subscribe(LIVE, v=0), 4)
    found = served.face.sockets.statistics()
    assert found.errors == {}


@pytest.mark.slow
async def test_an_event_source_of_a_browser_reads_and_stops_at_the_end(
    serve: Serve, writer: ModelWriter
) -> None:
    """It comes back by itself after a cut, behind what it had; a query ends it for good."""
    writer.write(*SHOP)
    count = len(writer.log.expected(()))
    served = await serve()
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{served.port}/health")
        await page.evaluate(
            """([path, live, query]) => {
                const at = text => `${path}?query=${encodeURIComponent(text)}`;
                window.seen = [];
                window.source = new EventSource(at(live));
                source.addEventListener("next", ({ data }) => {
                    const change = JSON.parse(data).data?.onCatalogChange;
                    if (change) seen.push(`${change.version}:${change.index}`);
                });
                window.once = new EventSource(at(query));
            }""",
            [
                PATH,
                LIVE.replace("$v,", "0,")
                .replace("($v: Long, $a: String) ", "")
                .replace(", after: $a", ""),
                "{ __typename }",
            ],
        )
        await page.wait_for_function("count => seen.length === count", arg=count)
        for _, subscription in served.engine.subscriptions(ANONYMOUS):
            subscription.stop()
        writer.write([upsert("9")])
        expected = [f"{version}:{index}" for version, index, *_ in writer.log.expected(())]
        await page.wait_for_function("count => seen.length >= count", arg=len(expected))
        assert await page.evaluate("seen") == expected
        await page.wait_for_function("once.readyState === 2")
        assert await page.evaluate("source.readyState") == 1
