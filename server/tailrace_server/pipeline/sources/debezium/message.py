"""One Debezium message: how it is unwrapped from its line, and its transaction, position and time.

A line may wrap a message together with its schema, its key, or both, each as JSON or as a string with JSON in
it. Only the members that identify the row and its transaction are parsed; images are copied as raw bytes.

Source: Debezium documentation, PostgreSQL and MySQL connectors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
import orjson

from tailrace_server.pipeline.catalog.newest_positions import (
    ENDED,
    FIRST,
    LAST,
    MORE,
    base_and_server,
    log_name,
)
from tailrace_server.pipeline.input.change import NO_POSITION, UNORDERED, position_in
from tailrace_server.pipeline.sources.debezium.names import levels_in
from tailrace_server.pipeline.sources.debezium.refusals import (
    UNKNOWN,
    NoRow,
    NotDebezium,
    SchemaMessage,
    Unusable,
)
from tailrace_server.pipeline.sources.debezium.unwrapped import (
    content_of,
    envelope_of_row,
    is_event,
    is_flattened,
)
from tailrace_server.wal.record.images import members

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.change import Change

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_MARKS: Final = {
    "first": FIRST,
    "first_in_data_collection": FIRST,
    "last_in_data_collection": LAST,
    "last": LAST | ENDED,
}
_DIGITS_AT_END = re.compile(r"(\d{1,18})$", re.ASCII)
_LSN: Final = re.compile(r"([0-9a-f]{8}):([0-9a-f]{8}):([0-9a-f]{4})", re.ASCII | re.IGNORECASE)
"""An LSN of SQL Server: virtual log file, block and slot, in hex. LSNs of Db2 have the same form."""
_LSN_BITS: Final = 80
_NUMBER: Final = 2**64 - 1
_SCN: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_NULL: Final = b"null"
_SALVAGE: Final = (
    re.compile(rb'"transaction"\s*:\s*\{[^{}]*?"id"\s*:\s*"((?:[^"\\]|\\.)+)"'),
    re.compile(rb'"txId"\s*:\s*"?(\w+)'),
    re.compile(rb'"gtid"\s*:\s*"([^"\\]+)"'),
)


class SourceBlock(msgspec.Struct):
    """The members of the source block that identify the row, its transaction and its position."""

    connector: str | None = None
    name: str | None = None
    db: str | None = None
    keyspace: str | None = None
    """The database; Vitess and Cassandra call it keyspace."""
    schema: str | None = None
    table: str | None = None
    collection: str | None = None
    """The table; MongoDB calls it collection."""
    ts_us: _Int64 | None = None
    ts_ms: _Int64 | None = None
    txId: int | str | None = None
    lsn: _Natural | str | None = None
    sequence: str | None = None
    gtid: str | None = None
    server_id: int | str | None = None
    file: str | None = None
    pos: _Natural | None = None
    row: _Natural | None = None
    commit_lsn: str | int | None = None
    change_lsn: str | int | None = None
    event_serial_no: _Natural | None = None
    commit_scn: str | int | None = None
    scn: str | int | None = None
    snapshot: str | bool | None = None
    ssn: _Natural | None = None
    vgtid: str | None = None
    lsid: str | None = None
    txnNumber: int | None = None


class TransactionBlock(msgspec.Struct):
    """The transaction block of an envelope. Some converters write the numbers as strings."""

    id: str | None = None
    total_order: int | str | None = None


class DebeziumMessage(msgspec.Struct):
    """The members of all kinds of messages and wrappers; absent members are empty."""

    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    key: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()
    op: str | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    source: SourceBlock | None = None
    transaction: TransactionBlock | None = None
    ts_ms: _Int64 | None = None
    status: str | None = None
    id: msgspec.Raw = msgspec.Raw()
    event_count: _Natural | None = None
    undecodable: str | None = None
    """Why a reader of messages could not make one of this; see `kafka.formats`."""


_HEARTBEAT: Final = frozenset(("ts_ms", "ts_us", "ts_ns"))
_METADATA: Final = _HEARTBEAT | {"status", "id", "event_count", "data_collections"}
"""Members of transaction metadata. ``status`` alone does not prove it: a bare row may have such a column."""
_STATEMENT: Final = frozenset(("ddl", "tableChanges"))
_SCHEMA_CHANGE: Final = (
    _HEARTBEAT | _STATEMENT | {"source", "position", "databaseName", "schemaName"}
)
"""Members of messages in the schema change topics of MySQL, SQL Server, Oracle and Db2."""

_WRAPPER: Final = frozenset(
    (
        *("key", "value", "payload", "schema", "topic", "partition", "offset", "headers"),
        *(
            "timestamp",
            "timestampType",
            "tstype",
            "ts",
            "broker",
            "key_schema_id",
            "value_schema_id",
        ),
    )
)
"""Members of wrappers: a null is a tombstone only among these; a bare row may have a column ``value``."""

Unwrapped: TypeAlias = "tuple[DebeziumMessage | None, bytes | None, bytes]"
"""A tuple of message, message key, and schema block."""

_decode_message = msgspec.json.Decoder(DebeziumMessage).decode


def unwrap(line: bytes) -> Unwrapped:
    """Return the innermost message of a line, its message key, and its schema block.

    The message is None for a tombstone or null. The key is None if there is none, and ``null`` if it is null.
    The schema block is empty if there is none.

    Raises:
        NoRow: The line is a heartbeat, a schema change or a logical message.
        Unusable: The line is not a Debezium message.
    """
    try:
        return _unwrap(line)
    except (msgspec.DecodeError, orjson.JSONDecodeError, Unusable):
        # Try CloudEvents and flattened rows only after the usual forms: the columns of a flattened row may look
        # like members of an envelope, and a CloudEvent's ``source`` is a text, which fails to decode.
        found = _put_together(line)
        if found is None:
            raise
        return found


def _unwrap(line: bytes) -> Unwrapped:
    key = None
    block = b""
    text = outer = line
    for _ in range(4):  # {"key", "value"} around {"schema", "payload"}, each perhaps in a string
        if text.strip() == _NULL:
            if text is not outer and not members(outer).keys() <= _WRAPPER:
                raise NotDebezium(UNKNOWN)
            return None, key, block
        message = _decode_message(text)
        if _given(message.key):
            key = _one_key(key, _unquoted_key(bytes(message.key)))
        if message.op is not None and message.source is not None:
            if message.op == "m":
                raise NoRow("logical message")
            return message, key, block
        inner = message.value if _given(message.value) else message.payload
        if not _given(inner):
            names = members(text).keys()  # parsed only here: most lines are or wrap an envelope
            if message.status is not None and names <= _METADATA:
                return message, key, block
            if message.undecodable is not None:
                raise Unusable(message.undecodable)
            if names and names <= _HEARTBEAT:
                raise NoRow("heartbeat")
            if names & _STATEMENT and names <= _SCHEMA_CHANGE:
                raise SchemaMessage(text)
            raise Unusable("no source.table") if message.op is not None else NotDebezium(UNKNOWN)
        block = bytes(message.schema)
        outer, text = text, _unquote(bytes(inner))
    raise Unusable("not a Debezium message: wrapped too deeply")


def _one_key(outer: bytes | None, inner: bytes) -> bytes:
    if outer not in (None, inner):
        raise Unusable("two message keys that differ, one within the other")
    return inner


def _put_together(line: bytes) -> Unwrapped | None:
    """Return the content of a CloudEvent or a flattened row, possibly wrapped; None if the line is neither."""
    key, text = None, line
    for _ in range(4):
        try:
            found = members(text)
        except msgspec.DecodeError:
            return None
        if is_flattened(found):
            return _as_message(envelope_of_row(found)), key, b""
        if is_event(found):
            content = content_of(found)
            if content.envelope is not None:
                return _as_message(content.envelope), key, content.schema
            message, own_key, block = _unwrap(content.message)
            return message, key or own_key, block
        if "key" in found:
            key = _one_key(key, _unquoted_key(bytes(found["key"])))
        inner = found.get("value", found.get("payload"))
        if inner is None:
            return None
        text = _unquote(bytes(inner))
    return None


def _as_message(envelope: dict[str, Any]) -> DebeziumMessage:
    if envelope["op"] == "m":
        raise NoRow("logical message")
    # Not strict, because the attributes of CloudEvents are texts, also for numbers.
    return msgspec.convert(envelope, DebeziumMessage, strict=False)


def _given(raw: msgspec.Raw) -> bool:
    return len(bytes(raw)) > 0


def _unquote(text: bytes) -> bytes:
    """Return the JSON inside a JSON string; return any other text unchanged."""
    if text[:1] != b'"':
        return text
    inner = orjson.loads(text).encode()
    return inner if inner[:1] in (b"{", b"n") else text


def _unquoted_key(text: bytes) -> bytes:
    """Return the JSON inside a JSON string, for a key; return any other text unchanged.

    A key may be a plain text, even one that begins like JSON, so the whole text is checked.
    """
    inner = orjson.loads(text).encode() if text[:1] == b'"' else b""
    if inner == _NULL:
        return inner
    if inner[:1] not in (b"{", b'"'):
        return text
    try:
        orjson.loads(inner)
    except orjson.JSONDecodeError:
        return text
    return inner


def image_of(raw: msgspec.Raw) -> bytes | None:
    """Return the bytes of an image as the source wrote them; None if there is no image."""
    image = bytes(raw)
    if not image or image == _NULL:
        return None
    if image[:1] != b"{":
        raise Unusable("an image is not a JSON object")
    return image


def id_of(message: DebeziumMessage) -> str | None:
    """Return the id of a message's transaction as the source writes it; None if the message has none."""
    if message.op is None and message.status is not None:
        text = bytes(message.id)
        return str(orjson.loads(text)) if text and text != _NULL else None
    if message.transaction is not None and message.transaction.id:
        return message.transaction.id
    source = message.source
    if source is None:
        return None
    if source.txId is not None:
        return str(source.txId)
    if source.gtid:
        return source.gtid
    if _lsn_number(source.commit_lsn):
        return str(source.commit_lsn)
    if source.vgtid:
        return source.vgtid
    if source.lsid or source.txnNumber is not None:
        return ":".join(str(part) for part in (source.lsid, source.txnNumber) if part is not None)
    if source.file is not None and source.pos is not None:
        return f"file={source.file},pos={source.pos}"  # the form in Debezium's own transaction metadata
    return None


