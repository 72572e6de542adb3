"""CloudEvents around messages, as Debezium's converter and others write them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tailrace_server.pipeline.input.change import CHANGE, DELETE, QUARANTINED, UPDATE, position_in
from tailrace_server.pipeline.sources.debezium.refusals import AVRO_EVENT, EVENT_WITHOUT_ATTRIBUTES
from tests.server.pipeline.shapes import decode, envelope, line, postgres

EVENT = {
    "id": "name:shop;lsn:29274832;txId:565",
    "source": "/debezium/postgresql/shop",
    "specversion": "1.0",
    "type": "io.debezium.connector.postgresql.DataChangeEvent",
    "time": "2020-01-13T13:55:39.738Z",
    "datacontenttype": "application/json",
    "iodebeziumop": "u",
    "iodebeziumversion": "3.0.0.Final",
    "iodebeziumconnector": "postgresql",
    "iodebeziumname": "shop",
    "iodebeziumtsms": "1578923739738",
    "iodebeziumsnapshot": "false",
    "iodebeziumdb": "shop",
    "iodebeziumsequence": '["29274800","29274832"]',
    "iodebeziumschema": "s1",
    "iodebeziumtable": "a",
    "iodebeziumtxId": "565",
    "iodebeziumlsn": "29274832",
    "iodebeziumxmin": None,
    "iodebeziumtxid": "565:29274832",
    "iodebeziumtxtotalorder": "1",
    "iodebeziumtxdatacollectionorder": "1",
}
IMAGES = b'{"before": {"id": 7, "price": 1.0}, "after": {"id": 7, "price": 1.10}}'


def event(data: bytes, **more: Any) -> bytes:
    return line({**EVENT, **more, "data": "@"}).replace(b'"@"', data)


@pytest.mark.parametrize(
    "text",
    [
        event(IMAGES),
        event(b'{"schema": {}, "payload": %b}' % IMAGES),
        b'{"schema": {}, "payload": %b}' % event(IMAGES),
        b'{"key": {"id": 7}, "value": %b}' % event(IMAGES),
    ],
)
def test_an_event_of_debeziums_converter_is_the_change_that_it_was_made_of(text: bytes) -> None:
    [change] = decode(text)
    assert (change.kind, change.operation, change.entity_type) == (CHANGE, UPDATE, "a")
    assert (change.before, change.after) == (
        b'{"id": 7, "price": 1.0}',
        b'{"id": 7, "price": 1.10}',
    )
    assert (change.transaction, change.transaction_id) == ("565", "565:29274832")
    assert (change.total_order, change.primary_key) == (1, "7")
    assert position_in(change.place) == (29274800, 29274832, 0)
    assert (change.timestamp, change.source) == (1578923739738_000, "postgresql:shop")


def test_an_event_of_another_connector_has_the_position_of_that() -> None:
    names = {name: value for name, value in EVENT.items() if not name.startswith("iodebeziumtx")}
    names |= {"iodebeziumconnector": "sqlserver", "iodebeziumlsn": None, "iodebeziumop": "d"}
    names |= {"iodebeziumcommitlsn": "00000025:00000d98:00a2", "iodebeziumeventserialno": "1"}
    text = line({**names, "data": {"before": {"id": 7}, "after": None}})
    [change] = decode(text)
    assert (change.operation, change.transaction) == (DELETE, "00000025:00000d98:00a2")
    assert position_in(change.place)[0] == 0x2500000D98


def test_an_event_may_hold_a_whole_message_as_json_as_text_or_in_base64() -> None:
    plain = {"id": "1", "specversion": "1.0", "source": "/x", "type": "change"}
    message = envelope("c", postgres(5, 7), after={"id": 1})
    [expected] = decode(message)
    encoded = base64.b64encode(line(message)).decode()
    for content in (
        {"data": message},
        {"data": line(message).decode()},
        {"data": {"schema": None, "payload": message}},
        {"data_base64": encoded},
    ):
        assert decode({**plain, **content}) == [expected]


def test_an_event_that_does_not_say_what_happened_is_refused_by_name() -> None:
    attributes = {n: v for n, v in EVENT.items() if not n.startswith("iodebezium")}
    avro = EVENT | {"datacontenttype": "application/avro", "data": "AAAAAAEAAgICAg=="}
    for text, reason in (
        ({**attributes, "data": {"before": None, "after": {"id": 1}}}, EVENT_WITHOUT_ATTRIBUTES),
        (avro, AVRO_EVENT),
        ({**EVENT, "data_base64": "!"}, "data_base64 of a CloudEvent is not base64"),
        ({**EVENT, "data_base64": None}, "data_base64 of a CloudEvent is not base64"),
    ):
        [change] = decode(text)
        assert change.kind == QUARANTINED
        assert (change.reason or "").startswith(reason)


def test_a_logical_message_in_an_event_is_about_no_row() -> None:
    assert decode(event(b'{"before": null, "after": null}', iodebeziumop="m")) == []
