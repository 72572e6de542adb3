"""A column that is dropped and added again: no reader shows the old values under the new column."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import Area, Criteria, InvalidRequest
from tailrace.criteria import Content, FromState
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.reads.test_state import PEER, rows_of, state
from tests.server.sql.test_query import ask
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

DROPPED = "[entity_types.product.columns]\nnote = { dropped = true }"
FILTERED = "[entity_types.product.columns]\nnote = { same_when_added_again = true }"
STEPS: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("", ({"id": 1, "note": "a"}, {"id": 2, "note": "b"})),
    (DROPPED, ({"id": 3},)),
    ("", ({"id": 2, "note": "new"},)),
)
WITH_OLD = {"1": {"id": 1, "note": "a"}, "2": {"id": 2, "note": "b"}}
BY_VERSION: dict[int, dict[str, Any]] = {
    1: WITH_OLD,
    2: {"1": {"id": 1}, "2": {"id": 2}, "3": {"id": 3}},
    3: {"1": {"id": 1}, "2": {"id": 2, "note": "new"}, "3": {"id": 3}},
}


def write(root: Path, *steps: tuple[str, tuple[dict[str, Any], ...]]) -> None:
    for mapping, rows in steps:
        with LogWriter.open(root, "shop", mapping=SchemaMapping.parse(mapping)) as log:
            log.append(
                [
                    Mutation("product", str(row["id"]), after=json.dumps(row).encode())
                    for row in rows
                ]
            )
            log.commit(publish=True)


async def test_state_shows_the_columns_of_its_version_alone(log_root: Path) -> None:
    write(log_root, *STEPS)
    async with Engine(log_root) as engine:
        for version, rows in BY_VERSION.items():
            assert await rows_of(await state(engine, at_version=version)) == rows
            some = await rows_of(await state(engine, at_version=version, primary_keys=("1",)))
            assert some == {"1": rows["1"]}
        noted = await state(engine, columns=("note",))
        assert await rows_of(noted) == {"1": {}, "2": {"note": "new"}, "3": {}}
        for where, keys in (
            ("note IS NULL", {"1", "3"}),
            ("note = 'a'", set()),
            ("note = 'new'", {"2"}),
        ):
            assert {*await rows_of(await state(engine, where=where))} == keys
        subscription = await engine.subscribe(
            ANONYMOUS,
            "shop",
            [Criteria(area=Area.DATA, entity_type=("product",))],
            start=FromState(),
            content=Content.AFTER,
            codec=JSON,
            peer=PEER,
        )
        subscription.request(3)
        found = {each["primaryKey"]: each["after"] for each in await receive(subscription, 3)}
        assert found == BY_VERSION[3]


def test_sql_shows_the_columns_of_its_version_alone(log_root: Path) -> None:
    write(log_root, *STEPS)
    assert ask(log_root, "SELECT id, note FROM product ORDER BY id") == [
        (1, None),
        (2, "new"),
        (3, None),
    ]
    then = "SELECT id, note FROM product FOR VERSION AS OF {} ORDER BY id"
    assert ask(log_root, then.format(1)) == [(1, "a"), (2, "b")]
    with pytest.raises(InvalidRequest, match="note"):
        ask(log_root, then.format(2))
    changes = (
        "SELECT after.id, after.note, after.note_2 FROM CHANGES('product', 1, 3) ORDER BY 1, 3"
    )
    assert ask(log_root, changes) == [
        (1, None, "a"),
        (2, None, "b"),
        (2, "new", None),
        (3, None, None),
    ]


async def test_a_connector_that_only_filters_columns_has_the_old_values_again(
    log_root: Path,
) -> None:
    write(log_root, *STEPS[:2], (FILTERED, STEPS[2][1]))
    async with Engine(log_root) as engine:
        assert await rows_of(await state(engine, at_version=2)) == BY_VERSION[2]
        assert await rows_of(await state(engine)) == BY_VERSION[3] | {"1": {"id": 1, "note": "a"}}