def salvaged_id(line: bytes) -> str | None:
    """Return the transaction id in a line of invalid JSON, so that END counts the line; None if not found."""
    for pattern in _SALVAGE:
        found = pattern.search(line)
        if found:
            return found[1].decode(errors="replace")
    return None


def snapshot_marks(source: SourceBlock) -> int:
    """Return the marks of a snapshot row (`catalog.newest_positions`)."""
    return _MARKS.get(str(source.snapshot), MORE)


def total_order(message: DebeziumMessage) -> int:
    """Return a row's number in its transaction; UNORDERED if the message has none."""
    order = message.transaction.total_order if message.transaction else None
    if order is None:
        return UNORDERED
    try:
        number = int(order)
    except ValueError:
        raise Unusable(f"transaction.total_order is not a number: {order!r}") from None
    if not 0 <= number < 2**63:
        raise Unusable(f"transaction.total_order is out of range: {number}")
    return number


def position_of(source: SourceBlock) -> tuple[int, int, int]:
    """Return the source position of a row in commit order; rows of a transaction may have the same position.

    ============  =================================================================================
    PostgreSQL    (LSN of the last commit before the row's own, LSN of the row, 0). The row's LSN alone is not
                  in commit order: a transaction that began earlier may commit later. The first number is in
                  ``sequence``; if missing, it is the row's LSN, which is above every earlier commit.
    MySQL         (number of the binlog file, position, row)
    SQL Server,   LSN of the commit (80 bits), LSN of the row (80 bits) and number of the row at that LSN
    Db2           (32 bits), joined and divided into three numbers
    Oracle        (SCN of the commit, or else of the row; SCN of the row; number of the row at that SCN)
    others        `NO_POSITION`
    ============  =================================================================================
    """
    lsn = source.lsn
    if isinstance(lsn, str):  # digits; or YugabyteDB's text, not comparable between tablets
        lsn = int(lsn) if _SCN.fullmatch(lsn) else None
    if lsn is not None:
        return last_commit(source.sequence) or lsn, lsn, 0
    if source.file is not None and source.pos is not None:
        digits = _DIGITS_AT_END.search(source.file)
        return int(digits[1]) if digits else 0, source.pos, source.row or 0
    if commit := _lsn_number(source.commit_lsn):
        serial = min(source.event_serial_no or 0, (1 << 32) - 1)
        joined = (commit << _LSN_BITS | _lsn_number(source.change_lsn)) << 32 | serial
        return joined >> 128, joined >> 64 & _NUMBER, joined & _NUMBER
    if found := _SCN.fullmatch(str(source.commit_scn)) or _SCN.fullmatch(str(source.scn)):
        row = _SCN.fullmatch(str(source.scn))
        return int(found[0]), int(row[0]) if row else 0, source.ssn or 0
    return NO_POSITION


