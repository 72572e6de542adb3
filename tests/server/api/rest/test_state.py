"""Tables over HTTP: formats, tags and refusals. What they hold is in tests/conformance/test_state.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conformance import json_captures
from tests.conformance.reading import published
from tests.conformance.shop import upsert
from tests.conformance.ways import Driver
from tests.server.api.rest.test_documents import check, component
from tests.server.sql.test_change_tables import define

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

TABLE = "/v1/catalogs/shop/state/product"
LINES = {"accept": "application/x-ndjson"}
ARROW = {"accept": "application/vnd.apache.arrow.stream"}


async def test_contract_46_48_all_formats_carry_the_same_rows(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", text="é\n\u2028", big=2**63 - 1), upsert("2"), upsert("a/b")])
    served = await serve()
    answer = await served.http.get(TABLE)
    page = answer.json()
    check(page, component("TablePage"))
    assert (page["entityType"], page["version"], page["count"]) == ("product", 1, 3)
    assert answer.headers["tailrace-version"] == "1"
    assert answer.headers["tailrace-resume-cursor"] == page["resumeCursor"]
    *lines, end = (await served.http.get(TABLE, headers=LINES)).content.splitlines()
    assert [json.loads(line) for line in lines] == page["rows"]
    assert json.loads(end) == {"end": True, "hasNext": False, "nextPage": None, "count": 3}
    with pa.ipc.open_stream((await served.http.get(TABLE, headers=ARROW)).content) as stream:
        assert stream.schema.metadata[b"tailrace.resumeCursor"] == page["resumeCursor"].encode()
        rows = [row for batch in stream for row in batch.to_pylist()]
    for line, row in zip(lines, rows, strict=True):
        capture = json_captures.capture(line)
        assert (row["primaryKey"], row["after"]) == (capture.primary_key, capture.after)
    as_text = (await served.http.get(f"{TABLE}?bodies=text&limit=1")).json()
    assert as_text["rows"][0]["after"] == json_captures.capture(lines[0]).after.decode()  # type: ignore[union-attr]
    assert as_text["hasNext"]
    first = await served.http.get(f"{TABLE}?limit=1", headers=LINES)
    assert json.loads(first.content.splitlines()[-1])["nextPage"] == as_text["nextPage"]


async def test_contract_50_a_view_has_the_path_of_a_table_and_a_tag_of_its_definition(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write([upsert("1", price=1), upsert("2", price=20)])
    define(log_root, "CREATE VIEW dear AS SELECT id FROM product WHERE price > 10")
    served = await serve()
    path = TABLE.replace("product", "dear")
    answer = await served.http.get(path)
    page = answer.json()
    check(page, component("TablePage"))
    assert (page["entityType"], page["column"]) == ("product", ["id"])
    assert [row["after"] for row in page["rows"]] == [{"id": "2"}]
    assert "'dear'" in (await served.http.get(f"{path}/1")).json()["detail"]
    define(log_root, "DROP VIEW dear")
    define(log_root, "CREATE VIEW dear AS SELECT id FROM product")
    tag = {"if-none-match": answer.headers["etag"]}
    assert (await served.http.get(path, headers=tag)).json()["count"] == 2


async def test_one_row_is_an_object_of_its_own(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert("a/b c?ä", name="chair"), upsert("", name="the empty key")])
    served = await serve()
    for path, key in (("a%2Fb%20c%3F%C3%A4", "a/b c?ä"), ("a/b%20c%3Fä", "a/b c?ä"), ("", "")):
        found = (await served.http.get(f"{TABLE}/{path}")).json()
        check(found, component("TableRow"))
        assert (found["version"], found["row"]["primaryKey"]) == (1, key)
    cut = (await served.http.get(f"{TABLE}/a/b%20c%3Fä?column=name")).json()
    assert cut["row"]["after"] == {"name": "chair"}
    small = await served.http.get(f"{TABLE}/a/b%20c%3Fä?maxMessageBytes=1024")
    assert "omittedBytes" not in small.json()["row"]


async def test_a_table_and_a_row_that_have_not_changed_are_not_sent_again(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1"), upsert("2")])
    served = await serve()
    tags = {path: (await served.http.get(path)).headers["etag"] for path in (TABLE, f"{TABLE}/1")}
    for path, tag in tags.items():
        answer = await served.http.get(path, headers={"if-none-match": tag})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["vary"] == "Accept, Accept-Encoding, Authorization"
    writer.write([upsert("2", name="newer")])
    await published(Driver(served.engine), 2)
    status = {
        path: (await served.http.get(path, headers={"if-none-match": tag})).status_code
        for path, tag in tags.items()
    }
    assert status == {TABLE: 200, f"{TABLE}/1": 304}
    # The table of before is what it was, and has its tag.
    old = await served.http.get(f"{TABLE}?atVersion=1", headers={"if-none-match": tags[TABLE]})
    assert old.status_code == 304
    for other in ("?limit=1", "?column=id", "?values=decoded", "?keysOnly=true"):
        answer = await served.http.get(TABLE + other, headers={"if-none-match": tags[TABLE]})
        assert answer.status_code == 200
    head = await served.http.head(TABLE)
    assert (head.headers["tailrace-version"], head.content) == ("2", b"")


@pytest.mark.parametrize(
    ("path", "status", "code", "told"),
    [
        (
            f"{TABLE}/never",
            404,
            "ROW_UNKNOWN",
            "'product' has no row of key 'never' as of version 1",
        ),
        ("/v1/catalogs/shop/state/prod", 404, "ENTITY_TYPE_UNKNOWN", "did you mean product"),
        ("/v1/catalogs/ship/state/product", 404, "CATALOG_UNKNOWN", "ship"),
        (f"{TABLE}?waitForVersion=9&waitMs=10", 504, "DEADLINE_EXCEEDED", "within 0.01 s"),
        (
            f"{TABLE}?atVersion=7",
            400,
            "INVALID_REQUEST",
            "atVersion 7: the newest published version is 1",
        ),
        (f"{TABLE}?atTime=soon", 400, "INVALID_REQUEST", "atTime: must be a whole number"),
        (f"{TABLE}?waitForVersion=1&waitMs=600001", 400, "INVALID_REQUEST", "waitMs"),
        (f"{TABLE}?page=2", 400, "INVALID_REQUEST", "page: '2' is not a page"),
        (f"{TABLE}?format=cloudevents", 400, "INVALID_REQUEST", "format: a table has rows"),
        (f"{TABLE}?entityType=order", 400, "UNSUPPORTED", "entityType"),
        (f"{TABLE}?body=after", 400, "UNSUPPORTED", "body"),
        (f"{TABLE}/1?limit=1", 400, "UNSUPPORTED", "limit"),
    ],
)
async def test_what_cannot_be_answered_is_refused_by_name(
    serve: Serve, writer: ModelWriter, path: str, status: int, code: str, told: str
) -> None:
    writer.write([upsert("1")])
    served = await serve()
    answer = await served.http.get(path)
    problem: dict[str, Any] = answer.json()
    check(problem, component("Error"))
    assert (answer.status_code, problem["code"]) == (status, code)
    assert told in problem["detail"]
