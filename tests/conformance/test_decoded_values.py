"""Decoded values come alike over every transport that has them, live and from history."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

import tailrace
from tailrace.criteria import Content
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MAPPING = SchemaMapping.parse("""
[entity_types.product]
key = ["id"]
[entity_types.product.columns]
price = {type = "DECIMAL(10,2)", encoding = "decimal.bytes(2)"}
since = {type = "DATE", encoding = "debezium.Date"}
""")
RAW = b'{"id":1,"price":"LsY=","since":19782,"note":"__debezium_unavailable_value","ratio":1.50}'
READ = b'{"id":1,"price":"119.74","since":"2024-02-29","ratio":1.50}'
CHANGES = "/v1/catalogs/shop/changes"


class Served:
    """One row in a log, on both faces; its note was not sent."""

    def __init__(self, grpc: str, http: httpx.AsyncClient) -> None:
        self.grpc = grpc
        self.http = http

    def client(self) -> tailrace.Client:
        return tailrace.connect(self.grpc)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    with LogWriter.open(tmp_path, "shop", mapping=MAPPING) as log:
        log.append([Mutation("product", "1", after=RAW)])
    async with Engine(tmp_path, EngineSettings(heartbeat_interval_s=0.05)) as engine:
        grpc = GrpcServer(engine)
        port = await grpc.start("127.0.0.1:0")
        async with listening(engine) as face:
            url = f"http://127.0.0.1:{face.address.port}"
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
                yield Served(f"127.0.0.1:{port}", http)
        await grpc.stop(0)


async def test_over_grpc_and_as_a_row(served: Served) -> None:
    product = tailrace.Criteria(area=tailrace.Area.DATA)
    async with served.client() as client:
        wanted: dict[str, Any] = {"content": Content.AFTER, "decoded": True}
        async with client.subscribe("shop", product, since=0, **wanted) as captures:
            live = await anext(captures)
        async with client.read_changes("shop", product, **wanted) as history:
            [old] = [each async for each in history]
        async with client.read_changes("shop", product, content=Content.AFTER) as history:
            [raw] = [each async for each in history]
    assert (live.after, old.after, raw.after) == (READ, READ, RAW)
    assert live.row() == {
        "id": 1,
        "price": "119.74",
        "since": "2024-02-29",
        "ratio": Decimal("1.50"),
    }


async def test_over_http_as_pages_lines_columns_and_events(served: Served) -> None:
    asked = {"values": "decoded", "body": "after", "area": "DATA"}
    page = await served.http.get(CHANGES, params=asked)
    assert READ in page.content
    lines = await served.http.get(CHANGES, params=asked, headers={"accept": "application/x-ndjson"})
    assert READ in lines.content
    text = await served.http.get(CHANGES, params={**asked, "bodies": "text"})
    assert text.json()["captures"][0]["after"] == READ.decode()
    arrow = await served.http.get(
        CHANGES, params=asked, headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    assert pa.ipc.open_stream(arrow.content).read_all()["after"].to_pylist() == [READ]
    posted = await served.http.post(
        f"{CHANGES}/query", json={"values": "decoded", "body": ["after"]}
    )
    assert READ in posted.content
    events = {"accept": "text/event-stream"}
    async with served.http.stream(
        "GET", f"{CHANGES}/live", params={**asked, "sinceVersion": "0"}, headers=events
    ) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and "after" in line:
                assert json.loads(line[6:])["after"] == json.loads(READ)
                break


async def test_a_form_of_values_that_there_is_not_is_refused(served: Served) -> None:
    refused = await served.http.get(CHANGES, params={"values": "pretty"})
    assert refused.status_code == 400
    assert "values" in refused.json()["detail"]


async def test_over_graphql_what_was_not_sent_is_null_and_named_and_no_error(
    served: Served,
) -> None:
    document = "{ productChanges { edges { node { unavailable after { price note ratio } } } } }"
    answer = await served.http.post("/v1/catalogs/shop/graphql", json={"query": document})
    row = {"price": "119.74", "note": None, "ratio": "1.50"}
    edges = [{"node": {"unavailable": ["note"], "after": row}}]
    assert answer.json() == {"data": {"productChanges": {"edges": edges}}}