def log_of(source: SourceBlock) -> str | None:
    """Return the name of the source's log that a row's position belongs to; None if it has no position.

    ============  =================================================================================
    PostgreSQL,   ``connector:name``. Messages do not name the timeline.
    Oracle
    MySQL         ``connector:name``, the base name of the binlog, and the server: the source of the
                  GTID, or else the server id. Rows of a snapshot name no server.
    SQL Server,   ``connector:name`` and the database, because each database has its own LSNs
    Db2
    ============  =================================================================================
    """
    if position_of(source) == NO_POSITION:
        return None
    name = source_name(source) or ""
    if source.lsn is not None:
        return name
    if source.file is not None and source.pos is not None:
        base = _DIGITS_AT_END.sub("", source.file).rstrip(".")
        server = _gtid_source(source.gtid) or source.server_id
        return log_name(name, base, None if server in (None, 0, "0") else str(server))
    if _lsn_number(source.commit_lsn):
        return log_name(name, source.db or "")
    return name


def _gtid_source(gtid: str | None) -> str:
    """Return the server of a GTID: MySQL's ``uuid:17`` or ``uuid:tag:17``, MariaDB's ``domain-server-17``."""
    if not gtid:
        return ""
    return gtid.partition(":")[0] if ":" in gtid else gtid.rpartition("-")[0]


