"""Event streams that cannot be opened now: a browser that is refused by a status never asks again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.api.settings import HttpSettings
from tests.conformance.shop import SHOP
from tests.server.api.rest.conftest import LIVE
from tests.support.browser import chromium
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

EVENTS = {"accept": "text/event-stream"}


def told_to_come_back(answer: httpx.Response) -> dict[str, Any]:
    """Return the problem that a stream told which ended at once."""
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    found = re.fullmatch(r"retry: ([0-9]+)\nevent: error\ndata: (.+)\n\n", answer.text)
    assert found is not None, answer.text
    assert 1_000 <= int(found[1]) <= 5_000
    problem: dict[str, Any] = json.loads(found[2])
    return problem


async def first_ids(served: Served, path: str, headers: dict[str, str], count: int) -> list[str]:
    """Return the places of the first captures of a stream."""
    found: list[str] = []
    async with served.http.stream("GET", path, headers={**EVENTS, **headers}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith('data: {"version":'):
                capture = json.loads(line.removeprefix("data: "))
                found.append(f"{capture['version']}.{capture['index']}")
                if len(found) == count:
                    break
    return found


async def test_above_the_limit_of_connections_a_stream_is_told_to_come_back(serve: Serve) -> None:
    served = await serve(HttpSettings(http_connections=1))
    async with served.socket():
        problem = told_to_come_back(await served.http.get(LIVE, headers=EVENTS))
        assert (problem["status"], problem["retriable"]) == (429, True)
        assert "the limit" in problem["detail"]
        post = await served.http.post(LIVE, headers=EVENTS, json={})
        assert post.status_code == 429  # whoever can send a body sees the status
    assert served.face.sockets.statistics().errors == {("http", "INVALID_REQUEST"): 2}


async def test_a_stream_of_a_server_that_stops_is_told_to_come_back(serve: Serve) -> None:
    served = await serve()
    served.engine.stop_subscriptions()
    problem = told_to_come_back(await served.http.get(LIVE, headers=EVENTS))
    assert problem["code"] == "SERVER_STOPPING"


async def test_what_can_never_succeed_is_refused_by_its_status(serve: Serve) -> None:
    served = await serve()
    for path, status in ((f"{LIVE}?where=1", 400), (LIVE.replace("shop", "ship"), 404)):
        assert (await served.http.get(path, headers=EVENTS)).status_code == status


@pytest.mark.parametrize("name", ["lastEventId", "Last-Event-ID"])
async def test_the_last_event_id_may_be_a_parameter(
    serve: Serve, writer: ModelWriter, name: str
) -> None:
    """Above any other start; below the header, which a browser sends of its own accord."""
    writer.write(*SHOP)
    served = await serve()
    uuid = writer.writer.uuid.hex
    path = f"{LIVE}?sinceVersion=0&{name}=1.{uuid}.1.2147483647.2147483647&_=1700000000"
    assert await first_ids(served, path, {}, 1) == ["2.0"]
    header = {"last-event-id": f"1.{uuid}.2.2147483647.2147483647"}
    assert await first_ids(served, path, header, 1) == ["3.0"]
    assert await first_ids(served, f"{LIVE}?sinceVersion=0&{name}=", {}, 1) == ["1.0"]


@pytest.mark.slow
async def test_an_event_source_comes_back_when_there_is_room(serve: Serve) -> None:
    served = await serve(HttpSettings(http_connections=1))
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{served.port}/health")
        async with served.socket():
            await page.evaluate(
                """url => {
                    window.source = new EventSource(url);
                    source.addEventListener("subscribed", () => document.body.append("it is open"));
                }""",
                LIVE,
            )
            await until(lambda: served.face.sockets.statistics().refused > 0)
            assert await page.evaluate("source.readyState") != 2
        await page.get_by_text("it is open").wait_for()
