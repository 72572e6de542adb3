"""One line of each connector, in the form that its documentation shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    QUARANTINED,
    UNPLACED,
    UPDATE,
    Change,
    position_bytes,
    position_in,
)
from tailrace_server.pipeline.sources.debezium.message import restated
from tailrace_server.pipeline.sources.debezium.refusals import CELLS, MONGODB_PATCH, YUGABYTE_CELLS
from tests.server.pipeline.shapes import decode, envelope

TIMES = {"ts_ms": 1_700_000_000_000, "ts_us": 1_700_000_000_000_000}
ROW = {"id": 1, "name": "cup"}
VGTID = (
    '[{"keyspace":"commerce","shard":"80-","gtid":"MariaDB/0-54610504-47"},'
    '{"keyspace":"commerce","shard":"-80","gtid":"MariaDB/0-1592148-46"}]'
)
LSID = '{"id": {"$binary": "FA7YEzXgQXSX9OxmzllH2w==","$type": "04"}}'


def change_of(connector: str, source: dict[str, Any], **more: Any) -> Change:
    block = {"version": "3.0.0.Final", "connector": connector, "name": "shop", "snapshot": "false"}
    message = envelope("u", block | TIMES | source, before=ROW, after=ROW | {"name": "jug"}) | more
    [change] = decode({"schema": None, "payload": message})
    return change


@pytest.mark.parametrize(
    ("connector", "source", "transaction", "position"),
    [
        (
            "postgresql",
            {"db": "shop", "schema": "public", "table": "product", "txId": 555, "lsn": 24023128}
            | {"sequence": '["24023119","24023128"]', "xmin": None},
            "555",
            (24023119, 24023128, 0),
        ),
        (
            "mysql",
            {"db": "shop", "table": "product", "server_id": 223344, "file": "mysql-bin.000003"}
            | {"gtid": "24bc7850-2c16-11e6-a073-0242ac110002:7", "pos": 484, "row": 0},
            "24bc7850-2c16-11e6-a073-0242ac110002:7",
            (3, 484, 0),
        ),
        (
            "mariadb",
            {"db": "shop", "table": "product", "server_id": 223344, "file": "mariadb-bin.000003"}
            | {"gtid": "0-1-42", "pos": 484, "row": 0},
            "0-1-42",
            (3, 484, 0),
        ),
        (
            "sqlserver",
            {"db": "shop", "schema": "dbo", "table": "product", "event_serial_no": 2}
            | {"change_lsn": "00000027:00000ac0:0002", "commit_lsn": "00000027:00000ac0:0007"},
            "00000027:00000ac0:0007",
            (0x2700000AC0, 0x0007_0000_0027_0000, 0x0AC0_0002_0000_0002),
        ),
        (
            "db2",
            {"db": "shop", "schema": "DB2INST1", "table": "PRODUCT"}
            | {"change_lsn": "00000027:00000ac0:0002", "commit_lsn": "00000027:00000ac0:0007"},
            "00000027:00000ac0:0007",
            (0x2700000AC0, 0x0007_0000_0027_0000, 0x0AC0_0002_0000_0000),
        ),
        (
            "oracle",
            {"db": "SHOP", "schema": "DEBEZIUM", "table": "PRODUCT", "txId": "6.28.807"}
            | {
                "scn": "2122185",
                "commit_scn": "2122186",
                "ssn": 1,
                "rs_id": "001234.00012345.0124",
            },
            "6.28.807",
            (2122186, 2122185, 1),
        ),
        (
            "vitess",
            {"db": "", "keyspace": "commerce", "table": "product", "shard": "-80", "vgtid": VGTID},
            VGTID,
            (0, 0, 0),
        ),
        (
            "yugabytedb",
            {"db": "shop", "schema": "public", "table": "product", "lsn": "1:338::0:0"}
            | {"txId": "e6f1d0a4-23e1-4b1b-9d3a-2d4c8f6b7a10", "sequence": '[null,"1:338::0:0"]'},
            "e6f1d0a4-23e1-4b1b-9d3a-2d4c8f6b7a10",
            (0, 0, 0),
        ),
    ],
)
def test_a_row_is_in_its_transaction_at_its_position(
    connector: str, source: dict[str, Any], transaction: str, position: tuple[int, int, int]
) -> None:
    change = change_of(connector, source)
    assert (change.kind, change.operation, change.primary_key) == (CHANGE, UPDATE, "1")
    assert (change.entity_type or "").lower() == "product"
    assert (change.transaction, position_in(change.place)) == (transaction, position)
    [again] = decode(restated(change))
    expected = change._replace(place=b"", total_order=again.total_order, key_names=None)
    assert again._replace(place=b"") == expected
    assert position_bytes(again.place) == position_bytes(change.place)


def mongodb(op: str, **images: Any) -> dict[str, Any]:
    source: dict[str, Any] = {"connector": "mongodb", "name": "shop", "db": "inventory"}
    source |= {"rs": "rs0", "collection": "customers", "ord": 31, "lsid": LSID, "txnNumber": 1}
    return {"op": op, "source": source | TIMES, **images}


BEFORE = '{"_id": {"$numberLong": "1004"},"name": "Änne","price": 1.10}'
AFTER = '{"_id": {"$numberLong": "1004"},"name": "Änne","price": 1.20}'


def test_a_document_of_mongodb_is_the_image_byte_for_byte() -> None:
    key = {"id": '{"$oid": "596e275826f08b2730779e1f"}'}
    message = mongodb("u", before=BEFORE, after=AFTER, updateDescription={"removedFields": None})
    for ascii_only in (True, False):
        value = json.loads(json.dumps(message, ensure_ascii=ascii_only))
        [change] = decode({"key": {"schema": {}, "payload": key}, "value": value})
        assert (change.before, change.after) == (BEFORE.encode(), AFTER.encode())
        assert (change.entity_type, change.operation) == ("customers", UPDATE)
        assert change.primary_key == '{"$oid": "596e275826f08b2730779e1f"}'
        assert change.transaction == f"{LSID}:1"
        assert position_bytes(change.place) == UNPLACED
        [again] = decode(restated(change))
        assert (again.before, again.after) == (change.before, change.after)
        assert again.primary_key == change.primary_key


def test_a_document_without_a_message_key_has_the_key_that_it_holds() -> None:
    [gone] = decode(mongodb("d", before='{"_id": 7, "id": 8}', after=None))
    assert (gone.operation, gone.primary_key) == (DELETE, "7")


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ({"updateDescription": {"updatedFields": '{"a": 1}'}, "after": None}, MONGODB_PATCH),
        ({"patch": '{"$set": {"a": 1}}'}, MONGODB_PATCH),
        ({"after": "text"}, "an image is a text that holds no document"),
        ({"after": '{"a": }'}, "malformed"),
    ],
)
def test_a_document_that_is_not_whole_is_refused(images: dict[str, Any], reason: str) -> None:
    [change] = decode(mongodb("u", **images))
    assert change.kind == QUARANTINED
    assert reason in (change.reason or "")


def test_rows_of_cells_are_refused_by_the_connectors_name() -> None:
    cell = {"value": 1001, "deletion_ts": None, "set": True}
    source: dict[str, Any] = {
        "cluster": "c",
        "keyspace": "inventory",
        "table": "customers",
        "pos": 54,
    }
    source["file"] = "commitlog-6-123456.log"
    cassandra = change_of("cassandra", source, before=None, after={"id": cell, "name": None})
    assert (cassandra.kind, cassandra.reason) == (QUARANTINED, CELLS)
    image = {"id": {"value": 1, "set": True}, "name": None}
    yugabyte = change_of("yugabytedb", {"table": "product"}, before=None, after=image)
    assert (yugabyte.kind, yugabyte.reason) == (QUARANTINED, YUGABYTE_CELLS)


def test_only_mongodbs_images_are_texts() -> None:
    change = change_of("postgresql", {"table": "product"}, after='{"id": 1}')
    assert (change.kind, change.reason) == (QUARANTINED, "an image is not a JSON object")
