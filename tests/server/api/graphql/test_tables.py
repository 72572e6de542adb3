"""Tables over GraphQL: the rows of history, typed, with cursors that go on."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.api.graphql.names import table_fields
from tests.conformance.reading import published
from tests.conformance.shop import remove, upsert
from tests.conformance.test_state import TRANSACTIONS
from tests.conformance.ways import Driver
from tests.server.api.graphql.conftest import PATH, ask, client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

ROWS = """
query ($first: Int, $after: String, $keys: [String!], $at: Long, $time: Long, $wait: Long, $ms: Int) {
  products(first: $first, after: $after, keys: $keys, atVersion: $at, atTime: $time, waitForVersion: $wait,
           waitMs: $ms) {
    version commitTimestamp resumeCursor pageInfo { hasNextPage hasPreviousPage endCursor }
    edges { cursor node { primaryKey version index operation after { id name price } before { id } } }
  }
}
"""


async def rows(served: Served, **variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(served, ROWS, **variables))["products"]
    return found


def keys(found: dict[str, Any]) -> list[str]:
    return [edge["node"]["primaryKey"] for edge in found["edges"]]


async def test_contract_48_rows_are_what_history_leaves_typed(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*TRANSACTIONS)
    served = await serve()
    read = await served.http.get(
        "/v1/catalogs/shop/changes?area=DATA&entityType=product&body=after"
    )
    whole = read.json()["captures"]
    for version in range(len(TRANSACTIONS) + 1):
        expected: dict[str, dict[str, Any]] = {}
        for each in whole:
            if each["version"] > version:
                break
            if each["primaryKey"] is None:
                expected.clear()
            elif each["operation"] == "UPSERT":
                expected[each["primaryKey"]] = each
            else:
                expected.pop(each["primaryKey"], None)
        found = await rows(served, at=version)
        assert found["version"] == version
        assert {edge["node"]["primaryKey"] for edge in found["edges"]} == {*expected}
        for edge in found["edges"]:
            node, one = edge["node"], expected[edge["node"]["primaryKey"]]
            assert (node["version"], node["index"]) == (one["version"], one["index"])
            assert (node["operation"], node["before"]) == ("UPSERT", None)
            assert node["after"]["name"] == one["after"].get("name")
            assert node["after"]["id"] is not None


async def test_contract_48_pages_go_on_at_the_same_version_and_changes_behind_it(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*TRANSACTIONS[:6])
    served = await serve()
    whole = await rows(served)
    page = await rows(served, first=7)
    assert not page["pageInfo"]["hasPreviousPage"]
    found = keys(page)
    writer.write([upsert("1", name="newer"), remove("2")])
    await published(Driver(served.engine), 7)
    while page["pageInfo"]["hasNextPage"]:
        page = await rows(served, first=7, after=page["pageInfo"]["endCursor"])
        assert (page["version"], page["pageInfo"]["hasPreviousPage"]) == (6, True)
        found += keys(page)
    assert found == keys(whole)
    behind_one = await rows(served, after=whole["edges"][2]["cursor"])
    assert keys(behind_one) == keys(whole)[3:]
    async with client(served) as live:
        id = await live.subscribe(
            "subscription ($after: String) { onProductChange(after: $after) { version primaryKey } }",
            after=whole["resumeCursor"],
        )
        for key in ("1", "2"):
            change = (await live.payload(id))["data"]["onProductChange"]
            assert change == {"version": 7, "primaryKey": key}


async def test_one_row_is_there_or_null(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert("1", name="chair"), upsert("2")])
    served = await serve()
    query = """{ product(primaryKey: "1") { primaryKey version after { name } }
                 none: product(primaryKey: "never") { version }
                 head: product(primaryKey: "2", atVersion: 0) { version } }"""
    assert await ask(served, query) == {
        "product": {"primaryKey": "1", "version": 1, "after": {"name": "chair"}},
        "none": None,
        "head": None,
    }
    assert keys(await rows(served, keys=["2", "no such"])) == ["2"]


@pytest.mark.parametrize(
    ("variables", "code", "told"),
    [
        ({"at": 9}, "INVALID_REQUEST", "atVersion 9: the newest published version is 1"),
        ({"time": 1 << 52}, "INVALID_REQUEST", "atTime"),
        ({"first": 0}, "INVALID_REQUEST", "first 0"),
        ({"after": "s1.no"}, "INVALID_REQUEST", "page: 's1.no' is not a page"),
        ({"wait": 9, "ms": 10}, "DEADLINE_EXCEEDED", "version 9"),
    ],
)
async def test_a_table_that_cannot_be_read_is_null_with_an_error(
    serve: Serve, writer: ModelWriter, variables: dict[str, Any], code: str, told: str
) -> None:
    writer.write([upsert("1")])
    served = await serve()
    answer = await served.http.post(PATH, json={"query": ROWS, "variables": variables})
    found = json.loads(answer.content)
    assert found["data"] == {"products": None}
    (error,) = found["errors"]
    assert error["extensions"]["code"] == code
    assert told in error["message"]


NULLS = [
    ("query ($w: ProductWhere) {{ {} }}", "(where: $w)", "^where: null is not a condition"),
    ("query ($w: String) {{ {} }}", "(criteria: [{where: $w}])", r"^criteria.0..where: null is no"),
    ("{{ {} }}", "(where: null)", "^where: null is not a condition"),
    ("{{ {} }}", "(criteria: [{where: null}])", r"^criteria.0..where: null is not a condition"),
]
FIELDS = [
    "products{} {{ version }}",
    "productChanges{} {{ anchor }}",
    "onProductChange{} {{ version }}",
]


async def test_a_condition_that_is_null_is_refused_and_one_that_is_left_out_is_none(
    serve: Serve, writer: ModelWriter
) -> None:
    """Null would match every row, which its writer hardly means."""
    writer.write([upsert("1")])
    served = await serve()
    async with client(served) as one:
        for document, argument, told in NULLS:
            for field in FIELDS if "criteria" not in argument else FIELDS[1:]:
                text = document.format(field.format(argument))
                is_live = field.startswith("on")
                text = f"subscription {text.removeprefix('query ')}" if is_live else text
                given = {"w": None} if "$w" in text else {}
                if is_live:
                    faults = await one.error(await one.subscribe(text, **given))
                else:
                    asked = {"query": text, "variables": given}
                    faults = (await served.http.post(PATH, json=asked)).json()["errors"]
                assert re.search(told, faults[0]["message"]), (text, faults)
        absent = "query ($w: ProductWhere) { products(where: $w) { edges { cursor } } }"
        assert len((await ask(served, absent))["products"]["edges"]) == 1


def test_names_that_are_taken_are_told_apart() -> None:
    found = table_fields(["Product", "Products", "Catalogs"], {"catalogs", "changes"})
    assert found == {
        "Product": ("product", "products"),
        "Products": ("productsRow", "productss"),
        "Catalogs": ("catalogsRow", "catalogss"),
    }
