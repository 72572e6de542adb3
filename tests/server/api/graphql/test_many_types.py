"""Catalogs with very many entity types: a schema has those that documents name, and says so where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from graphql import GraphQLObjectType, print_type
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin, Schema
from tailrace_server.api.graphql import catalog as catalog_module
from tailrace_server.api.graphql.catalog import Asked, GraphqlCatalog
from tailrace_server.api.graphql.documents import DocumentCache
from tailrace_server.api.graphql.errors import DocumentRefused
from tailrace_server.api.graphql.names import words_in
from tailrace_server.api.graphql.schema import build, catalog_names
from tailrace_server.api.settings import HttpSettings
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from graphql import GraphQLField

    from tailrace_server.api.graphql.catalog_schema import CatalogSchema

NAMES = st.sampled_from(
    [
        "order",
        "orders",
        "order_row",
        "Order",
        "order change",
        "change",
        "query",
        "catalog",
        "a",
        "表",
    ]
)


def schema_of(entity_types: Collection[str]) -> Schema:
    return Schema(
        1,
        {
            name: (Column("id", origin=Origin.DECLARED, id=(number << 20) + 1),)
            for number, name in enumerate(entity_types, 1)
        },
    )


@pytest.mark.slow
@given(st.data(), st.lists(NAMES, unique=True, min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_a_part_of_a_schema_has_the_same_names_and_types_as_the_whole(
    data: st.DataObject, entity_types: list[str]
) -> None:
    """A name that depended on which types are there would mean another table in the next document."""
    schema = schema_of(entity_types)
    named = catalog_names(schema)
    part = data.draw(st.sets(st.sampled_from([*named.stems])))
    whole, partly = build(schema), build(schema, part=(named, part))
    assert partly.stems == part
    kinds = whole.core.type_map
    for name, kind in partly.core.type_map.items():
        if name in ("Query", "Subscription"):
            for field, one in fields_of(kind).items():
                other = fields_of(kinds[name])[field]
                assert (str(one.type), [*one.args]) == (str(other.type), [*other.args])
        else:
            assert print_type(kind) == print_type(kinds[name])


def fields_of(kind: object) -> dict[str, GraphQLField]:
    assert isinstance(kind, GraphQLObjectType)
    return {**kind.fields}


@pytest.mark.slow
@given(st.lists(NAMES, unique=True, min_size=1, max_size=4))
@settings(max_examples=10, deadline=None)
def test_every_name_of_a_schema_that_an_entity_type_adds_means_that_type(
    entity_types: list[str],
) -> None:
    schema = schema_of(entity_types)
    named = catalog_names(schema)
    shared = names_in(build(schema, part=(named, ())))
    for stem in named.stems:
        added = names_in(build(schema, part=(named, {stem}))) - shared
        own = {name for name in added if not name.endswith("Test")}  # all types share these
        assert own
        assert all(named.stems_in(words_in(f"{{ {name} }}")) == {stem} for name in own)


def names_in(built: CatalogSchema) -> set[str]:
    """Return the names of types, and of the fields of the roots."""
    kinds = built.core.type_map
    return {*kinds, *fields_of(kinds["Query"]), *fields_of(kinds["Subscription"])}


class Asker:
    """Runs documents on a catalog."""

    def __init__(self, engine: Engine) -> None:
        http = HttpSettings()
        self.catalog = GraphqlCatalog(engine, http, "shop", DocumentCache(http))

    async def answer(self, query: str, **variables: str) -> object:
        prepared = await self.catalog.prepare(Asked(query, variables, None), ANONYMOUS)
        return msgspec.json.decode(await self.catalog.execute(prepared))["data"]


def write(log_root: Path, count: int) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(number), entity_type=f"type{number}") for number in range(count)])
        writer.commit(publish=True)


@pytest.mark.slow
async def test_documents_bring_the_types_that_they_name_and_the_whole_is_refused_by_name(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "_WHOLE_TYPES_MAX", 2)
    monkeypatch.setattr(catalog_module, "_SHOWN_TYPES_MAX", 4)
    write(log_root, 5)
    async with Engine(log_root) as engine:
        asker = Asker(engine)
        rows = "{edges{node{version}}}"
        row = {"edges": [{"node": {"version": 1}}]}
        for number in (0, 1, 2, 0):  # the third one takes the place of the first two
            assert await asker.answer(f"{{type{number}s {rows}}}") == {f"type{number}s": row}
        assert await asker.answer(f"{{type3s {rows} type4s {rows}}}") == {
            "type3s": row,
            "type4s": row,
        }
        found = await asker.answer("query($n:String!){__type(name:$n){name}}", n="Type1")
        assert found == {"__type": {"name": "Type1"}}
        with pytest.raises(InvalidRequest, match=r"names 3 entity types.*it may name at most 2"):
            await asker.answer("{type0s{version} type1s{version} type2s{version}}")
        with pytest.raises(DocumentRefused, match="Cannot query field"):
            await asker.answer("{type9s{version}}")
        for whole in (
            "{__schema{types{name}}}",
            '{__type(name:"Query"){fields{name}}}',
            '{__type(name:"Change"){possibleTypes{name}}}',
        ):
            with pytest.raises(
                InvalidRequest, match="has 5 entity types, and introspection shows at most 4"
            ):
                await asker.answer(whole)


@pytest.mark.slow
async def test_introspection_of_many_types_has_all_of_them(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "_WHOLE_TYPES_MAX", 2)
    write(log_root, 5)
    async with Engine(log_root) as engine:
        asker = Asker(engine)
        await asker.answer("{type0s{version}}")
        found = str(await asker.answer("{__schema{types{name}}}"))
        assert all(f"Type{number}Change" in found for number in range(5))
        assert await asker.answer("{type1s{version}}") == {"type1s": {"version": 1}}


@pytest.mark.slow
async def test_a_catalog_with_ten_thousand_types_answers(log_root: Path) -> None:
    """The whole schema took two minutes and two gigabytes."""
    write(log_root, 10_000)
    async with Engine(log_root) as engine:
        asker = Asker(engine)
        found = await asker.answer("{changes(last:1){edges{node{entityType}}}}")
        assert found == {"changes": {"edges": [{"node": {"entityType": "type9999"}}]}}
        assert asker.catalog._parts.popitem()[1].built.stems == frozenset()  # type: ignore[union-attr]
