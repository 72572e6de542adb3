"""Rows that ExtractNewRecordState has taken out of their envelopes."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    INSERT,
    QUARANTINED,
    READ,
    UNPLACED,
    UPDATE,
    position_bytes,
    position_in,
)
from tailrace_server.pipeline.sources.debezium.refusals import FLATTENED, UNKNOWN
from tests.server.pipeline.shapes import decode, line

METADATA: dict[str, Any] = {
    "__deleted": "false",
    "__op": "u",
    "__table": "product",
    "__db": "shop",
    "__schema": "public",
    "__connector": "postgresql",
    "__name": "shop",
    "__lsn": 27,
    "__txId": 571,
    "__source_ts_ms": 1_700_000_000_000,
    "__ts_ms": 1_800_000_000_000,
}


def test_a_row_with_its_metadata_is_a_change_whose_image_has_the_other_columns() -> None:
    text = line({"id": "@", "price": "@", "__mine": 3} | METADATA)
    text = text.replace(b'"@"', b"1", 1).replace(b'"@"', b"1.10")
    [change] = decode(text)
    assert (change.kind, change.operation, change.entity_type) == (CHANGE, UPDATE, "product")
    assert (change.before, change.after) == (None, b'{"id":1,"price":1.10,"__mine":3}')
    assert (change.transaction, change.primary_key) == ("571", "1")
    assert position_in(change.place) == (27, 27, 0)
    assert (change.timestamp, change.source) == (1_700_000_000_000_000, "postgresql:shop")


@pytest.mark.parametrize(
    ("more", "operation"),
    [
        ({"__op": "c"}, INSERT),
        ({"__op": "r"}, READ),
        ({"__op": "d", "__deleted": "true"}, DELETE),
        ({"__op": "d", "__deleted": True}, DELETE),
        ({"__op": "d"}, DELETE),
    ],
)
def test_op_and_deleted_say_what_happened(more: dict[str, Any], operation: int) -> None:
    [change] = decode({"id": 1} | METADATA | more)
    assert change.operation == operation
    image = change.before if operation == DELETE else change.after
    assert image == b'{"id":1}'


@pytest.mark.parametrize("wrap", ["value", "payload"])
def test_a_row_beside_its_key_has_that_key(wrap: str) -> None:
    [change] = decode({"key": {"sku": "x"}, wrap: {"sku": "x"} | METADATA})
    assert (change.kind, change.primary_key) == (CHANGE, "x")


def test_names_of_the_blocks_may_stand_in_front() -> None:
    names = {
        "__op": "u",
        "__source_table": "product",
        "__source_db": "shop",
        "__source_connector": "mysql",
        "__source_file": "binlog.000003",
        "__source_pos": 4,
        "__transaction_id": "a-b:9",
        "__transaction_total_order": 2,
    }
    [change] = decode({"id": 1} | names)
    assert (change.entity_type, change.transaction, change.total_order) == ("product", "a-b:9", 2)
    assert (change.after, position_in(change.place)) == (b'{"id":1}', (3, 4, 0))


def test_without_position_and_transaction_a_row_stands_alone_in_the_order_of_its_file() -> None:
    names = {"__table": "product", "__db": "shop", "__schema": None}
    [change] = decode({"id": 1, "__op": "u"} | names)
    assert position_bytes(change.place) == UNPLACED
    assert change.transaction_id is None


@pytest.mark.parametrize("missing", ["__op", "__table", "__db", "__schema"])
def test_a_row_that_does_not_say_enough_is_set_aside_with_the_options(missing: str) -> None:
    row = {"id": 1} | METADATA
    del row[missing]
    [change] = decode(row)
    assert (change.kind, change.reason) == (QUARANTINED, FLATTENED)
    assert "add.fields=op,connector,name,db,schema,table," in FLATTENED


@pytest.mark.parametrize(
    "columns",
    [
        {"value": None},
        {"payload": None},
        {"value": 12},
        {"value": '{"a":1}'},
        {"op": "m"},
        {"op": "buy", "source": "web"},
        {"status": "END"},
        {"ts_ms": "soon", "before": 3, "transaction": [1]},
        {"key": 5, "value": {"op": "c"}},
        {"specversion": "1.0", "data": "x"},
    ],
)
def test_columns_that_look_like_members_of_a_message_are_columns(columns: dict[str, Any]) -> None:
    """Some of them would make it a tombstone or a logical message, which change nothing."""
    [change] = decode({"id": 1} | columns | METADATA)
    assert (change.kind, change.operation, change.primary_key) == (CHANGE, UPDATE, "1")
    assert change.after == line({"id": 1} | columns)


def test_a_row_without_any_metadata_is_set_aside_also_if_a_column_is_null() -> None:
    for row in ({"id": 1, "name": "x"}, {"id": 1, "value": None}, {"id": 1, "payload": None}):
        [change] = decode(row)
        assert (change.kind, change.reason) == (QUARANTINED, UNKNOWN)
