"""History as Relay connections, and the queries beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tailrace.cursor import Cursor
from tailrace_server.api.settings import HttpSettings
from tailrace_server.wal.catalog_writer import CatalogWriter
from tests.conformance.shop import SHOP, upsert
from tests.server.api.graphql.conftest import PATH, ask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PAGE = """
query ($first: Int, $after: String, $last: Int, $before: String, $reverse: Boolean, $from: Long, $to: Long) {
  changes(first: $first, after: $after, last: $last, before: $before, reverse: $reverse, from: $from, to: $to) {
    edges { cursor node { version index cursor commitTimestamp } }
    pageInfo { hasNextPage hasPreviousPage startCursor endCursor }
    anchor closedUntil truncated oldest { version index }
  }
}
"""


async def page(served: Served, **variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(served, PAGE, **variables))["changes"]
    return found


def places(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(edge["node"]["version"], edge["node"]["index"]) for edge in found["edges"]]


@pytest.mark.parametrize("reverse", [False, True])
async def test_contract_39_pages_from_either_end_join_to_the_whole(
    serve: Serve, writer: ModelWriter, reverse: bool
) -> None:
    """Forward by first and after, backward by last and before, up the log and down."""
    writer.write(*SHOP)
    served = await serve()
    whole = await page(served, reverse=reverse)
    expected = [(version, index) for version, index, _ in writer.log.expected(())]
    assert places(whole) == (expected[::-1] if reverse else expected)
    assert all(edge["cursor"] == edge["node"]["cursor"] for edge in whole["edges"])
    assert whole["pageInfo"]["hasNextPage"] is whole["pageInfo"]["hasPreviousPage"] is False

    forward: list[tuple[int, int]] = []
    found = await page(served, reverse=reverse, first=5)
    forward += places(found)
    while found["pageInfo"]["hasNextPage"]:
        found = await page(served, reverse=reverse, first=5, after=found["pageInfo"]["endCursor"])
        assert found["pageInfo"]["hasPreviousPage"]
        forward += places(found)
    assert forward == places(whole)

    backward: list[tuple[int, int]] = []
    found = await page(served, reverse=reverse, last=5)
    backward = places(found)
    while found["pageInfo"]["hasPreviousPage"]:
        found = await page(served, reverse=reverse, last=5, before=found["pageInfo"]["startCursor"])
        assert found["pageInfo"]["hasNextPage"]
        backward = places(found) + backward
    assert backward == places(whole)


async def test_contract_39_a_page_after_a_cursor_stays_in_its_range_of_time(
    serve: Serve, writer: ModelWriter
) -> None:
    for number in range(6):
        writer.write([upsert(str(number))])
    served = await serve()
    whole = await page(served)
    times = [edge["node"]["commitTimestamp"] for edge in whole["edges"]]
    bounds = {"from": times[2], "to": times[-1]}
    ranged = [
        place
        for place, time in zip(places(whole), times, strict=True)
        if times[2] <= time < times[-1]
    ]
    found = await page(served, first=3, **bounds)
    collected = places(found)
    while found["pageInfo"]["hasNextPage"]:
        found = await page(served, first=3, after=found["pageInfo"]["endCursor"], **bounds)
        collected += places(found)
    assert collected == ranged
    early = await page(served, first=1, after=whole["edges"][0]["cursor"], **bounds)
    assert places(early) == ranged[:1]
    assert found["closedUntil"] == times[-1] + 1


async def test_a_typed_connection_has_rows(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    found = await ask(
        served, "{ productChanges(last: 3) { edges { node { operation after { id name } } } } }"
    )
    nodes = [edge["node"] for edge in found["productChanges"]["edges"]]
    assert [each["operation"] for each in nodes] == ["REMOVE", "UPSERT", "EXPIRE"]
    assert nodes[1]["after"] == {"id": "2", "name": "table"}


async def test_a_page_names_the_types_of_which_nobody_knows_what_updates_changed(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write(*SHOP)
    with CatalogWriter.open(log_root, "shop", writer="ingest", take_over=True) as ingest:
        ingest.commit(batch_id=0, source_positions={"before:product": "missing"})
    served = await serve()
    by_column = '(criteria: [{entityType: ["product"], containerName: ["price"]}])'
    found = await ask(
        served,
        f"{{ rows: productChanges {{ unknownChanges }} prices: changes{by_column} {{ unknownChanges }} }}",
    )
    assert found == {"rows": {"unknownChanges": []}, "prices": {"unknownChanges": ["product"]}}


async def test_the_schema_and_the_figures_can_be_asked_for(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    found = await ask(
        served,
        "{ catalog { name uuid oldest { version } publishedVersion committedVersion } statistics { records } "
        "schema { id entityTypes { name type columns { name field role sqlType encoding nullable key "
        "origin id dropped } } } "
        "early: schema(version: 1) { entityTypes { columns { name } } } }",
    )
    assert found["catalog"]["uuid"] == str(writer.writer.uuid)
    assert found["statistics"]["records"] == len(writer.log.expected(()))
    first = found["schema"]["entityTypes"][0]
    assert (first["name"], first["type"]) == ("product", "Product")
    assert [column["field"] for column in first["columns"]] == [
        "id",
        "name",
        "price",
        "text",
        "big",
    ]


REFUSED = (
    ("changes(first: 0)", "first 0"),
    ("changes(first: 100000)", "largest page"),
    ("changes(first: 1, last: 1)", "not both"),
    ('changes(after: "x")', "cursor"),
    ("changes(sinceVersion: -2)", "sinceVersion"),
    ("changes(untilIndex: 2)", "untilIndex"),
    ("changes(anchor: 99)", "anchor"),
    ('changes(criteria: [{entityType: [""]}])', "criteria[0].entityType"),
)


@pytest.mark.parametrize(("field", "name"), REFUSED, ids=[field for field, _ in REFUSED])
async def test_what_contradicts_itself_is_an_error_of_its_field(
    serve: Serve, writer: ModelWriter, field: str, name: str
) -> None:
    writer.write(*SHOP)
    served = await serve()
    query = f"{{ {field} {{ anchor }} }}"
    answer = await served.http.post(PATH, json={"query": query})
    assert answer.status_code == 200
    assert answer.json()["data"] == {"changes": None}
    (fault,) = answer.json()["errors"]
    assert name in fault["message"]
    assert fault["path"] == ["changes"]
    assert fault["extensions"]["code"] in ("INVALID_REQUEST", "CURSOR_INVALID")


@pytest.mark.parametrize("name", ["after", "before"])
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_cursor_of_another_log_is_refused_beside_any_bound(
    serve: Serve, writer: ModelWriter, name: str, reverse: bool
) -> None:
    """Also where the other bound decides where the page begins."""
    writer.write(*SHOP)
    served = await serve()
    cursor = Cursor(UUID(int=7), 1, 0)
    bounds = f"sinceVersion: 1, sinceIndex: 5, reverse: {str(reverse).lower()}"
    query = f'{{ changes(first: 1, {bounds}, {name}: "{cursor}") {{ anchor }} }}'
    found = (await served.http.post(PATH, json={"query": query})).json()
    assert found["data"] == {"changes": None}
    assert [each["extensions"]["code"] for each in found["errors"]] == ["CATALOG_REPLACED"]


async def test_the_pages_of_one_operation_share_a_bound(serve: Serve, writer: ModelWriter) -> None:
    """The page that goes beyond it ends early; one behind it is an error of its own."""
    writer.write([upsert(str(number), text="x" * 100) for number in range(50)])
    served = await serve(HttpSettings(graphql_history_bytes=1_000), message_bytes=1_000)
    query = """{ a: changes { edges { node { after } } pageInfo { hasNextPage endCursor } }
                 b: changes(first: 1) { edges { node { version } } } }"""
    found = (await served.http.post(PATH, json={"query": query})).json()
    page = found["data"]["a"]
    assert 1 < len(page["edges"]) < 51
    assert page["pageInfo"]["hasNextPage"]
    assert found["data"]["b"] is None
    assert [(each["path"], "limit" in each["message"]) for each in found["errors"]] == [
        (["b"], True)
    ]


async def test_a_large_page_goes_out_in_pieces(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert(str(number), text="x" * 5_000) for number in range(100)])
    served = await serve()
    found = await ask(served, "{ changes { edges { node { after } } } }")
    assert len(found["changes"]["edges"]) == 101


async def test_a_page_is_bounded(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert(str(number)) for number in range(20)])
    served = await serve(HttpSettings(page_records=8))
    found = await page(served)
    assert len(found["edges"]) == 8
    assert found["pageInfo"]["hasNextPage"]
