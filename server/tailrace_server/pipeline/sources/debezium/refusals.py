"""The errors for input that cannot be used, and the recognition of input in other formats.

A *shape* is a text about an unusable format: ``format: advice``. It is determined only for lines that could not
be decoded. It becomes their reason in the quarantine, and at its end an ingest reports the count of each shape.
So shapes are constant texts.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace_server.wal.record.images import members


class Unusable(ValueError):
    """A message cannot be used; the text is the reason in the quarantine."""


class Incompatible(Unusable):
    """A row has a value that its declared type cannot hold."""


class NotDebezium(Unusable):
    """A line is JSON, but not a Debezium message in any supported layout."""


class NoRow(Exception):
    """A message is normal traffic of a connector, but not about a row."""

    def __init__(self, kind: str) -> None:
        """Store the kind of the message, in the singular, such as "heartbeat"."""
        super().__init__(kind)
        self.kind = kind


class SchemaMessage(NoRow):
    """A message is of a schema change topic."""

    def __init__(self, text: bytes) -> None:
        """Store the text of the message."""
        super().__init__("schema change")
        self.text = text


FLATTENED: Final = (
    "a row without its envelope, as ExtractNewRecordState leaves it, that does not say what happened to it or "
    "in which table: set add.fields=op,connector,name,db,schema,table,source.ts_ms,txId,lsn (for lsn what the "
    "connector has) and delete.tombstone.handling.mode=rewrite, or leave the transformation out"
)
UNKNOWN: Final = (
    "JSON, but no message of Debezium (no op, no payload, no value): a row without its envelope needs the "
    "metadata of ExtractNewRecordState, add.fields=op,db,schema,table"
)
AVRO_EVENT: Final = "a CloudEvent whose data is Avro: set value.converter.data.serializer.type=json"
EVENT_WITHOUT_ATTRIBUTES: Final = (
    "a CloudEvent without iodebezium attributes, which say what happened: set "
    "value.converter.extension.attributes.enable=true"
)
MONGODB_PATCH: Final = (
    "a MongoDB update without its document: set capture.mode=change_streams_update_full; the document may also "
    "have been gone when the connector looked it up"
)
CELLS: Final = (
    "a row of Cassandra, whose columns are cells (value, deletion_ts, set), and which lacks "
    "those that did not change: messages of this connector are not supported"
)
YUGABYTE_CELLS: Final = (
    "a row of YugabyteDB, whose columns are cells (value, set), and which may lack those that did not change: "
    "set transforms.pg.type=io.debezium.connector.yugabytedb.transforms.PGCompatible and replica identity FULL"
)

_PRETTY: Final = (
    "JSON over several lines: write one message a line, as jq -c . does; for an array, jq -c .[]"
)
_AVRO_JSON: Final = (
    'Avro\'s JSON, which names the branch of each union ({"string": …}): use JsonConverter, '
    "or avro tools that print plain JSON"
)
_KEY_TEXT: Final = (
    "a TAB behind something that is no key in JSON: use JsonConverter for keys, and of "
    "kafka-console-consumer's options print.key=true alone"
)
_UTF16: Final = "UTF-16: convert it, as iconv -t UTF-8 does"
_REGISTRY: Final = (
    "binary with a schema registry's id in front, as of Avro or Protobuf: use JsonConverter; or "
    "read a topic of Avro with ingest kafka --format debezium-avro"
)
_BINARY: Final = "binary data, as of Protobuf or Avro: use JsonConverter"
_CSV: Final = "CSV: write Debezium's JSON, one message a line"
_TEXT: Final = "plain text, as of a log: write Debezium's JSON, one message a line"

_MAGIC: Final = {
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"\x1f\x8b": "gzip under another name: name the file .gz",
    b"\x28\xb5\x2f\xfd": "zstandard under another name: name the file .zst, or unpack it",
    b"BZh": "bzip2 under another name: name the file .bz2",
    b"\xfd7zXZ": "xz: unpack it",
    b"\x04\x22\x4d\x18": "LZ4 under another name: name the file .lz4, or unpack it",
    b"\xff\x06\x00\x00sNaPpY": "Snappy: unpack it",
    b"PK\x03\x04": "a ZIP archive: unpack it",
    b"Obj\x01": "an Avro file: write Debezium's JSON; tailrace ingest cdcv2 reads Materialize's Avro",
    b"PAR1": "a Parquet file: write Debezium's JSON",
    b"ORC": "an ORC file: write Debezium's JSON",
    b"ARROW1": "an Arrow file: write Debezium's JSON",
    b"SQLite format 3": "an SQLite database: write Debezium's JSON",
}
"""Magic bytes at the start of a file → shape."""

_OTHERS: Final = (
    ({"database", "table", "type", "es", "isDdl"}, "", "Canal"),
    ({"database", "table", "type", "ts", "data"}, "", "Maxwell"),
    ({"metadata"}, '"record-type"', "AWS DMS"),
    ({"source_metadata", "read_method", "payload"}, "", "Google Datastream"),
    ({"_fivetran_synced"}, "", "Fivetran"),
    ({"table", "op_type", "op_ts"}, "", "Oracle GoldenGate"),
    ({"action", "schema", "table"}, "", "wal2json"),
    ({"change"}, '"kind"', "wal2json"),
    ({"eventName", "dynamodb"}, "", "DynamoDB Streams"),
    ({"operationType", "ns"}, "", "MongoDB change streams"),
)
"""Other formats: required members, a required piece of text, and the format's name. The first match wins."""
_OTHER_SHAPES: Final = {
    name: f"the format of {name}, not of Debezium: only Debezium's JSON is supported"
    for *_, name in _OTHERS
}

