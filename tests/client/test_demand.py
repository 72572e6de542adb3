"""Demand over several connections. Top-up and refusals on a real server: test_subscription.py."""

from __future__ import annotations

import pytest

from tailrace.link import DEMAND_MAX, Demand, DemandRequests, subscribing
from tailrace.v1.change_capture_pb2 import DemandRequest, SubscribeRequest, SubscribeSystemRequest


async def test_a_new_connection_asks_for_what_is_still_owed_in_its_first_message() -> None:
    demand = Demand()
    demand.request(100)
    demand.received = 30
    requests = DemandRequests(demand, subscribing(SubscribeRequest(catalog="shop")))
    first = DemandRequest.FromString(await anext(requests))
    assert (first.subscribe.catalog, first.request) == ("shop", 70)


async def test_requests_of_one_turn_are_sent_as_one() -> None:
    demand = Demand()
    requests = DemandRequests(demand, subscribing(SubscribeSystemRequest()))
    first = DemandRequest.FromString(await anext(requests))
    assert first.HasField("subscribe_system")
    assert not first.HasField("request")
    demand.request(3)
    demand.request(4)
    assert DemandRequest.FromString(await anext(requests)).request == 7
    requests.close()
    with pytest.raises(StopAsyncIteration):
        await anext(requests)


def test_demand_saturates_above_what_was_received() -> None:
    demand = Demand()
    demand.received = 5
    demand.request(DEMAND_MAX)
    demand.request(DEMAND_MAX)
    assert demand.requested == 5 + DEMAND_MAX
