"""Bounds of reads as values. Refusals: grpc/test_requests.py; what bounds mean: conformance/test_history.py."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import ParseDict

from tailrace.criteria import Since
from tailrace.errors import InvalidRequest
from tailrace.position import END, MAX_VERSION, Position
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import (
    DemandRequest,
    ReadChangesRequest,
    ReadStateRequest,
    SubscribeRequest,
)
from tailrace.v1.named_subscription_pb2 import CreateSubscriptionRequest
from tailrace_server.api import requests
from tailrace_server.api.grpc.messages import parse
from tailrace_server.api.json_requests import from_json
from tailrace_server.api.requests import KEYS_MAX, criteria, history_bounds, reading

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        (SubscribeRequest, "primaryKey", lambda *lists: {"criteria": lists}),
        (ReadChangesRequest, "entityType", lambda *lists: {"criteria": lists}),
        (ReadChangesRequest, "containerName", lambda *lists: {"criteria": lists}),
        (ReadStateRequest, "primaryKey", lambda one, two: {n: one[n] + two[n] for n in one}),
        (ReadStateRequest, "column", lambda one, two: {n: one[n] + two[n] for n in one}),
        (CreateSubscriptionRequest, "primaryKey", lambda *lists: {"criteria": lists}),
        (DemandRequest, "primaryKey", lambda *lists: {"subscribe": {"criteria": lists}}),
    ],
)
def test_a_request_has_so_many_keys_or_names_in_all_its_lists_and_no_more(
    kind: type[Any], name: str, form: Callable[..., dict[str, Any]]
) -> None:
    half = {name: [str(number) for number in range(KEYS_MAX // 2)]}
    message = from_json(kind, plain(form(half, half)), criteria_max=10)
    assert parse(kind, message.SerializeToString(), criteria_max=10) == message
    more = plain(form(half, {name: [*half[name], "one more"]}))
    with pytest.raises(
        InvalidRequest, match=f"^{name}: 100,001 in one request, the limit is 100,0"
    ):
        from_json(kind, more, criteria_max=10)
    large = kind()
    ParseDict(more, large)
    with pytest.raises(InvalidRequest, match=r"^[a-z_]+: 100,001 in one request"):
        parse(kind, large.SerializeToString(), criteria_max=10)


def plain(form: dict[str, Any]) -> dict[str, Any]:
    """Return a form with its tuples as lists, as JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(form))
    return found


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
