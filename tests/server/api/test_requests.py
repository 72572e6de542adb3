"""Bounds of reads as values. Refusals: grpc/test_requests.py; what bounds mean: conformance/test_history.py."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailrace.criteria import Since
from tailrace.errors import InvalidRequest
from tailrace.position import END, MAX_VERSION, Position
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import ReadChangesRequest, SubscribeRequest
from tailrace_server.api import requests
from tailrace_server.api.many_keys import reading
from tailrace_server.api.requests import criteria, history_bounds


@pytest.mark.parametrize(
    ("version", "index", "until"),
    [
        (7, None, Position(8, 0)),
        (7, 3, Position(7, 4)),
        (7, END, Position(8, 0)),
        (0, None, Position(1, 0)),
        (MAX_VERSION, None, Position(MAX_VERSION, 0)),
    ],
)
def test_an_inclusive_upper_bound_becomes_the_first_position_behind_it(
    version: int, index: int | None, until: Position
) -> None:
    request = ReadChangesRequest(until_version=version, until_index=index)
    assert history_bounds(request).until == until


def test_bounds_that_are_left_out_are_none() -> None:
    bounds = history_bounds(ReadChangesRequest())
    assert (bounds.lower, bounds.until, bounds.until_time) == (None, None, None)
    assert (bounds.before, bounds.anchor) == (None, None)


def test_version_0_is_a_bound_of_its_own() -> None:
    bounds = history_bounds(ReadChangesRequest(since_version=0, to_time=0, anchor=0))
    assert (bounds.lower, bounds.until_time, bounds.anchor) == (Since(Position(0, 0)), 0, 0)


def test_criteria_that_contradict_themselves_are_named_by_their_place() -> None:
    good = capture_pb2.Criteria(entity_type=["product"])
    bad = capture_pb2.Criteria(entity_type=["product", ""])
    with pytest.raises(InvalidRequest, match=r"criteria\[1\]\.entity_type: an empty name"):
        criteria([good, bad])


@pytest.mark.parametrize("many", [True, False])
async def test_criteria_with_very_many_keys_are_read_beside_the_loop_and_come_out_in_order(
    many: bool,
) -> None:
    """Arrow puts them in order while Python's lock is free, in the order that Python has for texts."""
    odd = ["", "é", "z", "\U0001f980", "\uffff", "a\x00b", "a"]
    keys = [*odd, *(str(number) for number in range(3_000 * many))]
    message = SubscribeRequest(catalog="shop", criteria=[capture_pb2.Criteria(primary_key=keys)])
    threads: list[threading.Thread] = []

    def read(asked: SubscribeRequest) -> requests.Wish:
        threads.append(threading.current_thread())
        return requests.wish(asked)

    async with reading(asyncio.Lock(), read, message) as wish:
        assert wish.criteria[0].primary_key == tuple(sorted(keys))
    assert (threads == [threading.current_thread()]) is not many
