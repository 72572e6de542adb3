"""Debezium messages for tests, as short to write as possible."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace_server.pipeline.input.change import Change, FileSplit, to_batch
from tailrace_server.pipeline.input.table_bindings import Bindings
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.lines import SplitDecoder
from tailrace_server.pipeline.transactions.settings import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from tailrace_server.wal.schema.mapping import SchemaMapping

UNBOUND = Bindings()
"""Of a catalog that has no rows yet."""

BY_ID: dict[str, tuple[str, ...]] = {"*": ("id",)}
"""``--key *=id``: what names the rows of messages without a key here."""

Fields = dict[str, Any]
"""Column → its type in a listing."""

INT: Fields = {"type": "int32"}
LONG: Fields = {"type": "int64"}
TEXT: Fields = {"type": "string", "optional": True}


def listed(
    lsn: int, fields: Fields, table: str = "product", *, tx: int | None = None, **after: Any
) -> bytes:
    """Return a new row, with the columns that the source lists beside ``id``; without ``tx`` by itself."""
    message = envelope("c", postgres(lsn, tx, table), after={"id": lsn, **after})
    return with_listing(fields, message)


def with_listing(fields: Fields, message: Any) -> bytes:
    """Return a message with the columns that the source lists beside ``id``."""
    columns = [{"field": name, **field} for name, field in {"id": INT, **fields}.items()]
    images = [{"field": name, "type": "struct", "fields": columns} for name in ("before", "after")]
    return line({"schema": {"type": "struct", "fields": images}, "payload": message})


def postgres(
    lsn: int | None, tx: int | str | None = None, table: str = "product", **more: Any
) -> Any:
    """Return a PostgreSQL source block; a row of an incremental snapshot has no LSN."""
    block = {
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_700_000_000_000 + (lsn or 0),
        "db": "shop",
        "schema": "public",
        "table": table,
        "txId": tx,
        "lsn": lsn,
    }
    return block | more


def envelope(
    op: str,
    source: Any,
    *,
    before: Any = None,
    after: Any = None,
    transaction: Any = None,
) -> dict[str, Any]:
    """Return an envelope."""
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1_700_000_000_001,
        "transaction": transaction,
    }


def line(message: Any) -> bytes:
    """Return a message as a line, as compact as Debezium writes it."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def end(transaction_id: str, count: int | None, status: str = "END") -> dict[str, Any]:
    """Return transaction metadata."""
    return {"status": status, "id": transaction_id, "event_count": count, "ts_ms": 1}


def decoder(
    skip: dict[tuple[str, int], int] | None = None,
    *,
    mapping: SchemaMapping | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    bindings: Bindings = UNBOUND,
    keys: dict[str, tuple[str, ...]] = BY_ID,
    **options: Any,
) -> SplitDecoder:
    """Return a decoder of Debezium's messages with some of its options."""
    source = Debezium(keys=keys, **options)
    return SplitDecoder(source.line_decoder(mapping, max_record_bytes, bindings), skip)


def decode(*lines: bytes | dict[str, Any], file: str = "f", **options: Any) -> list[Change]:
    """Decode the lines of one file, without the row about the file itself."""
    texts = [text if isinstance(text, bytes) else line(text) for text in lines]
    changes = list(decoder(**options).feed(FileSplit(file), texts))
    assert to_batch(changes).num_rows == len(changes)
    return changes
