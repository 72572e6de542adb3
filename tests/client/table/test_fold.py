"""A version is whole when its lead says so, or whoever comes behind it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from tailrace import (
    END,
    Area,
    Capture,
    Cursor,
    Heartbeat,
    InvalidRequest,
    Operation,
    SubscriptionBroken,
)
from tailrace.position import TimestampMicros
from tailrace.table.fold import VersionFold

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG = UUID(int=7)


def fold(version: int = 0) -> VersionFold:
    return VersionFold("shop", "product", Cursor(LOG, version, END))


def lead(version: int, counts: Mapping[str, int] | None, *, summed: bool = True) -> Capture:
    document = {} if counts is None else {"counts": counts}
    if summed and counts is not None:
        document["mutation_count"] = sum(counts.values())  # type: ignore[assignment]
    return _capture(version, 0, Area.INFRASTRUCTURE, Operation.TRANSACTION, json.dumps(document))


def row(version: int, index: int = 1, omitted_bytes: int = 0) -> Capture:
    capture = _capture(version, index, Area.DATA, Operation.UPSERT, "{}")
    return capture._replace(omitted_bytes=omitted_bytes)


def columns(version: int) -> Capture:
    return _capture(version, 1, Area.SCHEMA, Operation.UPSERT, '{"entity_type":"product"}')


def _capture(version: int, index: int, area: Area, operation: Operation, after: str) -> Capture:
    name = None if area is Area.INFRASTRUCTURE else "product"
    stamp = TimestampMicros(version * 10)
    return Capture(
        *(LOG, version, index, 0, stamp, area, operation, name, "1", None), after=after.encode()
    )


def beat(version: int, index: int = END) -> Heartbeat:
    return Heartbeat(version, Cursor(LOG, version, index), 0, 0, 1.0)


def steps(found: VersionFold, *message: Capture) -> list[tuple[int, int | None]]:
    """Return how many rows each step has, and which version is whole then."""
    return [
        (len(captures), None if cursor is None else cursor.version)
        for captures, cursor in found.take(message)
    ]


def test_a_version_is_whole_with_the_last_record_that_its_lead_counts() -> None:
    one = fold()
    assert steps(one, lead(1, {"product": 2, "order": 5}), row(1, 1)) == [(1, None)]
    assert steps(one, row(1, 2), lead(2, {"order": 1})) == [(1, 1), (0, 2)]
    assert steps(one, lead(3, {"product": 2}), columns(3), row(3, 2)) == [(1, 3)]
    assert steps(one, lead(4, {})) == [(0, 4)]


def test_cursors_have_the_commit_they_stand_behind() -> None:
    [(_, cursor)] = fold().take((lead(3, {}),))
    assert cursor == Cursor(LOG, 3, END)
    assert cursor is not None
    assert cursor.commit_timestamp == 30


@pytest.mark.parametrize("counts", [None, {}])
def test_without_counts_the_next_version_or_a_heartbeat_says_it(
    counts: dict[str, int] | None,
) -> None:
    one = fold()
    first = lead(1, counts, summed=False)
    assert steps(one, first, row(1, 1), row(1, 2)) == [(2, None)]
    assert steps(one, lead(2, counts, summed=False), row(2)) == [(0, 1), (1, None)]
    assert [cursor for _, cursor in one.take(beat(2, 1))] == []
    assert [cursor for _, cursor in one.take(beat(2))] == [Cursor(LOG, 2, END)]
    assert steps(one, row(3)) == [(1, None)]
    assert [cursor for _, cursor in one.take(beat(5, 3))] == [Cursor(LOG, 3, END)]
    assert one.take(beat(3)) == []


def test_a_heartbeat_moves_on_over_versions_that_have_nothing() -> None:
    assert [cursor for _, cursor in fold(4).take(beat(9))] == [Cursor(LOG, 9, END)]


def test_a_lead_that_counts_too_few_is_no_silent_error() -> None:
    one = fold()
    assert steps(one, lead(1, {"product": 1}), row(1)) == [(1, 1)]
    with pytest.raises(SubscriptionBroken, match="version 1 continues"):
        one.take((row(1, 2),))


def test_a_row_that_came_without_its_image_for_its_size_ends_the_table() -> None:
    with pytest.raises(InvalidRequest, match="'1' of 'product' has 40000000 bytes at 2:1"):
        fold().take((row(2, 1, omitted_bytes=40_000_000),))
