"""The demo's subscribers and how their output is read. Real ones: tests/process/test_demo.py."""

from __future__ import annotations

import json
from uuid import UUID

from tailrace import Column, Schema
from tailrace.capture import Capture, Heartbeat
from tailrace.criteria import Area, ContainerType, Operation
from tailrace.cursor import Cursor
from tailrace.position import TimestampMicros
from tailrace_server.cli.terminal import capture_lines
from tailrace_server.demo.watchers import Watcher, capture_of, find, watchers_for

CATALOG = UUID("0f8fad5bd9cb469fa165708677289501")
CAPTURES = (
    Capture(
        *(CATALOG, 3, 0, 0, TimestampMicros(5), Area.INFRASTRUCTURE, Operation.TRANSACTION),
        *(None, None, None),
    ),
    Capture(
        *(CATALOG, 3, 1, 2, TimestampMicros(5), Area.DATA, Operation.UPSERT, "product", "17"),
        *(("price",), ContainerType.PRICE, "price"),
        before=b'{"price":1.0}',
        after=b'{"price":2.0}',
    ),
)


def test_what_a_subscriber_prints_is_read_back_equal() -> None:
    watcher = Watcher("all", "green", "everything", ())
    lines = [watcher.take(capture_lines.render_line(each)) for each in CAPTURES]
    assert tuple(map(capture_of, lines)) == CAPTURES
    assert watcher.received == [(3, 0, 0), (3, 1, 2)]
    assert watcher.images == [hash(None), hash(b'{"price":2.0}')]


def test_heartbeats_and_notes_are_no_captures() -> None:
    watcher = Watcher("all", "green", "everything", ())
    watcher.take(capture_lines.render_heartbeat(Heartbeat(9, Cursor(CATALOG, 8, 2), 10, 2, 5.0)))
    watcher.take(json.dumps({"does": f"subscription {CATALOG} on shop"}).encode())
    assert (watcher.reached, watcher.subscription_id, watcher.received) == (8, str(CATALOG), [])
    assert find([watcher], str(CATALOG)) is watcher
    assert find([watcher], "another") is None


def test_subscribers_ask_for_what_any_catalog_holds() -> None:
    schema = Schema(1, {"one": (Column("id"), Column("name"))})
    found = {name: each for each in watchers_for(schema) for name in [each.name]}
    assert found["names"].arguments == ("--entity-type", "one", "--column", "name")
    assert json.loads(found["events"].arguments[1]) == [
        {"entityType": ["one"], "containerName": ["name"]}
    ]
