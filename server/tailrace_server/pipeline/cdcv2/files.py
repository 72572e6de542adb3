"""Materialize CDCv2 messages in files: their schema, and reading a part of a file.

Two kinds of files, distinguished by their names:

* ``.avro``: object container files, whose schema must be that of the stream. Parts begin at a block, found
  by its sync marker.
* ``.json``, ``.jsonl``, ``.ndjson``: Avro JSON, one message a line. Parts begin behind a line's end.

Messages that cannot be used are refused one by one, and kept. A damaged block of a container is read as far as
possible, and reading continues behind its sync marker. A file with another schema is an error.

Source: Apache Avro 1.11 specification, "Object Container Files", "JSON Encoding".
"""

from __future__ import annotations

import base64
import json
import math
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import fastavro
import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import (
    AvroForm,
    ContainerReader,
    DataMisfit,
    MessageUnreadable,
    SchemaDiffers,
    read_line,
)
from tailrace_server.cdcv2.codecs import unpack
from tailrace_server.cdcv2.scalars import LONG
from tailrace_server.cdcv2.schema import documented_schema, same
from tailrace_server.pipeline.cdcv2.cutting import (
    CutMessages,
    RefusedMessage,
    RowCutter,
    UpdateCollector,
    add_statement,
)
from tailrace_server.pipeline.cdcv2.updates import place_of
from tailrace_server.wal.files.system_errors import os_errors
from tailrace_server.wal.record.keys import key_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

AVRO: Final = ".avro"
LINES: Final = (".json", ".jsonl", ".ndjson")

_SYNC: Final = 16
_READ_BYTES: Final = 4 << 20
_SEEK_BYTES: Final = 1 << 20


class FilePart(NamedTuple):
    """A part of a file: the blocks or lines that begin in it."""

    path: str
    ordinal: int
    start: int
    stop: int
    whole: int
    """Size of the file."""


def _around(text: str) -> str:
    """Return the schema of messages, given that or the schema of their rows."""
    try:
        schema = json.loads(text)
    except ValueError:
        return text  # whose reader says what is wrong
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    return json.dumps(documented_schema(schema)) if is_record else text


class StreamSchema:
    """The schema of a stream's messages, and how its rows become images and keys. Can be pickled."""

    def __init__(self, text: str) -> None:
        """Take the text of an Avro schema.

        Raises:
            SchemaDiffers: It is not a schema of CDCv2; the error says where.
        """
        self.text = text
        self.form = AvroForm.of(text, product_times=True)
        self.cutter = RowCutter(self.form)
        # As given: the canonical form has no logical types.
        data = json.loads(text)[0]["items"]["fields"][0]["type"]
        self._columns = [(field["name"], field["type"]) for field in data["fields"]]
        self._data = fastavro.parse_schema(self.form.schema[0]["items"]["fields"][0]["type"])
        self._plain = not _mentions(self.form.schema, ("float", "double"))

    def __reduce__(self) -> tuple[object, ...]:
        return StreamSchema, (self.text,)

    @classmethod
    def load(cls, file: Path) -> StreamSchema:
        """Read the schema of a file: that of messages, or that of their rows alone.

        Raises:
            InvalidRequest: It cannot be read, or is not a schema of CDCv2.
        """
        try:
            return cls(_around(file.read_text()))
        except (OSError, UnicodeDecodeError, SchemaDiffers) as error:
            raise InvalidRequest(f"--schema {file}: {error}") from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [name for name, _ in self._columns]

    def check_same(self, other: AvroForm, where: str) -> None:
        """Compare the schema of a file with this one.

        Raises:
            InvalidRequest: They differ; the error says where.
        """
        try:
            same(self.form.schema, other.schema)
        except SchemaDiffers as error:
            raise InvalidRequest(f"{where} has another schema: {error}") from error

    def listing(self, key: Sequence[str]) -> str:
        """Return the columns with their types and key, in the form of `pipeline.catalog.columns`."""
        columns = [(name, *_sql_type(kind), _nullable(kind)) for name, kind in self._columns]
        return msgspec.json.encode((columns, tuple(key))).decode()

    def image(self, data: bytes) -> tuple[bytes, dict[str, Any]]:
        """Return a row, given as its canonical bytes, as JSON text and as plain values."""
        values: Any = fastavro.schemaless_reader(BytesIO(data), self._data, None)
        if not self._plain:
            values = _without_infinity(values)
        return orjson.dumps(values, default=_base64), values

    def normalised(self, image: bytes) -> bytes:
        """Return an image from another source as `image` would write it; unchanged if it fits no row."""
        try:
            given = orjson.loads(image)
            values = {name: given.get(name) for name in self.columns} | given
            out = BytesIO()
            fastavro.schemaless_writer(out, self._data, values)
            found, _ = self.image(out.getvalue())
            return found if orjson.loads(found) == values else image
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            return image

    def key(self, values: dict[str, Any], key: Sequence[str]) -> str | None:
        """Return the canonical text of a row's key; None where a column of it is null.

        Without key columns the row itself is the key, always as an array.
        """
        if not key:
            return orjson.dumps(list(values.values()), default=_base64).decode()
        return key_text([orjson.dumps(values[name], default=_base64) for name in key])


