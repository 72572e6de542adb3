"""What docs/graphql.md shows works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace_server.api.graphql.documents import read
from tailrace_server.api.settings import HttpSettings
from tests.conformance.shop import SHOP
from tests.server.api.graphql.conftest import PATH, ask, client
from tests.server.api.graphql.generated import BUILT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PAGE = (Path(__file__).parents[4] / "docs" / "graphql.md").read_text()
ADDRESS = "http://127.0.0.1:7412"


def commands() -> list[list[str]]:
    return [shlex.split(line[2:]) for line in re.findall(r"^\$ curl .*$", PAGE, re.M)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[-2][:40])
async def test_every_curl_of_the_page_is_answered(
    serve: Serve, writer: ModelWriter, command: list[str]
) -> None:
    """Its options are few, so that curl itself need not be there."""
    writer.write(*SHOP)
    served = await serve()
    path = command[-1].removeprefix(ADDRESS)
    if "-N" in command:
        name, _, value = command[-2].partition("=")
        accept = {"accept": "text/event-stream"}
        async with served.http.stream("GET", path, params={name: value}, headers=accept) as stream:
            assert stream.status_code == 200
            events = stream.aiter_lines()
            while not (line := await anext(events)).startswith("data: "):
                pass
            assert "errors" not in json.loads(line.removeprefix("data: "))
        return
    if "-G" in command:
        name, _, value = command[-2].partition("=")
        answer = await served.http.get(path, params={name: value})
    else:
        headers = {"content-type": "application/json"}
        answer = await served.http.post(path, content=command[-2], headers=headers)
    assert answer.status_code == 200
    assert "errors" not in answer.json()


async def test_the_documents_of_the_page_do_what_it_says(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    subscription, condition, not_sent, query, table = blocks("graphql")
    async with client(served) as one:
        found = await one.payloads(await one.subscribe(subscription), 3)
        assert [each["data"]["onProductChange"]["version"] for each in found] == [1, 2, 4]
        (moved,) = await one.payloads(await one.subscribe(condition), 1)
        assert moved["data"]["onProductChange"]["transition"] == "ENTER"
        (first,) = await one.payloads(await one.subscribe(not_sent), 1)
        assert first["data"]["onProductChange"]["unavailable"] == []
    edges = (await ask(served, query, PATH))["productChanges"]["edges"]
    assert [edge["node"]["operation"] for edge in edges] == ["UPSERT", "UPSERT", "REMOVE"]
    rows = await ask(served, table, PATH)
    assert [edge["node"]["primaryKey"] for edge in rows["products"]["edges"]] == ["2"]
    assert rows["product"]["after"] == {"name": "table"}
    assert json.loads(blocks("json")[0])["extensions"]["heartbeat"]


def test_the_document_of_the_browser_is_valid() -> None:
    (script,) = blocks("js")
    (document,) = re.findall(r'query: "([^"]+)"', script)
    read(BUILT, document, HttpSettings())