def _lsn_number(text: str | int | None) -> int:
    """Return an LSN of SQL Server or Db2 as a number; 0 for any other text."""
    found = _LSN.fullmatch(str(text))
    return int("".join(found.groups()), 16) if found else 0


def last_commit(sequence: str | None) -> int:
    """Return the LSN of the last commit from ``sequence``; 0 if it is unknown."""
    if not sequence:
        return 0
    try:
        values = orjson.loads(sequence)
        commit = int(values[0]) if isinstance(values, list) and values and values[0] else 0
    except (ValueError, TypeError):
        return 0
    return commit if 0 <= commit < 2**63 else 0


def timestamp_of(message: DebeziumMessage, source: SourceBlock) -> int | None:
    """Return the time at which the source made the change, in microseconds; None if unknown."""
    if source.ts_us is not None:
        return source.ts_us
    millis = source.ts_ms if source.ts_ms is not None else message.ts_ms
    if millis is None:
        return None
    return millis * 1000 if abs(millis) < 2**53 else None


def source_name(source: SourceBlock) -> str | None:
    """Return ``connector:name`` without a missing part; None if both are missing."""
    parts = [part for part in (source.connector, source.name) if part]
    return ":".join(parts) or None


def restated(change: Change) -> bytes:
    """Return a message that decodes to an equal change, except for the listing of columns.

    The old key is not in the message. It is decoded again only if it follows from the images.
    """
    connector, _, name = (change.source or "").partition(":")
    # Pending rows of earlier releases have no table, so the entity type is used.
    *spaces, table = levels_in(change.table) if change.table else (change.entity_type or "",)
    database, schema = (*spaces, None, None)[:2]
    message: dict[str, Any] = {
        "before": None if change.before is None else msgspec.Raw(change.before),
        "after": None if change.after is None else msgspec.Raw(change.after),
        "source": {
            "connector": connector or None,
            "name": name or None,
            "db": database,
            "schema": schema,
            "table": table,
            "ts_us": change.timestamp,
            **_position_members(connector, position_in(change.place), change.log or ""),
        },
        "op": chr(change.operation),
    }
    if change.transaction_id:
        order = None if change.total_order == UNORDERED else change.total_order
        message["transaction"] = {"id": change.transaction_id, "total_order": order}
    key = change.primary_key  # a text is taken as the key itself, without names of columns
    if key is not None:
        looks_like_json = key[:1] in ("{", '"') or key == "null"
        message = {"key": orjson.dumps(key).decode() if looks_like_json else key, "value": message}
    return msgspec.json.encode(message)


def _position_members(connector: str, position: tuple[int, int, int], log: str) -> dict[str, Any]:
    """Return the members of a source block from which `position_of` returns the given position."""
    if position == NO_POSITION:
        return {}
    first, second, third = position
    if connector == "postgresql":
        return {"lsn": second, "sequence": f'["{first}","{second}"]'}
    if connector in ("sqlserver", "db2"):
        joined = first << 128 | second << 64 | third
        return {
            "commit_lsn": _lsn_text(joined >> _LSN_BITS + 32),
            "change_lsn": _lsn_text(joined >> 32 & (1 << _LSN_BITS) - 1),
            "event_serial_no": joined & 0xFFFFFFFF,
        }
    if connector == "oracle":
        return {"commit_scn": str(first), "scn": str(second), "ssn": third}
    base, server = base_and_server(log)
    members = {"file": f"{base or 'binlog'}.{first:06}", "pos": second, "row": third}
    return members | ({"server_id": server} if server else {})


def _lsn_text(number: int) -> str:
    return f"{number >> 48:08x}:{number >> 16 & 0xFFFFFFFF:08x}:{number & 0xFFFF:04x}"
