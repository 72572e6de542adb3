"""What a request may ask of the form: CloudEvents, and bodies as text."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jsonschema
import pytest

from tests.conformance.shop import SHOP, upsert
from tests.server.api.rest.conftest import LIVE, hear, say
from tests.server.api.rest.test_documents import check, component
from tests.server.api.rest.test_socket import subscribe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

CHANGES = "/v1/catalogs/shop/changes"
BATCH = {"accept": "application/cloudevents-batch+json"}
EVENTS = {"accept": "text/event-stream"}
SPECIFICATION: Final = json.loads(Path(__file__).with_name("cloudevents-1.0.2.json").read_text())
"""The specification's own schema."""


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """Hold an event against the specification, our documents and its own data; return its data."""
    jsonschema.Draft7Validator(SPECIFICATION, format_checker=jsonschema.FormatChecker()).validate(
        event
    )
    check(event, component("CloudEvent"))
    data: dict[str, Any] = event["data"]
    assert event["id"] == data["cursor"]
    assert event["source"].removeprefix("urn:uuid:").replace("-", "") in data["cursor"]
    assert event["type"] == f"tailrace.{data['area']}.{data['operation']}".lower()
    named = (data["entityType"], data["primaryKey"])
    assert event.get("subject") == ("/".join(filter(None, named)) or None)
    since = datetime.fromisoformat(event["time"]) - datetime.fromisoformat("1970-01-01T00:00:00Z")
    assert since // timedelta(microseconds=1) == data["commitTimestamp"]
    return data


async def live(served: Served, count: int, **asked: Any) -> list[dict[str, Any]]:
    """Return so many events from a socket."""
    found: list[dict[str, Any]] = []
    async with served.socket() as socket:
        await say(socket, subscribe(sinceVersion=0, format="cloudevents", **asked))
        while len(found) < count:
            message = await hear(socket)
            if message["type"] == "next":
                check(message["payload"], component("CloudEvents"))
                found += message["payload"]["events"]
                assert message["payload"]["cursor"] == found[-1]["id"]
    return found


async def streamed(served: Served, count: int, query: str) -> list[dict[str, Any]]:
    """Return so many events from an event stream."""
    found: list[dict[str, Any]] = []
    url = f"{LIVE}?sinceVersion=0&{query}"
    async with served.http.stream("GET", url, headers=EVENTS) as answer:
        id = ""
        named = False
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                id = value
            named = named or name == "event"
            if name == "data" and not named:
                found.append(json.loads(value))
                assert found[-1]["id"] == id
                if len(found) == count:
                    break
            named = named and bool(line)
    return found


async def test_captures_are_cloud_events_on_request_by_every_way(
    serve: Serve, writer: ModelWriter
) -> None:
    """Their data is what is sent without it, and any id is a cursor."""
    writer.write(*SHOP)
    writer.write([upsert('a "b" \\ ä\n\x01', text='"\\\n')])
    served = await serve()
    for query in ("body=all&area=DATA", "containerType=ATTRIBUTE&body=after"):
        plain = (await served.http.get(f"{CHANGES}?{query}")).json()["captures"]
        answer = await served.http.get(f"{CHANGES}?{query}", headers=BATCH)
        assert answer.headers["content-type"] == BATCH["accept"]
        events = answer.json()
        assert [checked(event) for event in events] == plain
        assert (await served.http.get(f"{CHANGES}?{query}&format=cloudevents")).json() == events
        *lines, end = (
            await served.http.get(
                f"{CHANGES}?{query}&format=cloudevents",
                headers={"accept": "application/x-ndjson"},
            )
        ).content.splitlines()
        assert list(map(json.loads, lines)) == events
        assert json.loads(end)["count"] == len(events)
        assert await streamed(served, len(events), f"{query}&format=cloudevents") == events
        rest = await served.http.get(f"{CHANGES}?{query}&after={events[-2]['id']}", headers=BATCH)
        assert rest.json() == events[-1:]
    everything = (await served.http.get(CHANGES, headers=BATCH)).json()
    assert {event["type"] for event in everything} > {"tailrace.data.remove"}
    assert await live(served, len(everything)) == everything
    asked = {"format": "cloudevents", "limit": 1}
    answer = await served.http.post(f"{CHANGES}/query", json=asked)
    assert answer.json() == everything[: len(answer.json())]
    past = await served.http.get(f"{CHANGES}?after={everything[-1]['id']}", headers=BATCH)
    assert past.content == b"[]"


async def test_contract_46_bodies_as_text_are_exact_whatever_parser_reads_them(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", price=12345678901234567890.5, text='"\\ \n ä')])
    served = await serve()
    url = f"{CHANGES}?area=DATA&body=after"
    raw = (await served.http.get(url)).content
    for query in ("bodies=text", "bodies=text&format=cloudevents"):
        page = (await served.http.get(f"{url}&{query}")).json()
        capture = page["captures"][0] if isinstance(page, dict) else checked(page[0])
        assert b'"after":%s' % capture["after"].encode() in raw
    (event,) = await live(served, 1, bodies="text", body=["after"], criteria=[{"area": "DATA"}])
    assert event["data"]["after"] == capture["after"]
    arrow = await served.http.get(
        f"{url}&bodies=text", headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    assert capture["after"].encode() in arrow.content


async def test_a_capture_that_is_too_large_comes_without_bodies_in_every_form(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", text="x" * 5_000)])
    served = await serve()
    url = "area=DATA&body=after&maxMessageBytes=2000"
    for form in ("format=cloudevents", "format=cloudevents&bodies=text"):
        (event,) = (await served.http.get(f"{CHANGES}?{url}&{form}")).json()
        assert checked(event)["omittedBytes"] > 5_000
        (streamed_one,) = await streamed(served, 1, f"{url}&{form}")
        assert checked(streamed_one)["omittedBytes"] > 5_000
        assert "after" not in event["data"]


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("format=xml", "UNSUPPORTED", "captures, cloudevents"),
        ("bodies=bytes", "UNSUPPORTED", "json, text"),
        ("format=captures&format=captures", "INVALID_REQUEST", "twice"),
    ],
)
async def test_a_form_that_there_is_not_is_refused_by_name(
    serve: Serve, query: str, code: str, says: str
) -> None:
    served = await serve()
    for url, headers in ((f"{CHANGES}?{query}", {}), (f"{LIVE}?{query}", EVENTS)):
        problem = (await served.http.get(url, headers=headers)).json()
        assert (problem["code"], says in problem["detail"]) == (code, True)


async def test_other_faults_of_a_form_are_refused(serve: Serve) -> None:
    served = await serve()
    arrow = {"accept": "application/vnd.apache.arrow.stream"}
    answer = await served.http.get(f"{CHANGES}?format=cloudevents", headers=arrow)
    assert (answer.status_code, "Arrow" in answer.json()["detail"]) == (400, True)
    answer = await served.http.post(f"{CHANGES}/query", json={"format": 1})
    assert answer.json()["code"] == "INVALID_REQUEST"
    async with served.socket() as socket:
        await say(socket, subscribe(bodies=["text"]))
        message = await hear(socket)
        assert (message["type"], message["payload"]["code"]) == ("error", "INVALID_REQUEST")
