"""SQL over HTTP: formats, header fields, refusals. What is answered is in tests/server/sql/."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace.v1.sql_pb2 import QuerySqlRequest
from tailrace_server.api import sql_requests
from tests.conformance.shop import upsert
from tests.server.api.rest.test_documents import check, component
from tests.server.sql.misfits import MISFITS, write_misfit
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

SQL = "/v1/catalogs/shop/sql"


async def test_all_formats_carry_the_same_rows(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert("1", name="chair"), upsert("2", name="table")])
    served = await serve()
    asked = {
        "statement": "SELECT _primary_key AS key, $x AS x, 'inf'::DOUBLE AS y FROM "
        "CHANGES('product', $from, $to) ORDER BY 1",
        "parameters": {"x": 0.1},
        "sinceVersion": 1,
    }
    answer = await served.http.post(SQL, json=asked)
    page = answer.json()
    check(page, component("SqlAnswer"))
    check(asked, component("QuerySql"))
    assert page["rows"] == [{"key": key, "x": "0.1", "y": "Infinity"} for key in "12"]
    assert (page["version"], page["sinceVersion"], page["count"]) == (1, 1, 2)
    assert page["columns"][0] == {"name": "key", "type": "string"}
    assert answer.headers["tailrace-closed-until"] == str(page["commitTimestamp"] + 1)
    assert answer.headers["tailrace-version"] == "1"
    lines = await served.http.post(SQL, json=asked, headers={"accept": "application/x-ndjson"})
    *rows, end = map(json.loads, lines.content.splitlines())
    assert (rows, end) == (page["rows"], {"end": True, "count": 2})
    arrow = {"accept": "application/vnd.apache.arrow.stream"}
    with pa.ipc.open_stream(
        (await served.http.post(SQL, json=asked, headers=arrow)).content
    ) as stream:
        assert stream.read_all()["key"].to_pylist() == ["1", "2"]


async def test_a_value_that_does_not_fit_is_null_with_its_text_on_request(
    serve: Serve, log_root: Path
) -> None:
    write_misfit(log_root)
    served = await serve()
    asked = {"statement": "SELECT day, _misfits FROM item", "misfits": "NULL"}
    check(asked, component("QuerySql"))
    answer = await served.http.post(SQL, json=asked)
    assert answer.json()["rows"] == [{"day": None, "_misfits": MISFITS}]
    refused = await served.http.post(SQL, json={"statement": "SELECT day FROM item"})
    assert "misfits null" in refused.json()["detail"]


async def test_what_is_refused_is_a_problem_with_its_code(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    served = await serve()
    for asked, status, code, told in (
        ({"statement": "SELECT * FROM produce"}, 400, "INVALID_REQUEST", "did you mean product"),
        (
            {"statement": "SELECT 1", "sinceVersion": 1, "fromTime": 1},
            400,
            "INVALID_REQUEST",
            "sinceVersion",
        ),
        (
            {"statement": "SELECT $x", "parameters": {"x": {}}},
            400,
            "INVALID_REQUEST",
            "parameters.x: must be a number, a text",
        ),
        ({"statement": "SELECT 1", "form": "ARROW"}, 400, "UNSUPPORTED", "form"),
        ({}, 400, "INVALID_REQUEST", "statement: it is empty"),
        ({"statement": "SELECT 1", "parameters": []}, 400, "INVALID_REQUEST", "an object"),
        (
            {"statement": "SELECT 1", "waitForVersion": 9, "waitMs": 1},
            504,
            "DEADLINE_EXCEEDED",
            "9",
        ),
    ):
        answer = await served.http.post(SQL, json=asked)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (status, code), problem
        assert told in problem["detail"]


@pytest.mark.parametrize("number", ["1e200000000", "-1e-200000000", "1" + "0" * 1_000, "1e1001"])
async def test_a_number_that_is_long_to_write_out_is_refused_by_its_size(
    serve: Serve, writer: ModelWriter, number: str
) -> None:
    """Eleven bytes would be 200 million digits; the limit is the same wherever a number may be."""
    writer.write([upsert("1")])
    served = await serve()
    query = '{"statement": "SELECT $x", "parameters": {"x": %s}}'
    for value in (number, f"[1, {number}]"):
        answer = await served.http.post(
            SQL, content=query % value, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
        assert "parameters.x: a number may have at most 1,000 digits" in answer.json()["detail"]
    for asked in (
        {"where": f"name > {number}"},
        {"whereTree": json.dumps({"column": "name", "eq": {"number": number}})},
    ):
        answer = await served.http.get("/v1/catalogs/shop/state/product", params=asked)
        assert answer.status_code == 400
        assert "a number may have at most 1,000 digits" in answer.json()["detail"]
    request = QuerySqlRequest(statement="SELECT $x")  # as gRPC has it
    request.parameter.add(name="x", value=number)
    with pytest.raises(
        InvalidRequest, match="parameter 'x': a number may have at most 1,000 digits"
    ):
        sql_requests.asked(request)


async def test_a_reader_who_leaves_before_the_first_row_ends_his_statement(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    served = await serve()
    statements = served.engine.reads.statements
    body = json.dumps({"statement": "SELECT count(*) FROM range(1000000000000)"}).encode()
    head = f"POST {SQL} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    _, stream = await asyncio.open_connection("127.0.0.1", served.port)
    stream.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: statements.statistics().statements == 1)
    stream.close()
    await until(lambda: statements.statistics().left == 1)
    assert statements.statistics().statements == 0
