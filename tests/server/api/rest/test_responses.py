"""Answers around the captures. Against their schemas: test_documents.py; here against gRPC's messages."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.json_format import MessageToDict

from tailrace.capture import Heartbeat
from tailrace.cursor import Cursor
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.api import json_responses
from tailrace_server.api.grpc import messages as grpc_responses
from tailrace_server.live.options import SubscribeAcknowledgement
from tailrace_server.log_cache.frames import Frames

CATALOG = UUID("0f8fad5bd9cb469fa165708677289501")


def in_json(data: bytes, name: str) -> Any:
    """Return a member of a gRPC message in protobuf's JSON form."""
    message = getattr(SubscribeResponse.FromString(data), name)
    return MessageToDict(message, always_print_fields_with_no_presence=True)


def as_text(value: Any) -> Any:
    """Return a value with its numbers as text: protobuf writes those of 64 bits so."""
    if isinstance(value, dict):
        return {name: as_text(each) for name, each in value.items()}
    return str(value)


@pytest.mark.parametrize(("name", "epoch"), [("", 0), ("billing", 3)])
def test_an_acknowledgement_says_the_same_as_over_grpc(name: str, epoch: int) -> None:
    value = SubscribeAcknowledgement(
        subscription_id="s",
        catalog="shop",
        catalog_uuid=CATALOG,
        start=Position(7, 3),
        resume_cursor=Cursor(CATALOG, 7, 2),
        published=9,
        heartbeat_interval_s=0.5,
        queue_captures=10,
        message_bytes=20,
        max_message_bytes=30,
        unknown_names=("odrer",),
        unknown_changes=("order",),
        name=name,
        epoch=epoch,
    )
    found = json_responses.acknowledgement(value, send_deadline_s=60, request_bytes=40)
    sent = grpc_responses.acknowledgement(value, send_deadline_s=60, request_bytes=40)
    expected = in_json(sent, "acknowledgement")
    expected["catchUp"] = expected["catchUp"].removeprefix("CATCH_UP_")
    expected["overrunPolicy"] = expected["overrunPolicy"].removeprefix("OVERRUN_POLICY_")
    assert expected.pop("features") == []  # none yet: JSON leaves it out
    assert as_text(found) == as_text(expected)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(5.0, 5_000), (0.0, 1), (0.0001, 1)])
def test_a_heartbeat_says_the_same_as_over_grpc(seconds: float, milliseconds: int) -> None:
    """And never that the next one comes within no time at all."""
    value = Heartbeat(4, Cursor(CATALOG, 3, 2), 10, 2, seconds, lost_in_s=2.5, lost_in_bytes=17)
    found = json_responses.heartbeat(value)
    assert found["nextWithinMs"] == milliseconds
    assert as_text(found) == as_text(in_json(grpc_responses.heartbeat(value), "heartbeat"))


def test_behind_captures_stand_cursor_and_position_of_the_last_one() -> None:
    frames = Frames(b"{},{},", 2, (42, 2, 1))
    tail = json_responses.after_captures(frames, Cursor(CATALOG, 42, 2, 1, 1_700_000_000_000_000))
    assert json.loads(b'{"captures":[' + frames.data[:-1] + tail) == {
        "captures": [{}, {}],
        "cursor": f"1.{CATALOG.hex}.42.2.1.1700000000000000",
        "position": {"version": 42, "index": 2, "ordinal": 1},
    }
