"""Answers around the captures. Against their schemas: test_documents.py."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from tailrace.capture import Heartbeat
from tailrace.criteria import Area, Criteria, Operation
from tailrace.cursor import Cursor
from tailrace.position import Position
from tailrace.v1 import catalog_pb2
from tailrace_server.api import responses
from tailrace_server.live.options import SubscribeAcknowledgement
from tailrace_server.log_cache.frames import Frames

CATALOG = UUID("0f8fad5bd9cb469fa165708677289501")


@pytest.mark.parametrize(("seconds", "milliseconds"), [(5.0, 5_000), (0.0, 1), (0.0001, 1)])
def test_a_heartbeat_never_says_that_the_next_one_comes_within_no_time(
    seconds: float, milliseconds: int
) -> None:
    value = Heartbeat(4, Cursor(CATALOG, 3, 2), 10, 2, seconds)
    assert responses.heartbeat(value).next_within_ms == milliseconds


def test_json_has_numbers_plain_names_and_no_absent_field() -> None:
    """Its criteria have only the fields that say something, and a type that is unknown is null."""
    asked = Criteria(
        area=Area.DATA,
        entity_type=("order",),
        primary_key=("1", "2"),
        operation=(Operation.REMOVE,),
        where={"column": "price", "gt": 100},
        where_version=3,
    )
    acknowledgement = SubscribeAcknowledgement(
        subscription_id="s",
        catalog="shop",
        catalog_uuid=CATALOG,
        start=Position(7, 3),
        resume_cursor=Cursor(CATALOG, 7, 2),
        published=1 << 60,
        heartbeat_interval_s=0.5,
        queue_captures=10,
        message_bytes=20,
        max_message_bytes=30,
        unknown_changes=("order",),
        effective_criteria=(asked,),
    )
    message = responses.acknowledgement(acknowledgement, send_deadline_s=60, request_bytes=40)
    assert responses.as_json(message) == {
        "subscriptionId": "s",
        "catalog": "shop",
        "catalogUuid": str(CATALOG),
        "start": {"version": 7, "index": 3},
        "resumeCursor": f"1.{CATALOG.hex}.7.2.2147483647",
        "publishedVersion": 1 << 60,
        "heartbeatIntervalMs": 500,
        "overrunPolicy": "RESYNC",
        "limits": {
            "queueCaptures": 10,
            "messageBytes": 20,
            "maxMessageBytes": 30,
            "sendDeadlineMs": 60_000,
            "requestBytes": 40,
        },
        "unknownNames": [],
        "unknownChanges": ["order"],
        "effectiveCriteria": [
            {
                "area": "DATA",
                "entityType": ["order"],
                "primaryKey": ["1", "2"],
                "operation": ["REMOVE"],
                "whereTree": {"column": "price", "gt": {"number": "100"}},
                "whereVersion": 3,
            }
        ],
        "catchUp": "ALL",
    }
    named = replace(acknowledgement, name="billing", epoch=3, state_version=0)
    added = responses.as_json(
        responses.acknowledgement(named, send_deadline_s=60, request_bytes=40)
    )
    assert (added["name"], added["epoch"], added["stateVersion"]) == ("billing", 3, 0)
    assert responses.as_json(catalog_pb2.Column(name="a", key=0))["sqlType"] is None


def test_behind_captures_stand_cursor_and_position_of_the_last_one() -> None:
    frames = Frames(b"{},{},", 2, (42, 2, 1))
    tail = responses.after_captures(frames, Cursor(CATALOG, 42, 2, 1, 1_700_000_000_000_000))
    assert json.loads(b'{"captures":[' + frames.data[:-1] + tail) == {
        "captures": [{}, {}],
        "cursor": f"1.{CATALOG.hex}.42.2.1.1700000000000000",
        "position": {"version": 42, "index": 2, "ordinal": 1},
    }