SHAPES: Final = frozenset(
    (
        *(FLATTENED, UNKNOWN, AVRO_EVENT, EVENT_WITHOUT_ATTRIBUTES, MONGODB_PATCH, CELLS),
        *(YUGABYTE_CELLS, _PRETTY, _AVRO_JSON, _KEY_TEXT, _UTF16, _REGISTRY, _BINARY, _CSV, _TEXT),
        *_MAGIC.values(),
        *_OTHER_SHAPES.values(),
    )
)
"""All shapes."""

_PRETTY_LINE: Final = re.compile(
    rb'\s*(?:[\[{]|[\]}][\]},{\s]*|"(?:[^"\\]|\\.)*"\s*:.*'
    rb'|(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)\s*,?)\s*',
    re.DOTALL,
)
"""A line of pretty-printed JSON: a bracket, a member, or a value of an array alone."""
_UNION: Final = re.compile(
    rb'"(?:ts_ms|before|after|transaction|sequence|txId|lsn)"\s*:\s*\{\s*'
    rb'"(?:long|int|string|boolean|double|float|bytes|[\w.]+\.(?:Value|block|Block|Envelope))"\s*:'
)
_LOG: Final = re.compile(rb"\b(?:TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\b")
_CONSUMER: Final = re.compile(rb"(?:CreateTime|LogAppendTime|Partition|Offset|NO_\w+|Headers):?")
_HEAD_BYTES: Final = 512
_CSV_COLUMNS_MIN: Final = 3


def file_shape(head: bytes) -> str | None:
    """Return the shape of a file by its magic bytes; None if the first bytes are text or unknown."""
    start = head[:_HEAD_BYTES]
    if start.isascii() and start.decode().isprintable():
        return None
    return next((shape for magic, shape in _MAGIC.items() if head.startswith(magic)), None)


def shape_of(line: bytes) -> str | None:
    """Return the shape of a line that is not a message; None if it seems to be a damaged message."""
    head = line[:_HEAD_BYTES]
    # In UTF-16, every second byte of Latin letters is zero.
    zeros = sorted((head[::2].count(0), head[1::2].count(0)))
    if zeros[0] == 0 < zeros[1] and 3 * zeros[1] >= len(head) // 2:
        return _UTF16
    if head[:1] == b"\0":
        return _REGISTRY
    try:
        line.decode()
    except UnicodeDecodeError:
        return _BINARY if _is_binary(head) else None
    # From the most specific format to the least: JSON first, then a key before a TAB, binary data, text, CSV.
    text = line.strip()
    if _PRETTY_LINE.fullmatch(text):
        return _PRETTY
    if text[:1] == b"{":
        return _json_shape(line)
    if _CONSUMER.match(text) or b"\t{" in text:
        return _KEY_TEXT
    if _is_binary(head):
        return _BINARY
    if text[:1] == b"[":  # A line of a log file, or a damaged array; only the latter has quotes.
        return None if b'"' in text else _TEXT
    divided = max(text.count(mark) - text.count(mark + b" ") for mark in (b",", b";", b"\t", b"|"))
    return _CSV if divided + 1 >= _CSV_COLUMNS_MIN and not _LOG.search(head) else _TEXT


def _json_shape(text: bytes) -> str | None:
    """Return the foreign format that a line which begins like a JSON object has; None if none is recognized."""
    try:
        names = members(text).keys()
    except msgspec.DecodeError:
        return None
    other = next(
        (name for marks, piece, name in _OTHERS if marks <= names and piece.encode() in text), None
    )
    if other is not None:
        return _OTHER_SHAPES[other]
    return _AVRO_JSON if _UNION.search(text) else None


def _is_binary(head: bytes) -> bool:
    controls = sum(byte < 32 and byte not in b"\t\r\n\x1b" for byte in head)
    undecodable = head.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}")
    return controls + undecodable > max(1, len(head) // 20)