def parts_of_file(path: str, ordinal: int, size: int, part_bytes: int) -> list[FilePart]:
    """Return the parts of a file, of about ``part_bytes`` each."""
    parts = max(1, round(size / part_bytes))
    cuts = [size * part // parts for part in range(parts + 1)]
    return [FilePart(path, ordinal, cuts[n], cuts[n + 1], size) for n in range(parts)]


def read_part(split: FilePart, schema: StreamSchema) -> Iterator[CutMessages]:
    """Yield the messages of a part of a file, a few megabytes at a time.

    Raises:
        SchemaDiffers: A container has another schema.
        LogUnreadable: The file cannot be read.
    """
    with os_errors(f"cannot read {split.path}"):
        if split.path.endswith(AVRO):
            yield from _read_container(split, schema)
        else:
            yield from _read_lines(split, schema)


# Containers.


def _read_container(split: FilePart, schema: StreamSchema) -> Iterator[CutMessages]:
    with open(split.path, "rb") as file:
        try:
            codec, sync, first = _header(file, schema, split.path)
        except MessageUnreadable as error:
            if split.start == 0:
                place = place_of(split.ordinal, 0)
                yield CutMessages(refused=[RefusedMessage(place, str(error), b"")], messages=1)
            return
        at = first if split.start <= first else _next_block(file, split.start, sync)
        out = CutMessages()
        read = 0
        while at < min(split.stop, split.whole):
            place = place_of(split.ordinal, at)
            try:
                count, data, stop = _block_at(file, at, sync, split.whole)
                data = unpack(codec, data)
            except (DataMisfit, IndexError, ValueError) as error:
                out.refused.append(RefusedMessage(place, f"a damaged block: {error}", b""))
                out.messages += 1
                at = _next_block(file, at + 1, sync)
                continue
            schema.cutter.cut(data, count, place, out)
            read += len(data)
            at = stop
            if read >= _READ_BYTES:
                yield out
                out, read = CutMessages(), 0
        yield out


def _header(file: BinaryIO, schema: StreamSchema, path: str) -> tuple[str, bytes, int]:
    """Return codec and sync marker of a container, and where its first block begins."""
    try:
        reader = ContainerReader(file, product_times=True)
    except SchemaDiffers as error:
        raise InvalidRequest(f"{path} has another schema: {error}") from error
    schema.check_same(reader.form, path)
    first = file.tell()
    file.seek(first - _SYNC)
    return reader.codec, file.read(_SYNC), first


def _block_at(file: BinaryIO, at: int, sync: bytes, whole: int) -> tuple[int, bytes, int]:
    """Return the number of messages of a block, its bytes, and where the next one begins."""
    file.seek(at)
    head = file.read(20)
    count, used = LONG.read(head, 0)
    size, used = LONG.read(head, used)
    if count < 0 or size < 0:
        raise ValueError(f"{count} messages in {size} bytes")
    file.seek(at + used)
    data = file.read(min(size, whole))
    if len(data) < size:
        raise ValueError(f"it has {size} bytes, and the file ends after {len(data)} of them")
    if file.read(_SYNC) != sync:
        raise ValueError("its sync marker is not that of the file")
    return count, data, at + used + size + _SYNC


def _next_block(file: BinaryIO, at: int, sync: bytes) -> int:
    """Return the begin of the first block whose preceding sync marker ends behind ``at``."""
    at = max(0, at - _SYNC)
    file.seek(at)
    kept = b""
    while True:
        data = file.read(_SEEK_BYTES)
        if not data:
            return at + len(kept) + _SYNC  # beyond the end
        data = kept + data
        found = data.find(sync)
        if found >= 0:
            return at + found + _SYNC
        kept = data[-(_SYNC - 1) :]
        at += len(data) - len(kept)


# Avro JSON.


def _read_lines(split: FilePart, schema: StreamSchema) -> Iterator[CutMessages]:
    reader = _JsonReader(schema)
    with open(split.path, "rb") as file:
        at = split.start
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        read = 0
        while at < split.stop:
            line = file.readline()
            if not line:
                break
            reader.add(line, place_of(split.ordinal, at))
            at += len(line)
            read += len(line)
            if read >= _READ_BYTES:
                yield reader.finish()
                read = 0
        yield reader.finish()


class _JsonReader:
    """Collects messages of Avro JSON lines."""

    def __init__(self, schema: StreamSchema) -> None:
        self._form = schema.form
        self._begin()

    def _begin(self) -> None:
        self._rows = UpdateCollector(self._form)
        self._out = CutMessages()

    def finish(self) -> CutMessages:
        out = self._out
        self._rows.finish(out)
        self._begin()
        return out

    def add(self, line: bytes, place: int) -> None:
        if not line.strip():
            return
        self._out.messages += 1
        try:
            problem = add_statement(read_line(self._form, line), place, self._rows, self._out)
        except MessageUnreadable as error:
            problem = error.reason
        if problem is not None:
            self._out.refused.append(RefusedMessage(place, problem, line.rstrip(b"\r\n")))


# Columns.

_SQL: Final = {
    "boolean": ("BOOLEAN", "json"),
    "int": ("INTEGER", "json"),
    "long": ("BIGINT", "json"),
    "float": ("REAL", "json"),
    "double": ("DOUBLE", "json"),
    "string": ("VARCHAR", "json"),
    "bytes": ("VARBINARY", "base64"),
    "fixed": ("VARBINARY", "base64"),
    "enum": ("VARCHAR", "json"),
}
_LOGICAL: Final = {
    "date": ("DATE", "debezium.Date"),
    "time-millis": ("TIME", "debezium.Time"),
    "time-micros": ("TIME", "debezium.MicroTime"),
    "timestamp-millis": ("TIMESTAMP", "debezium.Timestamp"),
    "timestamp-micros": ("TIMESTAMP", "debezium.MicroTimestamp"),
    "local-timestamp-millis": ("TIMESTAMP", "debezium.Timestamp"),
    "local-timestamp-micros": ("TIMESTAMP", "debezium.MicroTimestamp"),
    "uuid": ("UUID", "json"),
}


def _sql_type(kind: Any) -> tuple[str | None, str]:
    """Return SQL type and encoding of a column's values."""
    if isinstance(kind, list):
        inner = [each for each in kind if each != "null"]
        return _sql_type(inner[0]) if len(inner) == 1 else ("JSON", "json")
    if isinstance(kind, str):
        return _SQL.get(kind, ("JSON", "json"))
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["type"] in ("bytes", "fixed"):
        scale = kind.get("scale", 0)
        return f"DECIMAL({kind['precision']},{scale})", f"decimal.bytes({scale})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    return (
        _sql_type(kind["type"])
        if isinstance(kind["type"], list | dict)
        else (_SQL.get(kind["type"], ("JSON", "json")))
    )


def _nullable(kind: Any) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _mentions(schema: Any, names: Sequence[str]) -> bool:
    if isinstance(schema, str):
        return schema in names
    parts = schema.values() if isinstance(schema, dict) else schema
    return isinstance(schema, dict | list) and any(_mentions(part, names) for part in parts)


def _without_infinity(value: Any) -> Any:
    """Return a value in which numbers that JSON does not have are their names, as in Avro JSON."""
    if type(value) is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {name: _without_infinity(each) for name, each in value.items()}
    return list(map(_without_infinity, value)) if isinstance(value, list) else value


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(value)
