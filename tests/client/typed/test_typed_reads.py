"""Rows come as Python's values over every call of the client, each by the schema of its own version."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Area, Content, Criteria, InvalidRequest, Operation, ValueNotHeld
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ROWS = Criteria(area=Area.DATA)
MAPPING = """
[entity_types.product.columns.price]
type = "{price}"
[entity_types.product.columns.made]
type = "{made}"
encoding = "{encoding}"
"""
FIRST = {"price": "BIGINT", "made": "DATE", "encoding": "debezium.Date"}
SECOND = {"price": "DECIMAL(10,2)", "made": "TIMESTAMP", "encoding": "debezium.Timestamp"}


def append(root: Path, columns: dict[str, str], *keys: str, name: str = "product") -> None:
    """Write a transaction for each key, by a mapping; values are the same texts."""
    text = MAPPING.format(**columns).replace("product", name)
    if name != "product":
        text = f'[entity_types.{name}]\nrenamed_from = "product"\n{text}'
    with LogWriter.open(root, "shop", mapping=SchemaMapping.parse(text)) as log:
        for key in keys:
            log.append([Mutation(name, key, after=b'{"price":12,"made":19782,"note":null}')])


def values(columns: dict[str, str]) -> dict[str, object]:
    """Return what the row is by a mapping."""
    if columns is FIRST:
        return {"price": 12, "made": date(2024, 2, 29), "note": None}
    return {
        "price": Decimal(12),
        "made": datetime(1970, 1, 1, 0, 0, 19, 782_000),
        "note": None,
    }


@asynccontextmanager
async def connected(root: Path) -> AsyncIterator[tailrace.Client]:
    async with Engine(root) as engine, asyncio.timeout(PATIENCE_S):
        server = GrpcServer(engine)
        port = await server.start("127.0.0.1:0")
        try:
            async with tailrace.connect(f"127.0.0.1:{port}") as client:
                yield client
        finally:
            await server.stop(0.5)


async def test_every_call_reads_each_row_by_the_types_of_its_version(log_root: Path) -> None:
    append(log_root, FIRST, "1", "2")
    append(log_root, SECOND, "3")
    append(log_root, FIRST, "4")
    expected = {"1": values(FIRST), "2": values(FIRST), "3": values(SECOND), "4": values(FIRST)}
    async with connected(log_root) as client:
        async with client.state("shop", "product", typed=True) as state:
            assert {row.primary_key: row.values() async for row in state} == expected
        row = await client.get("shop", "product", "3", typed=True)
        assert row is not None
        assert row.values() == expected["3"]
        assert row.image == b'{"price":12,"made":19782,"note":null}'
        for reverse in (False, True):
            async with client.read_changes(
                "shop", ROWS, content=Content.AFTER, typed=True, reverse=reverse
            ) as history:
                found = [(each.primary_key, each.row()) async for each in history]
            assert found == [*expected.items()][:: -1 if reverse else 1]
        async with client.subscribe(
            "shop", ROWS, since=0, content=Content.AFTER, typed=True
        ) as captures:
            live = [await anext(captures) for _ in range(4)]
            assert {each.primary_key: each.row() for each in live} == expected
            # A change of the schema while it is live.
            append(log_root, SECOND, "5")
            append(log_root, SECOND, "6")
            for _ in range(2):
                assert (await anext(captures)).row() == values(SECOND)
            # What was passed over, four records of the schema, is no part of the demand.
            assert captures.statistics().taken == 6
            assert captures.statistics().buffered == 0


async def test_with_a_demand_of_its_own_a_user_gets_as_many_as_it_asked_for(log_root: Path) -> None:
    append(log_root, FIRST, "1")
    append(log_root, SECOND, "2")
    append(log_root, FIRST, "3")
    async with (
        connected(log_root) as client,
        client.subscribe(
            "shop", ROWS, since=0, content=Content.AFTER, typed=True, demand=0
        ) as captures,
    ):
        captures.request(3)
        found = [await anext(captures) for _ in range(3)]
        assert [each.row() for each in found] == [values(FIRST), values(SECOND), values(FIRST)]
        assert captures.statistics().outstanding == 0


async def test_rows_from_before_a_rename_of_the_table(log_root: Path) -> None:
    append(log_root, FIRST, "1")
    append(log_root, SECOND, "2", name="article")
    async with (
        connected(log_root) as client,
        client.state("shop", "article", typed=True) as state,
    ):
        found = {row.primary_key: row.values() async for row in state}
    assert found == {"1": values(FIRST), "2": values(SECOND)}


async def test_bodies_are_read_one_by_one_and_a_misfit_leaves_the_others(log_root: Path) -> None:
    mapping = SchemaMapping.parse(MAPPING.format(**FIRST))
    with LogWriter.open(log_root, "shop", mapping=mapping) as log:
        old, new = b'{"price":1,"made":0}', b'{"price":1,"made":2147483647}'
        log.append([Mutation("product", "1", after=old)])
        log.append([Mutation("product", "1", before=old, after=new)])
        log.append([Mutation("product", None, Operation.REMOVE, change=b'{"truncate":true}')])
    async with connected(log_root) as client:
        async with client.read_changes("shop", ROWS, content=Content.BODY, typed=True) as history:
            _, updated, gone = [each async for each in history]
        with pytest.raises(ValueNotHeld, match="infinity"):
            updated.row()
        assert updated.row(Content.BEFORE) == {"price": 1, "made": date(1970, 1, 1)}
        with pytest.raises(ValueNotHeld, match=r"'made' of 'product' is DATE in encoding"):
            updated.row(Content.CHANGE)
        assert gone.row() is None
        assert gone.row(Content.CHANGE) == {"truncate": True}
        with pytest.raises(InvalidRequest, match="one of BEFORE, AFTER and CHANGE"):
            gone.row(Content.BODY)
        with pytest.raises(InvalidRequest, match="either decoded"):
            client.subscribe("shop", typed=True, decoded=True)


async def test_a_value_that_was_not_sent_is_missing(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as log:
        log.append(
            [Mutation("product", "1", after=b'{"id":1,"note":"__debezium_unavailable_value"}')]
        )
    async with connected(log_root) as client:
        row = await client.get("shop", "product", "1", typed=True)
        assert row is not None
        assert row.values() == {"id": 1}
        span = await client.schema_span("shop", 1)
        assert (span.since, span.until, span.schema.placeholders) == (1, 1, ())


async def test_a_number_beyond_python_or_a_double_ends_no_reader(log_root: Path) -> None:
    """Its row is handed over as the others are; with a condition on its column too."""
    odd = ["1e400", "1" * 5_000, "1e-2147483647", "1e" + "9" * 20, '{"in":2e308}']
    texts = ['"x"', *odd, '"y"']
    with LogWriter.open(log_root, "shop") as log:
        for place, text in enumerate(texts):
            image = b'{"id":%d,"v":%b}' % (place, text.encode())
            log.append([Mutation("product", str(place), after=image)])
    meeting = {
        None: [*range(len(texts))],
        "v IN ('x', 'y')": [0, 6],
        "v LIKE '_'": [0, 6],
        "v > 1": [1, 2, 4],
        "v = 1": [],
    }
    async with connected(log_root) as client:
        for where, places in meeting.items():
            keys = {str(each) for each in places}
            async with client.state("shop", "product", where=where, typed=True) as state:
                rows = [row async for row in state]
            assert {row.primary_key for row in rows} == keys
            for row in rows:
                if row.primary_key == "4":
                    with pytest.raises(ValueNotHeld, match="'v' of 'product'"):
                        row.values()
                else:
                    assert row.values()
            criteria = Criteria(area=Area.DATA, entity_type=("product",), where=where)
            async with client.subscribe(
                "shop", criteria, since=0, content=Content.AFTER
            ) as captures:
                assert {(await anext(captures)).primary_key for _ in keys} == keys
        async with client.table("shop", "product") as table:
            assert [table[str(each)]["id"] for each in (0, 1, 2, 3, 5, 6)] == [0, 1, 2, 3, 5, 6]
            with pytest.raises(ValueNotHeld, match="18 digits"):
                table["4"]
