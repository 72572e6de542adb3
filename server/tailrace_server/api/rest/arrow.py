"""History as an Arrow IPC stream: the columns of a capture, bodies as their bytes.

The schema's metadata carries what the read is pinned to (``tailrace.anchor``, ``tailrace.closedUntil``, …). The
last batch has no rows and says in its metadata how the read ended (``tailrace.hasNext``,
``tailrace.nextCursor``, ``tailrace.count``). A stream without it, or without Arrow's own end, was cut.
"""

from __future__ import annotations

import io
from typing import Any, Final

import msgspec
import pyarrow as pa

COLUMNS: Final = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("cursor", pa.string(), nullable=False),
        pa.field("commitTimestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("area", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("entityType", pa.string()),
        pa.field("primaryKey", pa.string()),
        pa.field("changed", pa.list_(pa.string())),
        pa.field("transition", pa.string()),
        pa.field("containerType", pa.string()),
        pa.field("containerName", pa.string()),
        pa.field("change", pa.binary()),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
        pa.field("omittedBytes", pa.int64(), nullable=False),
    ]
)
_BODIES: Final = ("change", "before", "after")
_NULL: Final = b"null"


class _Capture(msgspec.Struct):
    version: int
    index: int
    ordinal: int
    cursor: str
    commitTimestamp: int
    area: str
    operation: str
    entityType: str | None = None
    primaryKey: str | None = None
    changed: list[str] | None = None
    transition: str | None = None
    containerType: str | None = None
    containerName: str | None = None
    change: msgspec.Raw = msgspec.Raw(_NULL)
    before: msgspec.Raw = msgspec.Raw(_NULL)
    after: msgspec.Raw = msgspec.Raw(_NULL)
    omittedBytes: int = 0


_decode: Final = msgspec.json.Decoder(list[_Capture]).decode


class ArrowStream:
    """Writes one stream piece by piece."""

    def __init__(self, header: dict[str, Any]) -> None:
        """Begin with the schema; it goes out with the first piece."""
        self._sink = io.BytesIO()
        self._schema = COLUMNS.with_metadata(_metadata(header))
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def batch(self, frames: bytes) -> bytes:
        """Return the piece of a message of JSON frames."""
        captures = _decode(b"[" + frames[:-1] + b"]")
        columns = [
            pa.array([_body(getattr(each, field.name)) for each in captures], field.type)
            if field.name in _BODIES
            else pa.array([getattr(each, field.name) for each in captures], field.type)
            for field in self._schema
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        return self._taken()

    def end(self, figures: dict[str, Any]) -> bytes:
        """Return the last piece."""
        empty = pa.record_batch([pa.array([], each.type) for each in self._schema], self._schema)
        self._writer.write_batch(empty, custom_metadata=_metadata(figures))
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def _body(raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    return None if data == _NULL else data


def _metadata(values: dict[str, Any]) -> dict[str, str]:
    return {
        f"tailrace.{name}": value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in values.items()
    }
