"""Views read as state by their names: their rows and columns, under the grants of whoever asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import EntityTypeUnknown, InvalidRequest, LogCorrupted, NotPermitted
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.reads.test_state import rows_of, state
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import product, products
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

CHEAP = "CREATE VIEW cheap AS SELECT id, name FROM product WHERE price < 10"
RENAMED = """
[entity_types.article]
renamed_from = "product"
[entity_types.article.columns]
title = { renamed_from = "name" }
name = {}
cost = { renamed_from = "price" }
"""
PRODUCTS = frozenset({"product"})


def write(root: Path, *mutations: Mutation, mapping: str = "") -> None:
    with LogWriter.open(root, "shop", mapping=SchemaMapping.parse(mapping)) as writer:
        writer.append(list(mutations))
        writer.commit(publish=True)


async def test_contract_50_a_view_is_state_as_a_table_is(log_root: Path) -> None:
    products(log_root)
    write(log_root, product(3, "mug", "9.99"), product(4, "pot", "4.00"))
    async with Engine(log_root) as engine:
        with pytest.raises(EntityTypeUnknown, match="cheap"):
            await state(engine, entity_type="cheap")
        define(log_root, CHEAP)
        read = await state(engine, entity_type="cheap")
        assert (read.entity_type, read.columns, read.version) == ("product", ("id", "name"), 5)
        rows = await rows_of(read)
        assert sorted(rows) == ["1", "3", "4"]
        assert rows["3"] == {"id": 3, "name": "mug"}
        # What is asked for applies on top of it.
        asked: dict[str, Any] = {
            "where": "name <> :no",
            "where_parameters": ("no=pot",),
            "columns": ("name",),
        }
        assert await rows_of(await state(engine, entity_type="cheap", **asked)) == {
            "1": {"name": "chair"},
            "3": {"name": "mug"},
        }
        keyed: dict[str, Any] = {"primary_keys": ("1", "10"), "keys_only": True, "at_version": 4}
        assert await rows_of(await state(engine, entity_type="cheap", **keyed)) == {"1": None}
        # The name means what is defined when the read is opened.
        define(log_root, "DROP VIEW cheap")
        define(log_root, "CREATE VIEW cheap AS SELECT * FROM product WHERE price < 5")
        assert await rows_of(await state(engine, entity_type="cheap")) == {
            "1": {"id": 1, "name": "chair", "price": 2.0},
            "4": {"id": 4, "name": "pot", "price": 4.0},
        }


async def test_pages_of_a_view_go_on_in_it_alone(log_root: Path) -> None:
    products(log_root)
    write(log_root, *(product(key, f"p{key}", "1.00") for key in range(20, 27)))
    define(log_root, CHEAP)
    async with Engine(log_root) as engine:
        found: list[str] = []
        page = None
        while page is not None or not found:
            read = await state(engine, entity_type="cheap", limit=3, page=page)
            found += [*await rows_of(read)]
            page = read.next_page()
            if page is not None:
                with pytest.raises(InvalidRequest, match="page"):
                    await state(engine, page=page)
        assert sorted(found) == ["1", *map(str, range(20, 27))]


async def test_contract_50_a_view_keeps_its_names_and_each_row_its_own(log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    write(
        log_root,
        Mutation("article", "3", after=b'{"id":3,"title":"mug","cost":9,"name":"other"}'),
        mapping=RENAMED,
    )
    async with Engine(log_root) as engine:
        read = await state(engine, entity_type="cheap", where="name IN ('mug', 'chair')")
        assert (read.entity_type, read.columns) == ("article", ("id", "title"))
        assert await rows_of(read) == {
            "1": {"id": 1, "name": "chair"},
            "3": {"id": 3, "title": "mug"},
        }
        with pytest.raises(InvalidRequest, match="view cheap has no column 'title'"):
            await state(engine, entity_type="cheap", columns=("title",))
        with pytest.raises(InvalidRequest, match="there is no column 'cost'; known: id, name"):
            await state(engine, entity_type="cheap", where="cost > 1")
        before = await rows_of(await state(engine, entity_type="cheap", at_version=4))
        assert before == {"1": {"id": 1, "name": "chair"}}
        write(
            log_root,
            Mutation("article", "4", after=b'{"id":4,"title":"jug"}'),
            mapping="[entity_types.article.columns]\ncost = { dropped = true }",
        )
        with pytest.raises(InvalidRequest, match="view cheap needs column 'price', which article"):
            await state(engine, entity_type="cheap", wait_for_version=6)
        assert len(await rows_of(await state(engine, entity_type="cheap", at_version=5))) == 2


async def test_a_name_that_the_source_took_later_is_no_state(log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    write(log_root, Mutation("cheap", "1", after=b'{"a":1}'))
    async with Engine(log_root) as engine:
        with pytest.raises(InvalidRequest, match="an entity type and a view: DROP the view"):
            await state(engine, entity_type="cheap")
        define(log_root, "DROP VIEW cheap")
        assert await rows_of(await state(engine, entity_type="cheap")) == {"1": {"a": 1}}


async def test_contract_13_damaged_views_stand_in_no_tables_way(log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    (newest,) = (log_root / "shop" / "definitions").iterdir()
    newest.write_bytes(newest.read_bytes()[:-20])
    async with Engine(log_root) as engine:
        assert len(await rows_of(await state(engine))) == 2
        with pytest.raises(LogCorrupted, match="definitions"):
            await state(engine, entity_type="cheap")


@pytest.mark.parametrize(
    ("allowance", "expected"),
    [
        (Allowance(PRODUCTS), {"1": "id name", "4": "id name"}),
        (Allowance(PRODUCTS, frozenset({"4", "10"})), {"4": "id name"}),
        (Allowance(PRODUCTS, rows=read_claimed("name = 'pot'").filled({})), {"4": "id name"}),
        (Allowance(PRODUCTS, columns=Columns(frozenset({"secret"}))), {"1": "id name", "4": "id name"}),
    ],
)  # fmt: skip
async def test_contract_47_a_view_is_what_is_granted_of_it(
    log_root: Path, allowance: Allowance, expected: dict[str, str]
) -> None:
    products(log_root)
    write(log_root, product(4, "pot", "4.00"))
    define(log_root, CHEAP)
    async with Engine(log_root) as engine:
        caller = Holder({"shop": Grant((allowance,))})
        found = await rows_of(await state(engine, caller, "cheap"))
    assert {key: " ".join(image) for key, image in found.items()} == expected


@pytest.mark.parametrize(
    "allowance",
    [
        Allowance(frozenset({"order"})),
        Allowance(PRODUCTS, bodies=False),
        Allowance(PRODUCTS, columns=Columns(frozenset({"price"}))),  # of its condition alone
        Allowance(PRODUCTS, columns=Columns(frozenset({"name"}))),
    ],
)
async def test_contract_47_a_view_that_needs_what_is_hidden_is_as_if_it_were_none(
    log_root: Path, allowance: Allowance
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    told = []
    async with Engine(log_root) as engine:
        caller = Holder({"shop": Grant((allowance,))})
        for name in ("cheap", "cheep"):
            with pytest.raises(NotPermitted) as refused:
                await state(engine, caller, name, at_version=1_000, keys_only=True)
            told.append(json.dumps(str(refused.value)).replace(name, "…"))
    assert told[0] == told[1]
