"""GraphQL over HTTP: methods, media types, statuses, and GraphiQL for a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest

from tailrace_server.api.graphql import routes
from tailrace_server.api.settings import HttpSettings
from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.shop import SHOP
from tests.server.api.graphql.conftest import PATH, client
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

JSON = "application/json"
RESPONSE = "application/graphql-response+json"
QUERY = "{ catalogs { name } }"
DATA = {"data": {"catalogs": [{"name": "shop"}]}}


async def test_a_query_comes_by_get_or_post(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    for answer in (
        await served.http.post(PATH, json={"query": QUERY, "extensions": {"any": 1}, "other": 1}),
        await served.http.get(PATH, params={"query": QUERY, "variables": "{}"}),
        await served.http.get(PATH, params={"query": QUERY}, headers={"accept": JSON}),
    ):
        assert (answer.status_code, answer.json()) == (200, DATA)
        assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == JSON


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (b"{", 400, "JSON"),
        (b'{"query": "\xff"}', 400, "JSON"),
        (b"[" * 100_000, 400, "nested"),
        (b"[]", 400, "object"),
        (b"{}", 400, "query"),
        (b'{"query": "{ nothing }"}', 400, "nothing"),
        (b'{"query": "{", "variables": 1}', 400, "variables"),
        (b'{"query": "{", "operationName": 1}', 400, "operationName"),
        (b'{"query": "{ catalogs { name } }", "operationName": "X"}', 400, "X"),
        (b'{"query": "subscription { onCatalogChange { version } }"}', 400, "WebSocket"),
        (b'{"query": "mutation { a }"}', 400, "mutation"),
        (b'{"query": "query ($v: Long!) { schema(version: $v) { id } }"}', 400, "$v"),
        (b" " * 100_000, 413, "limit"),
    ],
)
@pytest.mark.parametrize("accept", [JSON, RESPONSE])
async def test_what_is_no_request_is_refused_in_the_form_of_graphql(
    serve: Serve, writer: ModelWriter, body: bytes, status: int, name: str, accept: str
) -> None:
    served = await serve(HttpSettings(ws_message_bytes=99_999) if status == 413 else None)
    headers = {"content-type": JSON, "accept": accept}
    answer = await served.http.post(PATH, content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == accept
    found = answer.json()
    assert "data" not in found
    assert name in found["errors"][0]["message"]
    assert found["errors"][0]["extensions"]["code"] == "INVALID_REQUEST"


async def test_an_unknown_catalog_is_404(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    answer = await served.http.post("/v1/catalogs/x/graphql", json={"query": QUERY})
    assert answer.status_code == 404
    assert answer.json()["errors"][0]["extensions"]["code"] == "CATALOG_UNKNOWN"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"method": "PATCH"}, 405),
        ({"method": "POST", "headers": {"content-type": "text/plain"}, "content": b"{}"}, 415),
        ({"method": "GET", "headers": {"accept": "image/png"}, "params": {"query": QUERY}}, 406),
        ({"method": "GET", "params": [("query", QUERY), ("query", QUERY)]}, 400),
        ({"method": "GET", "params": {"query": QUERY, "variables": "{"}}, 400),
    ],
)
async def test_what_http_has_a_status_for(
    serve: Serve, writer: ModelWriter, options: dict[str, Any], status: int
) -> None:
    served = await serve()
    answer = await served.http.request(url=PATH, **options)
    assert answer.status_code == status


async def test_a_browser_is_given_graphiql_with_nothing_from_elsewhere(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await served.http.get(PATH, headers=accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    linked = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    linked = [urljoin("/v1/catalogs/shop/graphql", link) for link in linked]
    paths = [link for link in linked if not link.startswith("data:")]
    ours = [f"/v1/graphiql/{name}" for name in routes.FILES]
    assert sorted(paths) == sorted(["/v1/docs/token.js", *ours])
    for path in paths:
        packed = await served.http.get(path)
        plain = await served.http.get(path, headers={"accept-encoding": "identity"})
        assert (packed.status_code, plain.status_code) == (200, 200)
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content
    assert (await served.http.get("/v1/graphiql/../routes.py")).status_code == 404
    assert (await served.http.get("/v1/graphiql/page.html")).status_code == 404


async def test_the_examples_of_the_page_are_valid(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    script = (await served.http.get("/v1/graphiql/page.js")).text
    system, catalog = re.findall(r"`(# [^`]+)`", script)
    for path, text in (("/v1/system/graphql", system), (PATH, catalog)):
        for name in re.findall(r"^query (\w+)", text, re.M):
            answer = await served.http.post(path, json={"query": text, "operationName": name})
            assert answer.status_code == 200
            assert "errors" not in answer.json()


async def test_documents_and_subscriptions_are_counted(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    for query in (QUERY, QUERY, "{ nothing }"):
        await served.http.post(PATH, json={"query": query})
    async with client(served) as one:
        await one.subscribe("subscription { onCatalogChange { version } }")
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 1)
    text = (await served.http.get("/metrics")).text
    for result, count in (("cached", 1), ("validated", 2), ("refused", 1)):
        assert f'tailrace_graphql_documents_total{{result="{result}"}} {count}.0' in text
    assert 'tailrace_graphql_subscriptions_total{path="compiled"} 1.0' in text


async def test_the_page_and_the_schema_can_be_switched_off(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve(HttpSettings(graphql_graphiql=False, graphql_introspection=False))
    answer = await served.http.get(PATH, headers={"accept": "text/html"})
    assert answer.status_code == 406
    answer = await served.http.post(PATH, json={"query": "{ __schema { types { name } } }"})
    assert answer.status_code == 400
