"""Which schema reads a capture, and how often the server is asked for one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from tailrace import (
    Area,
    Capture,
    CatalogReplaced,
    Column,
    Criteria,
    Operation,
    Schema,
    TransportError,
    Unsupported,
)
from tailrace.position import TimestampMicros
from tailrace.reads.state import TypedState
from tailrace.schema import SchemaSpan
from tailrace.typed.schemas import TypedCaptures, TypedSubscription

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG = UUID(int=7)
TYPES = ("BIGINT", "DECIMAL", "DOUBLE", "VARCHAR")


class Server:
    """Answers with schemas that begin at versions; counts what it is asked."""

    def __init__(self, *firsts: int, published: int, uuid: UUID = LOG) -> None:
        self.firsts = firsts
        self.published = published
        self.uuid = uuid
        self.asked: list[int] = []

    async def ask(self, version: int) -> SchemaSpan:
        self.asked.append(version)
        version = min(version, self.published)
        place = max(n for n, first in enumerate(self.firsts) if first <= version)
        until = self.published
        if place + 1 < len(self.firsts):
            until = min(until, self.firsts[place + 1] - 1)
        columns = (Column("value", sql_type=TYPES[place], id=1),)
        schema = Schema(place + 1, {"product": columns})
        return SchemaSpan(self.uuid, schema, self.firsts[place], until)


def capture(version: int, area: Area = Area.DATA) -> Capture:
    name = "product" if area is Area.DATA else "item"
    after = b'{"value":"x"}' if area is Area.DATA else None
    return Capture(
        LOG, version, 1, 0, TimestampMicros(5), area, Operation.UPSERT, name, "1", None, after=after
    )


def labels(captures: Sequence[Capture]) -> list[str]:
    """Return the type by which each capture of a row is read."""
    return [
        next(iter(each.reader._converts.values()))[1]
        for each in captures
        if each.reader is not None
    ]


async def test_a_read_asks_once_for_each_schema_in_either_direction() -> None:
    for order in (1, -1):
        server = Server(1, 4, 9, published=20)
        versions = [*range(1, 21)][::order]
        found = await TypedCaptures("shop", server.ask).with_readers(map(capture, versions))
        assert len(server.asked) == 3
        expected = ["BIGINT"] * 3 + ["DECIMAL"] * 5 + ["DOUBLE"] * 12
        assert labels(found) == expected[::order]


async def test_a_subscription_asks_again_only_behind_a_record_of_the_schema() -> None:
    server = Server(1, 8, published=3)
    typing = TypedSubscription("shop", server.ask, (Criteria(area=Area.DATA),))
    assert labels(await typing.typed([capture(3)])) == ["BIGINT"]
    server.published = 9
    batch = await typing.typed(
        [capture(4), capture(7), capture(8, Area.SCHEMA), capture(8), capture(9)]
    )
    assert labels(batch) == ["BIGINT", "BIGINT", "DECIMAL", "DECIMAL"]
    assert batch.passed_over == 1
    assert server.asked == [3, 8]
    server.published = 500
    assert labels(await typing.typed([capture(500)])) == ["DECIMAL"]
    assert server.asked == [3, 8]


async def test_a_call_that_failed_is_repeated_with_the_same_captures() -> None:
    server = Server(1, 8, published=7)
    typing = TypedSubscription("shop", server.ask, ())
    await typing.typed([capture(7)])
    news = [capture(8, Area.SCHEMA), capture(8)]
    with pytest.raises(
        TransportError, match="version 8, but has read the log only up to version 7"
    ):
        await typing.typed(news)
    server.published = 8
    assert labels(await typing.typed(news)) == ["DECIMAL"]


@pytest.mark.parametrize(
    ("criteria", "kept"),
    [
        ((), 1),
        ((Criteria(area=Area.DATA),), 0),
        ((Criteria(entity_type=("item",)),), 1),
        ((Criteria(entity_type=("product",)),), 0),
        ((Criteria(primary_key=("1",)),), 0),
        ((Criteria(container_name=("value",)),), 0),
        ((Criteria(area=Area.DATA), Criteria(area=Area.SCHEMA)), 1),
    ],
)
async def test_records_of_the_schema_come_to_whom_asked_for_them(
    criteria: tuple[Criteria, ...], kept: int
) -> None:
    typing = TypedSubscription("shop", Server(1, published=9).ask, criteria)
    batch = await typing.typed([capture(2, Area.SCHEMA), capture(2)])
    assert (len(batch), batch.passed_over) == (1 + kept, 1 - kept)


async def test_another_log_and_an_older_server_are_told_apart() -> None:
    replaced = TypedCaptures("shop", Server(1, published=9, uuid=UUID(int=8)).ask)
    with pytest.raises(CatalogReplaced):
        await replaced.with_readers([capture(1)])
    with pytest.raises(Unsupported, match="use a newer server"):
        await TypedCaptures("shop", Server(0, published=0).ask).with_readers([capture(1)])


async def test_rows_of_a_table_that_had_another_name_are_read_by_its_columns_of_then() -> None:
    async def ask(version: int) -> SchemaSpan:
        if version < 5:
            types: dict[str, tuple[Column, ...]] = {
                "item": (Column("price", sql_type="BIGINT", id=3),)
            }
            return SchemaSpan(LOG, Schema(1, types), 1, 4)
        types = {"product": (Column("price", sql_type="DOUBLE", id=3),)}
        return SchemaSpan(LOG, Schema(2, types), 5, 9)

    typing = TypedState("shop", LOG, "product", 9, ask)
    found = [(await typing.reader(version)).read(b'{"price":2}') for version in (3, 7)]
    assert [type(row["price"]) for row in found] == [int, float]
