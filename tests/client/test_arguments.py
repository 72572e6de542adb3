"""What callers may write in place of values."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tailrace import (
    After,
    Area,
    ContainerType,
    Criteria,
    Cursor,
    FromTime,
    InvalidRequest,
    Operation,
    Position,
    Since,
    SubscriptionClosed,
    connect,
)
from tailrace.arguments import lower_bound_of, micros, milliseconds, several, start_of, texts
from tests.client.scripted import CATALOG_UUID, PATIENCE_S

CURSOR = Cursor(CATALOG_UUID, 41, 2, 0)


def test_starts() -> None:
    assert start_of(None, None, None) is None
    assert start_of(0, None, None) == Since(Position(0))
    assert start_of(Position(41, 2), None, None) == Since(Position(41, 2))
    assert start_of(None, CURSOR, None) == start_of(None, str(CURSOR), None) == After(CURSOR)
    assert start_of(None, None, 0) == FromTime(micros(0))
    assert start_of(None, CURSOR, 0) == After(CURSOR, micros(0))
    for others in ((CURSOR, None), (None, 0), (CURSOR, 0)):
        with pytest.raises(InvalidRequest, match="since alone"):
            start_of(1, *others)


def test_a_read_has_one_lower_bound() -> None:
    assert lower_bound_of(None, None, None) is None
    assert lower_bound_of(None, CURSOR, None) == After(CURSOR)
    with pytest.raises(InvalidRequest, match="at most one of since, after and from_time"):
        lower_bound_of(None, CURSOR, 0)


def test_times_are_exact_to_the_microsecond_in_any_zone() -> None:
    moment = datetime(2026, 11, 21, 13, 45, 6, 123_457, UTC)
    assert micros(moment) == 1_795_268_706_123_457
    assert micros(moment.astimezone(timezone(timedelta(hours=5, minutes=45)))) == micros(moment)
    assert micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)) == -1
    with pytest.raises(InvalidRequest, match="no time zone"):
        micros(datetime(2026, 1, 1))
    with pytest.raises(InvalidRequest, match="time '2026-01-01': write an aware datetime"):
        micros("2026-01-01")  # type: ignore[arg-type]  # the caller's mistake


def test_one_criteria_is_a_list_of_one() -> None:
    one = Criteria(entity_type=("a",))
    assert several(one) == (one,)
    assert several([one, one]) == [one, one]
    assert several(()) == ()


@pytest.mark.parametrize("field", ["entity_type", "primary_key", "container_name"])
def test_names_that_would_not_match_as_written_are_refused(field: str) -> None:
    """A bare text is a sequence of its letters: it would be a filter that silently passes nothing."""
    wrong: list[tuple[Any, str]] = [
        ("order", "is a single text"),
        ((7,), "a tuple of texts"),
        (("\udcff",), "not UTF-8"),
    ]
    for values, reason in wrong:
        with pytest.raises(InvalidRequest, match=f"criteria.{field}: .*{reason}"):
            Criteria(**{field: values})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"operation": Operation.UPSERT}, "criteria.operation: .* is a single value"),
        (
            {"operation": ("UPSERT",)},
            "criteria.operation: must be members of Operation, not 'UPSERT'",
        ),
        (
            {"container_type": (Operation.UPSERT,)},
            "criteria.container_type: must be members of ContainerType",
        ),
        ({"area": "DATA"}, "criteria.area: must be members of Area, not 'DATA'"),
    ],
)
def test_what_is_no_member_of_an_enum_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Criteria(**fields)


@pytest.mark.parametrize("criteria", ["order", ["order"], {"entity_type": "order"}, None])
async def test_what_are_no_criteria_is_named(criteria: Any) -> None:
    async with connect("127.0.0.1:1") as client:
        for call in (client.subscribe, client.read_changes):
            with pytest.raises(InvalidRequest, match=r"criteria: .* write a Criteria"):
                call("shop", criteria)


@pytest.mark.parametrize(
    "given",
    [
        {"since": "0"},
        {"since": 1.5},
        {"since": (1, 0)},
        {"since": True},
        {"after": 41},
        {"after": (CURSOR,)},
        {"content": "after"},
        {"content": ["after"]},
        {"heartbeat_interval_s": "1"},
        {"overrun": "DISCONNECT"},
        {"on_disconnect": "print"},
        {"on_reconnect": 1},
    ],
    ids=str,
)
async def test_a_value_of_another_type_is_named_with_what_to_write(given: dict[str, Any]) -> None:
    """At once: a callback would else fail at the first break, hours later."""
    (argument,) = given
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest, match=f"^{argument} .*: write ") as raised:
            client.subscribe("shop", **given)
    assert repr(given[argument]) in str(raised.value)


async def test_a_duration_that_no_request_can_hold_is_named() -> None:
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest, match="subscribe: cannot convert float infinity"):
            client.subscribe("shop", heartbeat_interval_s=float("inf"))


def test_durations() -> None:
    assert milliseconds(None) is None
    assert milliseconds(0.25) == 250


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": (Operation.TRANSACTION,), "container_type": (ContainerType.ENTITY,)},
        {"container_type": (ContainerType.CATALOG,), "primary_key": ("1",)},
        {"area": Area.SCHEMA, "container_name": ("price",)},
        {"area": Area.SCHEMA, "primary_key": ("1",)},
        {"area": Area.SCHEMA, "operation": (Operation.EXPIRE,)},
        {"operation": (Operation.REMOVE,), "container_type": (ContainerType.ATTRIBUTE,)},
        {"operation": (Operation.REMOVE, Operation.EXPIRE), "container_name": ("price",)},
    ],
)
def test_criteria_that_can_never_match_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="criteria: "):
        Criteria(**fields)


async def test_what_was_not_entered_says_so_and_does_not_wait_for_ever() -> None:
    async with connect("127.0.0.1:1") as client, asyncio.timeout(PATIENCE_S):
        for iterated in (client.subscribe("shop", since=0), client.read_changes("shop")):
            with pytest.raises(SubscriptionClosed, match="inside async with"):
                await anext(aiter(iterated))


@pytest.mark.parametrize("name", ["keys", "columns"])
def test_a_value_that_is_no_text_is_refused_with_the_text_to_write(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: 7 is not a text; write '7'"):
        texts(name, [7])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="write a list of texts"):
        texts(name, "7")
