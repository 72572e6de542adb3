"""A short document that asks for much is refused; the schema is read once for all who ask for it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphql import get_introspection_query

from tailrace_server.api.graphql import catalog as catalogs
from tailrace_server.api.settings import HttpSettings
from tests.conformance.shop import upsert
from tests.server.api.graphql.conftest import PATH, client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest
    from graphql import ExecutionResult

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

SCHEMA = "__schema { types { name description fields { name description } } }"
OFTEN = " ".join(f"a{number}: {SCHEMA}" for number in range(30))


async def test_the_schema_thirty_times_is_refused_while_it_is_made(serve: Serve) -> None:
    served = await serve(HttpSettings(graphql_answer_bytes=1 << 20))
    answer = await served.http.post(PATH, json={"query": f"{{ {OFTEN} }}"})
    assert answer.status_code == 400
    assert "graphql_answer_bytes" in answer.json()["errors"][0]["message"]
    async with client(served) as one:
        (error,) = await one.error(await one.subscribe(f"{{ {OFTEN} }}"))
    assert "graphql_answer_bytes" in error["message"]
    answer = await served.http.post(PATH, json={"query": f"{{ {SCHEMA} }}"})
    assert answer.json()["data"]["__schema"]


async def test_a_body_many_times_is_refused_while_it_is_made(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", text="x" * 50_000)])
    served = await serve(HttpSettings(graphql_answer_bytes=1 << 20))
    bodies = " ".join(f"a{number}: afterText" for number in range(30))
    query = f"{{ changes {{ edges {{ node {{ {bodies} }} }} }} }}"
    answer = await served.http.post(PATH, json={"query": query})
    assert answer.status_code == 400
    assert "graphql_answer_bytes" in answer.json()["errors"][0]["message"]


async def test_the_schema_is_read_once_for_all_who_ask_alike(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    encoded = catalogs.encoded

    def encoding(result: ExecutionResult) -> bytes:
        made.append(result)
        return encoded(result)

    monkeypatch.setattr(catalogs, "encoded", encoding)
    served = await serve()
    query = get_introspection_query()
    answers = [(await served.http.post(PATH, json={"query": query})).content for _ in range(3)]
    assert len({*answers}) == 1
    assert len(made) == 1
