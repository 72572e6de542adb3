"""What the shared options mean, and that each mistake is named by its option."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tailrace.criteria import After, Area, Content, Criteria, FromTime, Operation, Since
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros
from tailrace_server.cli.terminal import options, times

NOTHING: dict[str, Any] = {
    "entity_types": None,
    "keys": None,
    "operations": None,
    "area": None,
    "columns": None,
    "leads": False,
}
LEAD = Criteria(operation=(Operation.TRANSACTION,))


@pytest.mark.parametrize(
    ("given", "criteria"),
    [
        ({}, (Criteria(area=Area.DATA), Criteria(area=Area.SCHEMA))),
        ({"leads": True}, ()),
        ({"entity_types": ["order"]}, (Criteria(entity_type=("order",)),)),
        ({"entity_types": ["order"], "leads": True}, (Criteria(entity_type=("order",)), LEAD)),
        (
            {"keys": ["1", "2"], "operations": ["Remove", "EXPIRE"]},
            (Criteria(primary_key=("1", "2"), operation=(Operation.REMOVE, Operation.EXPIRE)),),
        ),
        ({"columns": ["price"]}, (Criteria(container_name=("price",)),)),
        ({"area": "schema"}, (Criteria(area=Area.SCHEMA),)),
    ],
)
def test_filters_are_one_criteria_and_leads_come_only_when_asked_for(
    given: dict[str, Any], criteria: tuple[Criteria, ...]
) -> None:
    assert options.criteria_of(**{**NOTHING, **given}) == criteria


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"operations": ["update"]}, "--operation: no 'update' here; choose from upsert, remove"),
        ({"area": "sales"}, "--area: no 'sales' here; choose from schema, data, infrastructure"),
        ({"entity_types": [""]}, "an empty name matches nothing"),
        ({"area": "infrastructure", "keys": ["1"]}, "leave those fields out"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        options.criteria_of(**{**NOTHING, **given})


def test_starts() -> None:
    cursor = Cursor(UUID(int=1), 4, 2)
    assert options.start_of(None, None, None) is None
    assert options.start_of("0", None, None) == Since(Position(0))
    assert options.start_of("0:0", None, None) == Since(Position(0))
    assert options.start_of("41:3", None, None) == Since(Position(41, 3))
    assert options.start_of(None, str(cursor), None) == After(cursor)
    assert options.start_of(None, None, "1700000000000000") == FromTime(
        TimestampMicros(1_700_000_000_000_000)
    )
    assert options.start_of(None, None, "2026-05-04T10:30:00Z") == FromTime(
        TimestampMicros(1_777_890_600_000_000)
    )


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
    with pytest.raises(InvalidRequest, match=r"--to-time: not a time: .* microseconds since"):
        times.time_of(text, "--to-time")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (("1", "x", None), "--since and --after both say where to begin"),
        (("one", None, None), "--since: not a position: 'one'; it reads VERSION or VERSION:INDEX"),
        (("0:3", None, None), "--since 0:3: 0 is the oldest version that is kept"),
        (("-1", None, None), "not a position"),
        (("1:2:3", None, None), "not a position"),
        ((None, "garbage", None), "not a cursor: 'garbage'"),
        ((None, None, "tomorrow"), "--from-time: not a time: 'tomorrow'"),
    ],
)
def test_a_start_that_is_none_is_refused(
    start: tuple[str | None, str | None, str | None], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        options.start_of(*start)


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
    assert options.content_of(bodies) == content


def test_values_are_decoded_for_a_person_unless_told_otherwise() -> None:
    assert options.decoded_of(None, as_json=False)
    assert not options.decoded_of(None, as_json=True)
    assert options.decoded_of("decoded", as_json=True)
    assert not options.decoded_of("raw", as_json=False)
    with pytest.raises(InvalidRequest, match="--values 'nice'"):
        options.decoded_of("nice", as_json=True)


def test_an_unknown_body_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--body: no body named 'image'"):
        options.content_of("before,image")
