"""What comes in place of messages is told by name; lines that are merely damaged are not."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tailrace_server.pipeline.input.change import QUARANTINED
from tailrace_server.pipeline.sources.debezium.refusals import SHAPES, shape_of
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tests.server.pipeline.shapes import decode, envelope, line, postgres

MESSAGE = envelope("c", postgres(1, 1), after={"id": 1, "tags": ["a", "b", 1.5]})
AVRO_JSON = MESSAGE | {
    "ts_ms": {"long": 1},
    "after": {"shop.public.product.Value": {"id": 1, "name": {"string": "cup"}}},
}


def others(name: str, message: dict[str, Any]) -> tuple[str, bytes]:
    return f"the format of {name}, not of Debezium", line(message)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("JSON over several lines", json.dumps(MESSAGE, indent=2).encode()),
        ("JSON over several lines", json.dumps([MESSAGE] * 2, indent="\t").encode()),
        ("Avro's JSON", line(AVRO_JSON)),
        ("a TAB behind something", b"Struct{id=1}\t" + line(MESSAGE)),
        ("a TAB behind something", b"CreateTime:1700\t{}\t" + line(MESSAGE)),
        ("UTF-16", json.dumps(MESSAGE).encode("utf-16")),
        ("UTF-16", json.dumps(MESSAGE, indent=1).encode("utf-16-be")),
        ("gzip under another name", gzip.compress(line(MESSAGE) * 99 + bytes(range(256)))),
        ("an Avro file", b"Obj\x01\x04\x14avro.codec\x08null\n\x80\x90"),
        ("a Parquet file", b"PAR1\x15\x04\x15\n\xff\xfe\x00\x01"),
        ("an ORC file", b"ORC\x08\x03\n\x80\x80"),
        ("binary with a schema registry's id", b"\x00\x00\x00\x00\x01\x02\x0ecup"),
        ("binary data", b"\x0a\x03cup\x10\x01\x1d\x00\x80\xff\x42"),
        ("CSV", b'id,name,price\n1,"cup",2.5\n2,"jug, old",3'),
        ("plain text", b"2026-01-02 10:00:00,123 INFO a,b started, fine"),
        ("plain text", b"[main] INFO started"),
        ("plain text", b"hello"),
        others("Maxwell", {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {}}),
        others(
            "Canal",
            {"data": [], "database": "d", "table": "t", "type": "INSERT", "es": 1, "isDdl": False}
            | {"id": 5, "ts": 2, "sql": "", "old": None},
        ),
        others(
            "AWS DMS",
            {"data": {"id": 1}, "metadata": {"record-type": "data", "operation": "insert"}},
        ),
        others(
            "Google Datastream",
            {"source_metadata": {}, "read_method": "x", "payload": {"id": 1}, "uuid": "u"},
        ),
        others("Fivetran", {"id": 1, "_fivetran_synced": "2026", "_fivetran_deleted": False}),
        others("Oracle GoldenGate", {"table": "T", "op_type": "I", "op_ts": "2026", "pos": "0"}),
        others("wal2json", {"action": "I", "schema": "public", "table": "t", "columns": []}),
        others("wal2json", {"change": [{"kind": "insert", "table": "t"}]}),
        others("DynamoDB Streams", {"eventName": "INSERT", "dynamodb": {}}),
        others("MongoDB change streams", {"operationType": "insert", "ns": {}, "_id": {}}),
    ],
)
def test_each_shape_is_the_reason_of_all_its_lines(name: str, data: bytes) -> None:
    lines = data.split(b"\n")
    changes = decode(*lines)
    assert {change.kind for change in changes} == {QUARANTINED}
    [reason] = {change.reason for change in changes}
    assert (reason or "").startswith(name)
    assert Debezium().tells_shape(reason or "")


@pytest.mark.parametrize(
    "text",
    [
        line(MESSAGE)[:-9],
        b'{"op":"c","after":{"t":"\xff"}}',
        b'[{"op":"c"',
        line(MESSAGE | {"ts_ms": -(2**70)}),
        line(MESSAGE | {"source": postgres(-1)}),
        line(MESSAGE | {"op": "x"}),
    ],
)
def test_a_damaged_message_has_no_shape_but_a_reason(text: bytes) -> None:
    [change] = decode(text)
    assert change.kind == QUARANTINED
    assert not Debezium().tells_shape(change.reason or "")
    assert change.reason


def test_a_text_that_begins_like_a_file_is_no_such_file() -> None:
    [change] = decode(b"ORCHID,1,2")
    assert (change.reason or "").startswith("CSV")


def test_every_shape_says_what_to_do() -> None:
    assert all(": " in shape for shape in SHAPES)
    assert shape_of(b"{}") is None
