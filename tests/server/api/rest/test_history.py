"""History over HTTP: its formats, what it says of itself, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace_server.api.settings import HttpSettings
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.conformance import json_captures
from tests.conformance.reading import published
from tests.conformance.shop import COLUMNS, SHOP, upsert
from tests.conformance.ways import Driver
from tests.server.api.rest.conftest import LIVE
from tests.support.inprocess import observer_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

CHANGES = "/v1/catalogs/shop/changes"
LINES = {"accept": "application/x-ndjson"}
ARROW = {"accept": "application/vnd.apache.arrow.stream"}


async def test_contract_46_all_formats_carry_the_same_captures(
    serve: Serve, writer: ModelWriter
) -> None:
    """Bodies byte for byte, those written over several lines included."""
    writer.write(*SHOP)
    writer.write([upsert("ключ", big=2**63 - 1, text="é\n\u2028")])
    served = await serve()
    url = f"{CHANGES}?body=change,before&body=after&containerType=ENTITY&containerType=ATTRIBUTE"
    page = (await served.http.get(url)).json()["captures"]
    *lines, end = (await served.http.get(url, headers=LINES)).content.splitlines()
    assert [json.loads(line) for line in lines] == page
    assert json.loads(end) == {
        "end": True,
        "hasNext": False,
        "nextCursor": None,
        "count": len(page),
    }
    expected = writer.log.expected((COLUMNS,))
    assert [(each["version"], each["index"], each["ordinal"]) for each in page] == expected
    with pa.ipc.open_stream((await served.http.get(url, headers=ARROW)).content) as stream:
        batches = list(stream.iter_batches_with_custom_metadata())
        assert stream.schema.metadata[b"tailrace.anchor"] == b"6"
    assert batches[-1].custom_metadata[b"tailrace.count"] == str(len(page)).encode()
    rows = [row for each in batches for row in each.batch.to_pylist()]
    for line, row in zip(lines, rows, strict=True):
        capture = json_captures.capture(line)
        assert (row["cursor"], row["primaryKey"]) == (str(capture.cursor), capture.primary_key)
        for name in ("change", "before", "after"):
            assert row[name] == getattr(capture, name)


async def test_an_image_of_several_lines_is_one_line(serve: Serve, writer: ModelWriter) -> None:
    writer.writer.append([Mutation("note", "1", after=b'{\r\n "id":\n"1"\n}')])
    writer.writer.commit()
    writer.writer.publish()
    served = await serve(heartbeat_interval_s=60)
    answer = await served.http.get(f"{CHANGES}?body=after&entityType=note&area=DATA", headers=LINES)
    line, _ = answer.content.splitlines()
    assert json_captures.capture(line).after == b'{   "id": "1" }'
    url = f"{LIVE}?sinceVersion=0&body=after&entityType=note&area=DATA"
    async with served.http.stream("GET", url, headers={"accept": "text/event-stream"}) as events:
        texts = events.aiter_lines()
        while not (text := await anext(texts)).startswith('data: {"version"'):
            pass
    assert json_captures.capture(text.removeprefix("data: ").encode()).after == b'{   "id": "1" }'


async def test_contract_26_events_before_a_start_by_time_have_no_id(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """A browser that comes back with one would get what lies before the time."""
    writer.write(*SHOP[:1])
    writer.commit(*SHOP[1:2])
    early = CommitLog.open(log_root / "shop").state.last_timestamp
    served = await serve()
    url = f"{LIVE}?fromTime={early + 1}"
    async with served.http.stream("GET", url, headers={"accept": "text/event-stream"}) as events:
        texts = events.aiter_lines()

        async def event() -> list[str]:
            lines = []
            while line := await anext(texts):
                lines.append(line.partition(":")[0])
            return lines

        assert await event() == ["event", "data"]
        writer.publish()
        while observer_of(served.engine, "shop").log.view.published < 2:
            assert await event() == ["event", "data"]
        writer.write(*SHOP[2:3])
        while "event" in (names := await event()):
            pass
        assert "id" in names
        while "event" not in (names := await event()):
            pass
        assert names == ["event", "id", "data"]


async def test_a_page_without_a_limit_has_one(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert(str(number)) for number in range(30)])
    served = await serve(HttpSettings(page_records=10))
    page = (await served.http.get(CHANGES)).json()
    assert (page["count"], page["hasNext"]) == (10, True)
    rest = await served.http.get(CHANGES, params={"after": page["nextCursor"], "limit": 100})
    assert (rest.json()["count"], rest.json()["hasNext"]) == (21, False)
    assert (await served.http.get(CHANGES, headers=LINES)).content.count(b"\n") == 32


async def test_contract_39_a_closed_range_is_not_sent_twice(
    serve: Serve, writer: ModelWriter
) -> None:
    """What can still grow has no tag; what cannot is known by it until the log is trimmed."""
    for transaction in SHOP:
        writer.write(transaction)
    served = await serve()
    whole = (await served.http.get(CHANGES)).json()
    last = whole["captures"][-1]
    growing: tuple[dict[str, Any], ...] = (
        {},
        {"untilVersion": 6},
        {"toTime": whole["closedUntil"] + 1},
        {"sinceVersion": 9},
    )
    for query in growing:
        answer = await served.http.get(CHANGES, params=query)
        assert "etag" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
    tags = set()
    closed: tuple[dict[str, Any], ...] = (
        {"untilVersion": 5},
        {"toTime": whole["closedUntil"]},
        {"before": last["cursor"]},
        {"anchor": 5},
        {"anchor": 5, "reverse": "true"},
    )
    for query in closed:
        answer = await served.http.get(CHANGES, params=query)
        tag = answer.headers["etag"]
        tags.add(tag)
        assert answer.headers["tailrace-anchor"] == "5"
        again = await served.http.get(CHANGES, params=query, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        changed = await served.http.get(
            CHANGES, params={**query, "body": "after"}, headers={"if-none-match": tag}
        )
        assert changed.status_code == 200
    assert len(tags) == 5


async def test_contract_39_what_is_below_retention_is_refused_or_said_to_be_missing(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """By version refused, by time from what is kept; never fewer captures without a word."""
    for transaction in SHOP:
        writer.write(transaction)
    trim(log_root / "shop", 4, 0)
    served = await serve()
    refused = await served.http.get(f"{CHANGES}?sinceVersion=1")
    assert refused.status_code == 410
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["figures"]["oldest"] == "4:0"
    by_time = await served.http.get(f"{CHANGES}?fromTime=1")
    assert by_time.json()["captures"][0]["version"] == 4
    assert by_time.json()["truncated"] is True
    assert by_time.headers["tailrace-truncated"] == "true"
    answer = await served.http.get(f"{CHANGES}?sinceVersion=0")
    assert answer.json()["oldest"] == {"version": 4, "index": 0}
    assert answer.json()["truncated"] is False
    assert answer.headers["tailrace-truncated"] == "false"


async def test_contract_39_a_poll_from_closed_until_over_http_misses_nothing(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    seen: list[dict[str, Any]] = []
    since = 0
    for number in range(4):
        writer.commit([upsert(str(number))])
        if number % 2:
            writer.publish()
            await _published(served, number + 1)
        page = (await served.http.get(CHANGES, params={"fromTime": since})).json()
        seen += page["captures"]
        since = page["closedUntil"]
    numbers = [(each["version"], each["index"], each["ordinal"]) for each in seen]
    assert numbers == writer.log.expected(())


async def _published(served: Served, version: int) -> None:
    await published(Driver(served.engine), version)


async def test_a_url_asks_for_what_a_body_does(serve: Serve, writer: ModelWriter) -> None:
    """Parameter by parameter, lists by repetition; each of them makes a difference."""
    for transaction in SHOP:
        writer.write(transaction)
    served = await serve()
    whole = (await served.http.get(CHANGES)).json()["captures"]
    middle = whole[4]
    criteria: tuple[dict[str, Any], ...] = (
        {"area": "INFRASTRUCTURE"},
        {"entityType": ["order", "nothing"]},
        {"primaryKey": ["2", "7"]},
        {"operation": ["REMOVE", "EXPIRE"]},
        {"containerType": ["ATTRIBUTE"], "containerName": ["price", "name"]},
    )
    others: tuple[dict[str, Any], ...] = (
        {"body": ["before", "after"]},
        {"sinceVersion": 4, "sinceIndex": 1},
        {"after": middle["cursor"]},
        {"fromTime": middle["commitTimestamp"]},
        {"untilVersion": 4, "untilIndex": 1},
        {"before": middle["cursor"]},
        {"toTime": middle["commitTimestamp"]},
        {"anchor": 3},
        {"reverse": True},
        {"limit": 3},
    )
    by_body = [*((one, {"criteria": [one]}) for one in criteria), *((one, one) for one in others)]
    for query, asked in by_body:
        page = (await served.http.get(CHANGES, params=query)).json()
        assert page == (await served.http.post(f"{CHANGES}/query", json=asked)).json(), query
        assert page["captures"], query
        assert page["captures"] != whole, query


@pytest.mark.parametrize(
    ("query", "code", "named"),
    [
        ("limit=0", "INVALID_REQUEST", "limit"),
        ("limit=ten", "INVALID_REQUEST", "limit"),
        ("limit=1&limit=2", "INVALID_REQUEST", "limit"),
        ("reverse=yes", "INVALID_REQUEST", "reverse"),
        ("since=1", "UNSUPPORTED", "since"),
        ("since_version=1", "UNSUPPORTED", "since_version"),
        ("catalog=shop", "UNSUPPORTED", "catalog"),
        ("area=DATA&area=SCHEMA", "INVALID_REQUEST", "area"),
        ("operation=DELETE", "UNSUPPORTED", "operation"),
        ("body=after,", "UNSUPPORTED", "body"),
        ("sinceVersion=1&after=x", "INVALID_REQUEST", "sinceVersion"),
        ("after=garbage", "CURSOR_INVALID", "garbage"),
        ("before=garbage", "CURSOR_INVALID", "garbage"),
        ("untilVersion=1&toTime=1", "INVALID_REQUEST", "untilVersion"),
        ("untilIndex=1", "INVALID_REQUEST", "untilIndex"),
        ("anchor=99", "INVALID_REQUEST", "anchor"),
        ("entityType=%ff", "INVALID_REQUEST", "UTF-8"),
        ("criteria=[", "INVALID_REQUEST", "criteria: not JSON"),
        ("criteria=%7Bx", "INVALID_REQUEST", "criteria: not JSON"),
        ("criteria=", "INVALID_REQUEST", "criteria: not JSON: it is empty"),
        (f"limit={'9' * 20}", "INVALID_REQUEST", f"not {'9' * 20}"),
        (f"limit={'9' * 20}", "INVALID_REQUEST", " from 1 to 9223372036854775807"),
        (f"limit=-{'9' * 30}", "INVALID_REQUEST", " from 1 to 9223372036854775807"),
        (f"untilIndex={'9' * 20}&untilVersion=1", "INVALID_REQUEST", " from 0 to 2147483647"),
        ("maxMessageBytes=-1", "INVALID_REQUEST", " from 1024 to 67108864"),
        ("criteria=[]&entityType=a", "INVALID_REQUEST", "criteria"),
        ("maxMessageBytes=99999999999", "INVALID_REQUEST", "maxMessageBytes"),
        ("&".join(["entityType=a"] * 1_001), "INVALID_REQUEST", "1000"),
        ("sinceVersion=" + "9" * 5000, "INVALID_REQUEST", "sinceVersion"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_query_without_meaning_is_refused_by_name(
    serve: Serve, writer: ModelWriter, query: str, code: str, named: str
) -> None:
    writer.write(*SHOP)
    served = await serve()
    answer = await served.http.get(f"{CHANGES}?{query}")
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (400, 400, code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in problem["detail"]


async def test_an_empty_body_is_told_to_be_empty(serve: Serve) -> None:
    served = await serve()
    for path in (f"{CHANGES}/query", LIVE):
        answer = await served.http.post(path)
        assert answer.status_code == 400
        assert answer.json()["detail"] == "the body is empty; expected application/json"
    found = (await served.http.post("/v1/catalogs/shop/graphql")).json()["errors"]
    assert found[0]["message"] == "the body is empty; expected application/json"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"x"', 400),
        (b"\xff", 400),
        (b'{"criteria": "x"}', 400),
        (b'{"more": 1}', 400),
        (b'{"limit": {}}', 400),
        (b"[" * 100_000, 400),
        (b'{"criteria": [{"primaryKey": ["%s"]}]}' % (b"x" * 2000), 413),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_body_without_meaning_is_refused(serve: Serve, body: bytes, status: int) -> None:
    served = await serve(HttpSettings(ws_message_bytes=1000 if status == 413 else 1 << 20))
    headers = {"content-type": "application/json"}
    answer = await served.http.post(f"{CHANGES}/query", content=body, headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (status, status)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/v1/catalogs/ship", {}, 404),
        ("GET", "/v1/catalogs/ship/changes", {}, 404),
        ("GET", "/v1/catalogs/%ff/changes", {}, 404),
        ("GET", "/v1/catalogs?x=1", {}, 400),
        ("GET", "/v1/catalogs/shop/schema?version=0", {}, 400),
        ("GET", "/v1/catalogs/shop/schema?at=1", {}, 400),
        ("DELETE", "/v1/catalogs/shop", {}, 405),
        ("GET", "/v1/catalogs/shop/changes/query", {}, 405),
        ("POST", "/v1/catalogs/shop/changes", {}, 405),
        ("GET", CHANGES, {"accept": "text/html"}, 406),
        ("GET", CHANGES, {"accept": "application/json;q=0"}, 406),
        ("GET", LIVE, {"accept": "application/json"}, 406),
        ("POST", f"{CHANGES}/query", {"content-type": "text/plain"}, 415),
        ("POST", f"{CHANGES}/query", {"content-encoding": "gzip"}, 415),
        ("GET", LIVE, {"accept": "text/event-stream", "last-event-id": "garbage"}, 400),
    ],
)
async def test_what_http_itself_refuses_has_the_same_form(
    serve: Serve, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    served = await serve()
    answer = await served.http.request(method, path, headers=headers)
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert served.face.sockets.statistics().open == 0


@pytest.mark.parametrize("path", [f"{CHANGES}/query", LIVE])
async def test_a_post_asks_in_its_body_and_takes_no_parameters(serve: Serve, path: str) -> None:
    """They would look as if they were obeyed."""
    served = await serve()
    answer = await served.http.post(f"{path}?entityType=product&x=1", json={})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["detail"].startswith("entityType: a POST has its arguments in the body")
    assert served.face.sockets.statistics().open == 0


async def test_a_path_and_a_method_that_do_not_exist_are_told_what_does(serve: Serve) -> None:
    served = await serve()
    nowhere = (await served.http.get("/v1/nothing")).json()["detail"]
    assert nowhere == "there is no path /v1/nothing; /v1/openapi.json lists all paths"
    refused = (await served.http.request("POST", CHANGES)).json()["detail"]
    assert refused in (
        f"{CHANGES} allows GET, HEAD, not POST",
        f"{CHANGES} allows HEAD, GET, not POST",
    )


async def test_a_body_that_does_not_arrive_is_not_waited_for(serve: Serve) -> None:
    served = await serve(HttpSettings(request_body_s=0.1))

    reader, slow = await asyncio.open_connection("127.0.0.1", served.port)
    slow.write(
        f"POST {CHANGES}/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{{".encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    slow.close()
    await slow.wait_closed()


async def test_the_accept_field_chooses_the_format(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    for accept, wanted in (
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html, application/x-ndjson;q=0.5", "application/x-ndjson"),
        ("application/json;q=0.1, application/x-ndjson;q=0.5", "application/x-ndjson"),
        ("*/*, application/x-ndjson", "application/x-ndjson"),
    ):
        answer = await served.http.get(CHANGES, headers={"accept": accept})
        assert answer.headers["content-type"] == wanted, accept


async def test_metrics_are_in_the_format_that_a_scraper_asks_for(serve: Serve) -> None:
    """Prometheus names both formats; a person with curl, none."""
    served = await serve()
    prometheus = (
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
        "version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    )
    for accept, wanted in (
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;q=0.1, text/plain", "text/plain; version=0.0.4"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        (prometheus, "application/openmetrics-text; version=1.0.0"),
    ):
        answer = await served.http.get("/metrics", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(wanted), accept
        assert answer.text.endswith("# EOF\n") == ("openmetrics" in wanted)
        assert "tailrace_build_info{version=" in answer.text


async def test_a_capture_above_the_limit_comes_as_its_header_in_every_format(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1"), upsert("2", text="x" * 5000)])
    served = await serve()
    url = f"{CHANGES}?body=after&entityType=product&maxMessageBytes=2048"
    small, large = (await served.http.get(url)).json()["captures"]
    assert small["after"] == {"id": "1"}
    assert "after" not in large
    assert large["omittedBytes"] >= 5000
    lines = (await served.http.get(url, headers=LINES)).content.splitlines()
    assert json.loads(lines[1]) == large


async def test_the_catalogs_their_schema_and_the_system_log_are_there(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    (shop,) = (await served.http.get("/v1/catalogs")).json()["catalogs"]
    assert shop == (await served.http.get("/v1/catalogs/shop")).json()
    assert (shop["name"], shop["publishedVersion"]) == ("shop", 5)
    schema = (await served.http.get("/v1/catalogs/shop/schema?version=1")).json()
    assert {each["name"] for each in schema["entityTypes"]} >= {"product", "order"}
    system = (await served.http.get("/v1/system/changes?body=after")).json()
    assert "shop" in json.dumps(system["captures"])
    for path in ("/v1/catalogs", CHANGES):
        head = await served.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert (await served.http.head(LIVE)).status_code == 200
