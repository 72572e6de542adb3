"""What readers meet where bodies are gone: the position where they are needed, and nothing if they are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Area, Content, Criteria, Operation, Since
from tailrace.errors import BodiesExpired
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.expiring import expire
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tests.support.inprocess import PATIENCE_S, ModelWriter, coordinates, objects, receive
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY = 86_400_000_000
LAST = 8


def upsert(entity_type: str, number: int) -> ModelMutation:
    return ModelMutation(entity_type, str(number), Operation.UPSERT, None, {"id": number})


@pytest.fixture(params=["small segments", "one segment"])
def log(log_root: Path, writer: ModelWriter, request: pytest.FixtureRequest) -> CommitLog:
    """Version n has order n; every even one also has product n, whose bodies are gone in 4 and before."""
    for number in range(1, LAST + 1):
        products = [upsert("product", number)] if number % 2 == 0 else []
        writer.write([upsert("order", number), *products, upsert("order", -number)])
    log = CommitLog.open(log_root / "shop")
    if request.param == "one segment":
        assert compact(log.path, 1) is not None
    change_settings(log.store, log.view, {"bodies": DAY}, 1, entity_type="product")
    assert expire(log.path, log.view.timestamp_of(5) + DAY, at_once=True) is not None
    delete_unnamed(log.path, 2**62)
    return log


async def read(
    root: Path, criteria: Sequence[Criteria], content: Content, **others: Any
) -> tuple[list[tuple[int, int]], BodiesExpired | None]:
    """Return where the captures lie that a read of history gives, and the error that it ends with."""
    found: list[tuple[int, int]] = []
    async with Engine(root) as engine, asyncio.timeout(PATIENCE_S):
        history = await engine.history(
            ANONYMOUS, "shop", criteria, codec=JSON, content=content, **others
        )
        try:
            async for frames in history:
                found += [coordinates(each)[:2] for each in objects(frames)]
        except BodiesExpired as error:
            return found, error
    return found, None


DATA = [Criteria(area=Area.DATA)]
PRODUCTS = [Criteria(entity_type=("product",), area=Area.DATA)]
ORDERS = [Criteria(entity_type=("order",), area=Area.DATA)]


async def test_a_range_ends_where_bodies_are_needed_that_are_gone(
    log: CommitLog, log_root: Path
) -> None:
    found, error = await read(log_root, DATA, Content.AFTER)
    assert found == [(1, 1), (1, 2), (2, 1)]
    assert error is not None
    assert (error.wanted, error.entity_type, error.oldest) == (
        Position(2, 2),
        "product",
        Position(6, 0),
    )


async def test_in_reverse_it_ends_at_the_newest_that_is_gone(
    log: CommitLog, log_root: Path
) -> None:
    found, error = await read(log_root, DATA, Content.AFTER, reverse=True)
    assert error is not None
    assert error.wanted.version == 4
    assert found[-1] == (4, error.wanted.index + 1)
    assert [version for version, _ in found if version > 4] == sorted(
        [5, 5, 6, 6, 6, 7, 7, 8, 8, 8], reverse=True
    )


async def test_a_condition_cannot_be_judged_where_they_are_gone(
    log: CommitLog, log_root: Path
) -> None:
    wanted = [Criteria(entity_type=("product",), area=Area.DATA, where="id >= 4")]
    found, error = await read(log_root, wanted, Content.HEADER)
    assert found == []
    assert error is not None
    assert (error.wanted, error.oldest) == (Position(2, 2), Position(6, 0))
    bounds = HistoryBounds(lower=Since(Position(6)))
    found, error = await read(log_root, wanted, Content.HEADER, bounds=bounds)
    assert (found, error) == ([(6, 2), (8, 2)], None)


@pytest.mark.parametrize("reverse", [False, True])
async def test_who_does_not_need_them_is_not_disturbed(
    log: CommitLog, log_root: Path, reverse: bool
) -> None:
    for criteria, content, count in (
        (DATA, Content.HEADER, 20),
        (PRODUCTS, Content.HEADER, 4),
        (ORDERS, Content.BODY, 16),
    ):
        found, error = await read(log_root, criteria, content, reverse=reverse)
        assert (len(found), error) == (count, None)
    bounds = HistoryBounds(lower=Since(Position(6)))
    found, error = await read(log_root, DATA, Content.BODY, reverse=reverse, bounds=bounds)
    assert (len(found), error) == (8, None)


async def test_a_subscription_gets_all_before_and_is_then_told(
    log: CommitLog, log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        needs, heads = [
            await engine.subscribe(
                ANONYMOUS, "shop", DATA, start=Since(Position(0)), codec=JSON, content=content
            )
            for content in (Content.AFTER, Content.HEADER)
        ]
        assert [coordinates(each)[0] for each in await receive(needs, 3)] == [1, 1, 2]
        with pytest.raises(BodiesExpired) as told:
            await receive(needs, 1)
        assert told.value.wanted.version == 2
        observers = engine.statistics(ANONYMOUS).observers
        (figures,) = (each for each in observers if each.catalog == "shop")
        assert (figures.oldest, figures.bodies_from) == (1, {"product": 6})
        assert figures.oldest_timestamp == log.view.timestamp_of(1)
        # The cursor is where it was: whoever asks for heads alone, or begins later, goes on.
        assert needs.resume_cursor().version == 2
        writer.write([upsert("product", 9)])
        assert [coordinates(each)[0] for each in await receive(heads, 21)][-1] == 9
        late = await engine.subscribe(
            ANONYMOUS, "shop", PRODUCTS, start=Since(told.value.oldest), codec=JSON
        )
        assert [coordinates(each)[0] for each in await receive(late, 3)] == [6, 8, 9]


async def test_criteria_of_columns_need_the_images_of_rows_that_are_new(
    log: CommitLog, log_root: Path
) -> None:
    """Of an insert nothing says which columns it has but its image."""
    columns = [Criteria(entity_type=("product",), container_name=("id",))]
    found, error = await read(log_root, columns, Content.HEADER)
    assert error is not None
    assert (found, error.wanted.version) == ([], 2)
    bounds = HistoryBounds(lower=Since(Position(6)))
    found, error = await read(log_root, columns, Content.AFTER, bounds=bounds)
    assert ([version for version, _ in found], error) == ([6, 8], None)
