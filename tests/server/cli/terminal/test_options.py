"""The values of shared options; each mistake is named by its option."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tailrace.criteria import Area, Content, Criteria, Operation
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace_server.cli.terminal import times
from tailrace_server.cli.terminal.options import (
    ConditionFilterOptions,
    FormOptions,
    StartOptions,
)
from tests.server.cli.command_line import made

LEAD = Criteria(operation=(Operation.TRANSACTION,))


@pytest.mark.parametrize(
    ("given", "criteria"),
    [
        ({}, (Criteria(area=Area.DATA), Criteria(area=Area.SCHEMA))),
        ({"leads": True}, ()),
        ({"entity_type": ["order"]}, (Criteria(entity_type=("order",)),)),
        ({"entity_type": ["order"], "leads": True}, (Criteria(entity_type=("order",)), LEAD)),
        (
            {"key": ["1", "2"], "operation": ["Remove", "EXPIRE"]},
            (Criteria(primary_key=("1", "2"), operation=(Operation.REMOVE, Operation.EXPIRE)),),
        ),
        ({"column": ["price"]}, (Criteria(container_name=("price",)),)),
        ({"area": "schema"}, (Criteria(area=Area.SCHEMA),)),
    ],
)
def test_filters_are_one_criteria_and_leads_come_only_when_asked_for(
    given: dict[str, Any], criteria: tuple[Criteria, ...]
) -> None:
    leads = given.pop("leads", False)
    assert made(ConditionFilterOptions, **given).criteria(leads=leads) == criteria


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"operation": ["update"]}, "--operation 'update': choose from upsert, remove"),
        ({"area": "sales"}, "--area 'sales': choose from schema, data, infrastructure"),
        ({"entity_type": [""]}, "an empty name matches nothing"),
        ({"area": "infrastructure", "key": ["1"]}, "leave those fields out"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        made(ConditionFilterOptions, **given).criteria()


def start(**given: str) -> dict[str, Any]:
    return made(StartOptions, **given).arguments()


def test_starts() -> None:
    cursor = Cursor(UUID(int=1), 4, 2)
    assert start() == {}
    assert start(since="0") == {"since": Position(0)}
    assert start(since="0:0") == {"since": Position(0)}
    assert start(since="41:3") == {"since": Position(41, 3)}
    assert start(after=str(cursor)) == {"after": cursor}
    assert start(from_time="1700000000000000") == {"from_time": 1_700_000_000_000_000}
    assert start(from_time="2026-05-04T10:30:00Z") == {"from_time": 1_777_890_600_000_000}


def test_a_time_far_away_is_exact_to_the_microsecond() -> None:
    assert times.time_of("9999-12-31T23:59:59.999999Z", "--to-time") == 253_402_300_799_999_999
    assert times.time_of("1970-01-01T00:00:00.000001Z", "--to-time") == 1


def test_an_age_counts_back_from_now() -> None:
    assert times.time_of("15m", "--to-time", now=1000.0) == 100_000_000


def test_the_epoch_is_the_beginning() -> None:
    assert times.time_of("0", "--to-time") == 0


@pytest.mark.parametrize(
    "text", ["1700000000", "1700000000000", "900", "1.5", "0001-01-01", "9" * 20, "99999999999d"]
)
def test_what_may_be_seconds_or_microseconds_or_lies_beyond_both_is_no_time(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--to-time '.*': not a time; .* microseconds since"):
        times.time_of(text, "--to-time")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"since": "1", "after": str(Cursor(UUID(int=1), 4, 2))},
            "--since and --after both set where to begin",
        ),
        ({"since": "one"}, "--since 'one': not a position; write VERSION or VERSION:INDEX"),
        ({"since": "0:3"}, "--since 0:3: version 0 means the oldest retained version"),
        ({"since": "-1"}, "not a position"),
        ({"since": "1:2:3"}, "not a position"),
        ({"after": "garbage"}, "not a cursor: 'garbage'"),
        ({"from_time": "tomorrow"}, "--from-time 'tomorrow': not a time"),
    ],
)
def test_a_start_that_is_none_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        start(**given)


@pytest.mark.parametrize(
    ("bodies", "content"),
    [
        ("all", Content.BODY),
        ("none", Content.HEADER),
        ("before, after", Content.BEFORE | Content.AFTER),
        ("", Content.HEADER),
    ],
)
def test_bodies(bodies: str, content: Content) -> None:
    assert made(FormOptions, body=bodies).body == content


def test_values_are_decoded_for_a_person_unless_told_otherwise() -> None:
    assert made(FormOptions).decoded
    assert not made(FormOptions, as_json=True).decoded
    assert made(FormOptions, values="decoded", as_json=True).decoded
    assert not made(FormOptions, values="raw").decoded
    with pytest.raises(InvalidRequest, match="--values 'nice'"):
        made(FormOptions, values="nice", as_json=True)


def test_an_unknown_body_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--body 'image': choose from"):
        made(FormOptions, body="before,image")
