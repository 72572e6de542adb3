"""A condition means the same columns when its reader resumes, whatever the source calls them by then."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import After, Area, ColumnsChanged, Content, Criteria, InvalidRequest
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import READING, Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.named.requests import NamedReader, NewSubscription
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.support.inprocess import objects, observer_of, receive
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cursor import Cursor
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

OPEN = Criteria(area=Area.DATA, entity_type=("task",), where="status = 'open'")
RENAMED = """
[entity_types.task.columns]
state = { renamed_from = "status" }
status = {}
"""


def write(root: Path, *rows: dict[str, Any], mapping: str = "", catalog: str = "shop") -> None:
    with LogWriter.open(root, catalog, mapping=SchemaMapping.parse(mapping)) as log:
        log.append(
            [Mutation("task", str(row["id"]), after=json.dumps(row).encode()) for row in rows]
        )
        log.commit(publish=True)


def rename(root: Path, catalog: str = "shop") -> None:
    """Rename ``status``, and give its name to another column."""
    write(
        root,
        {"id": 2, "state": "open", "status": "new"},
        {"id": 3, "state": "done", "status": "open"},
        mapping=RENAMED,
        catalog=catalog,
    )


async def subscribe(
    engine: Engine,
    criteria: Criteria,
    after: Cursor | None = None,
    caller: Principal = ANONYMOUS,
) -> Subscription:
    subscription = await engine.subscribe(
        caller,
        "shop",
        [criteria],
        start=None if after is None else After(after),
        content=Content.AFTER,
        codec=JSON,
    )
    subscription.request(10)
    return subscription


async def keys(subscription: Subscription, count: int) -> list[str]:
    return [each["primaryKey"] for each in await receive(subscription, count)]


async def test_a_reader_that_resumes_follows_the_column_that_it_named_first(log_root: Path) -> None:
    write(log_root, {"id": 1, "status": "open"})
    async with Engine(log_root) as engine:
        first = await subscribe(engine, OPEN)
        begun = first.acknowledgement
        assert begun.where_version == 1
        rename(log_root)
        assert await keys(first, 1) == ["2"]
        # With the version of the names it gets the same; the names of the version itself are others.
        pinned = replace(OPEN, where_version=begun.where_version)
        assert await keys(await subscribe(engine, pinned, begun.resume_cursor), 1) == ["2"]
        newer = replace(OPEN, where_version=2)
        assert await keys(await subscribe(engine, newer, begun.resume_cursor), 1) == ["3"]
        # Without it nobody knows which of the two is meant, wherever it goes on.
        for after in (begun.resume_cursor, first.resume_cursor()):
            with pytest.raises(ColumnsChanged, match="'status' of 'task' is another column"):
                await subscribe(engine, OPEN, after)
        assert (await subscribe(engine, OPEN)).acknowledgement.where_version == 2
        with pytest.raises(InvalidRequest, match="where_version 9: the newest published"):
            await subscribe(engine, replace(OPEN, where_version=9))


async def test_a_page_of_history_reads_the_condition_with_the_names_of_the_first_page(
    log_root: Path,
) -> None:
    write(log_root, {"id": 1, "status": "open"})
    async with Engine(log_root) as engine:
        begun = (await subscribe(engine, OPEN)).acknowledgement
        rename(log_root)
        await observer_of(engine, "shop").log.reach(2, 10)
        cursor = begun.resume_cursor

        async def page(bounds: HistoryBounds) -> list[str]:
            read = await engine.history(ANONYMOUS, "shop", [OPEN], bounds=bounds, codec=JSON)
            with read:
                return [each["primaryKey"] async for frames in read for each in objects(frames)]

        assert await page(HistoryBounds()) == ["3"]
        assert await page(HistoryBounds(anchor=1)) == ["1"]
        # A cursor without the anchor of its page does not say whose names the condition has.
        for bounds in (HistoryBounds(lower=After(cursor)), HistoryBounds(before=cursor)):
            with pytest.raises(ColumnsChanged, match="'status' of 'task' is another column"):
                await page(bounds)


async def test_a_name_that_always_meant_one_column_goes_on_by_its_text(log_root: Path) -> None:
    write(log_root, {"id": 1, "status": "open"})
    async with Engine(log_root) as engine:
        cursor = (await subscribe(engine, OPEN)).acknowledgement.resume_cursor
        write(
            log_root,
            {"id": 2, "state": "open"},
            mapping="[entity_types.task.columns.state]\nrenamed_from = 'status'",
        )
        await observer_of(engine, "shop").log.reach(2, 10)
        assert await keys(await subscribe(engine, OPEN, cursor), 1) == ["2"]


async def test_a_column_that_was_dropped_is_not_replaced_by_one_of_its_name(log_root: Path) -> None:
    write(log_root, {"id": 1, "status": "open"})
    async with Engine(log_root) as engine:
        begun = (await subscribe(engine, OPEN)).acknowledgement
        dropped = "[entity_types.task.columns.status]\ndropped = true"
        write(log_root, {"id": 2}, mapping=dropped)
        write(log_root, {"id": 3, "status": "open"})
        await observer_of(engine, "shop").log.reach(3, 10)
        for where_version in (None, begun.where_version):
            asked = replace(OPEN, where_version=where_version)
            with pytest.raises(ColumnsChanged):
                await subscribe(engine, asked, begun.resume_cursor)


async def test_a_former_name_gives_no_access_to_a_hidden_column(log_root: Path) -> None:
    write(log_root, {"id": 1, "status": "open"})
    grant = Grant((Allowance(columns=Columns(frozenset({"state"})), actions=READING),))
    async with Engine(log_root) as engine:
        caller = Holder({"shop": grant})
        begun = (await subscribe(engine, OPEN, caller=caller)).acknowledgement
        rename(log_root)
        await observer_of(engine, "shop").log.reach(2, 10)
        asked = replace(OPEN, where_version=begun.where_version)
        with pytest.raises(ColumnsChanged, match="has another name now"):
            await subscribe(engine, asked, begun.resume_cursor, caller)


async def test_a_named_subscription_keeps_the_columns_that_it_was_created_with(
    log_root: Path,
) -> None:
    write(log_root, {"id": 1, "status": "open"})
    async with Engine(log_root) as engine:
        await engine.named.create(
            ANONYMOUS, "shop", NewSubscription(name="open-tasks", criteria=(OPEN,))
        )
        rename(log_root)
        await observer_of(engine, "shop").log.reach(2, 10)
        reader = await engine.subscribe(
            ANONYMOUS, "shop", codec=JSON, content=Content.AFTER, named=NamedReader("open-tasks")
        )
        reader.request(10)
        assert await keys(reader, 1) == ["2"]
