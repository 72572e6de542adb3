"""What operators see of subscriptions and publishers. Peers over each transport: tests/conformance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Area, ContainerType, Criteria, Operation, Since
from tailrace.position import Position
from tailrace_server.api.operator import overview
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.rows.criteria_form import criteria_form
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_a_subscription_names_peer_client_criteria_and_age(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        await engine.subscribe(
            ANONYMOUS,
            "shop",
            (Criteria(entity_type=("product",)),),
            codec=JSON,
            peer=Peer("rest_events", "10.0.0.7:50112", "curl/8.5.0"),
        )
        [found] = await overview.subscriptions(engine, ANONYMOUS)
    assert {
        name: found[name] for name in ("catalog", "transport", "peer", "principal", "client")
    } == {
        "catalog": "shop",
        "principal": "anonymous",
        "transport": "rest_events",
        "peer": "10.0.0.7:50112",
        "client": "curl/8.5.0",
    }
    assert found["criteria"] == [{"entityType": ["product"]}]
    assert isinstance(found["age_s"], float)
    assert found["age_s"] >= 0


async def test_those_that_are_furthest_behind_come_first_and_only_they_where_there_are_many(
    log_root: Path, writer: ModelWriter
) -> None:
    for key in range(3):
        writer.write([upsert(key)])
    async with Engine(log_root) as engine:
        for version in (3, 0, 2):
            await engine.subscribe(
                ANONYMOUS, "shop", start=Since(Position(version)), codec=JSON, demand=0
            )
        found = await overview.subscriptions(engine, ANONYMOUS, shown=2)
    assert [each["lag_versions"] for each in found] == [3, 2]


async def test_lag_counts_records_versions_and_seconds_and_is_none_once_caught_up(
    log_root: Path, writer: ModelWriter
) -> None:
    for key in range(3):
        writer.write([upsert(key)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=Since(Position(0)), codec=JSON, demand=2
        )
        await receive(subscription, 2)
        view = await engine.view(ANONYMOUS, "shop")
        behind = subscription.statistics()
        assert (behind.lag_records, behind.lag_versions) == (4, 2)
        apart_us = view.timestamp_of(3) - view.timestamp_of(1)
        assert behind.lag_s == apart_us / 1e6 > 0
        subscription.request(4)
        await receive(subscription, 4)
        done = subscription.statistics()
        assert (done.lag_records, done.lag_versions, done.lag_s) == (0, 0, 0)


async def test_publishers_that_keep_most_come_first_where_that_is_asked_for(
    log_root: Path, writer: ModelWriter
) -> None:
    few, many = (Criteria(primary_key=tuple(map(str, range(count)))) for count in (1, 100))
    async with Engine(log_root) as engine:
        for criteria in (few, few, many):
            await engine.subscribe(ANONYMOUS, "shop", (criteria,), codec=JSON)
        by_readers = overview.publishers(engine, ANONYMOUS)
        [dearest] = overview.publishers(engine, ANONYMOUS, shown=1, by_cost=True)
    assert [each["subscriptions"] for each in by_readers] == [2, 1]
    assert dearest["criteria_text"] == "key 0 or 1 or 10 or 97 more"
    assert dearest["criteria_bytes"] == by_readers[1]["criteria_bytes"]
    assert dearest["criteria_bytes"] != by_readers[0]["criteria_bytes"]


def test_criteria_are_shown_as_requests_have_them() -> None:
    found = criteria_form(
        [
            Criteria(),
            Criteria(
                area=Area.DATA,
                entity_type=("product",),
                operation=(Operation.UPSERT,),
                container_type=(ContainerType.PRICE,),
            ),
        ]
    )
    assert found == [
        {},
        {
            "area": "DATA",
            "entityType": ["product"],
            "operation": ["UPSERT"],
            "containerType": ["PRICE"],
        },
    ]


def test_of_many_values_the_first_are_shown_and_their_number() -> None:
    keys = tuple(f"{number:06}" for number in range(100_000))
    [shown] = criteria_form([Criteria(primary_key=keys)])
    assert shown == {"primaryKey": list(keys[:20]), "primaryKeyCount": 100_000}
    assert len(criteria_form([Criteria(entity_type=(str(n),)) for n in range(100)])) == 20
