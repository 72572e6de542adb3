"""Files and topics of Materialize CDCv2 messages: their schema, and the reading of a part of a file.

The ending of a file's name says which of two kinds it is:

* ``.avro``: an Avro object container file, which must have the schema of the stream. A part begins at a block,
  after a sync marker.
* ``.json``, ``.jsonl``, ``.ndjson``: Avro JSON, one message a line. A part begins after the end of a line.

A topic's part has its messages in memory. They are JSON, or Avro in the frame of a schema registry; the caller
has compared the schema.

A message that cannot be used is refused and put into quarantine; the others are used. A damaged block of a
container is read as far as possible, and reading continues after the next sync marker. A file with another
schema is an error.

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
from tailrace_server.cdcv2.container import unpack
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
OFFSET_WIDTH: Final = 8
FRAME_WIDTH: Final = 5

_SYNC: Final = 16
_READ_BYTES: Final = 4 << 20
_SEEK_BYTES: Final = 1 << 20


Messages = tuple[bytes, ...]
"""Messages of a partition of a topic: each is its offset, in `OFFSET_WIDTH` big-endian, and its value."""


class FilePart(NamedTuple):
    """A part of a file: all blocks or lines that begin in a range of bytes."""

    path: str
    ordinal: int
    start: int
    stop: int
    whole: int
    """Size of the file, in bytes."""
    messages: Messages | None = None
    """The messages of a topic; None: a file."""


def _around(text: str) -> str:
    """Return the schema of messages, given that schema or the schema of their rows."""
    try:
        schema = json.loads(text)
    except ValueError:
        return text  # AvroForm reports what is wrong with it
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    return json.dumps(documented_schema(schema)) if is_record else text


class StreamSchema:
    """The schema of a stream's messages, and the conversion of its rows to images and keys.

    It can be pickled.
    """

    def __init__(self, text: str) -> None:
        """Parse the text of an Avro schema.

        Raises:
            SchemaDiffers: The schema is not one of CDCv2; the error says where it differs.
        """
        self.text = text
        self.form = AvroForm.of(text, product_times=True)
        self.cutter = RowCutter(self.form)
        # Take the columns from the given text: the canonical form has no logical types.
        data = json.loads(text)[0]["items"]["fields"][0]["type"]
        self._columns = [(field["name"], field["type"]) for field in data["fields"]]
        self._data = fastavro.parse_schema(self.form.schema[0]["items"]["fields"][0]["type"])
        self._plain = not _mentions(self.form.schema, ("float", "double"))

    def __reduce__(self) -> tuple[object, ...]:
        return StreamSchema, (self.text,)

    @classmethod
    def load(cls, file: Path) -> StreamSchema:
        """Read a schema from a file. The file has the schema of messages, or only that of their rows.

        Raises:
            InvalidRequest: The file cannot be read, or its schema is not one of CDCv2.
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
        """Raise if the schema of a file differs from this schema.

        Args:
            other: The schema of the file.
            where: The file's name, for the error.

        Raises:
            InvalidRequest: The schemas differ; the error says where.
        """
        try:
            same(self.form.schema, other.schema)
        except SchemaDiffers as error:
            raise InvalidRequest(f"{where} has another schema: {error}") from error

    def listing(self, key: Sequence[str]) -> str:
        """Return the columns, their types and the key as text, in the form of `pipeline.catalog.columns`."""
        columns = [(name, *_sql_type(kind), _nullable(kind)) for name, kind in self._columns]
        return msgspec.json.encode((columns, tuple(key))).decode()

    def image(self, data: bytes) -> tuple[bytes, dict[str, Any]]:
        """Return a row as JSON text and as plain values, given its canonical bytes."""
        values: Any = fastavro.schemaless_reader(BytesIO(data), self._data, None)
        if not self._plain:
            values = _without_infinity(values)
        return orjson.dumps(values, default=_base64), values

    def normalised(self, image: bytes) -> bytes:
        """Return an image of another source in the form of `image`; unchanged if it does not fit the schema."""
        try:
            given = orjson.loads(image)
            values = {name: given.get(name) for name in self.columns} | given
            out = BytesIO()
            fastavro.schemaless_writer(out, self._data, values)
            # Use the result only if it has the same values: otherwise the image does not fit the schema.
            found, _ = self.image(out.getvalue())
            return found if orjson.loads(found) == values else image
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            return image

    def key(self, values: dict[str, Any], key: Sequence[str]) -> str | None:
        """Return the canonical text of a row's key; None if a key column is null.

        Without key columns the whole row is the key, as an array.
        """
        if not key:
            return orjson.dumps(list(values.values()), default=_base64).decode()
        return key_text([orjson.dumps(values[name], default=_base64) for name in key])


def parts_of_file(
    path: str,
    ordinal: int,
    size: int,
    part_bytes: int,
    messages: Messages | None = None,
) -> list[FilePart]:
    """Return the parts of a file, of about ``part_bytes`` each; messages of a topic are one part."""
    if messages is not None:
        return [FilePart(path, ordinal, 0, size, size, messages)]
    parts = max(1, round(size / part_bytes))
    cuts = [size * part // parts for part in range(parts + 1)]
    return [FilePart(path, ordinal, cuts[n], cuts[n + 1], size) for n in range(parts)]


def read_part(split: FilePart, schema: StreamSchema) -> Iterator[CutMessages]:
    """Yield the messages of a part of a file, a few megabytes at a time.

    Raises:
        InvalidRequest: A container has another schema.
        LogUnreadable: The file cannot be read.
    """
    if split.messages is not None:
        yield _read_messages(split.messages, split.ordinal, schema)
        return
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
            # Every part of a file with a damaged header fails: report the damage only once.
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
                # Nothing in a damaged block can be trusted, not even its size: search for the next sync marker.
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
    """Return the codec and the sync marker of a container, and the offset of its first block."""
    try:
        reader = ContainerReader(file, product_times=True)
    except SchemaDiffers as error:
        raise InvalidRequest(f"{path} has another schema: {error}") from error
    schema.check_same(reader.form, path)
    first = file.tell()
    file.seek(first - _SYNC)
    return reader.codec, file.read(_SYNC), first


def _block_at(file: BinaryIO, at: int, sync: bytes, whole: int) -> tuple[int, bytes, int]:
    """Return the number of messages in a block, the block's bytes, and the offset of the next block."""
    file.seek(at)
    head = file.read(20)
    count, used = LONG.read(head, 0)
    size, used = LONG.read(head, used)
    if count < 0 or size < 0:
        raise ValueError(f"{count} messages in {size} bytes")
    file.seek(at + used)
    # A damaged size may be huge: never allocate more than the file has.
    data = file.read(min(size, whole))
    if len(data) < size:
        raise ValueError(f"it has {size} bytes, but the file ends after {len(data)} of them")
    if file.read(_SYNC) != sync:
        raise ValueError("its sync marker differs from that of the file")
    return count, data, at + used + size + _SYNC


def _next_block(file: BinaryIO, at: int, sync: bytes) -> int:
    """Return the offset of the first block whose preceding sync marker ends after ``at``."""
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
        # A marker may lie across two reads: keep all but one byte of its length.
        kept = data[-(_SYNC - 1) :]
        at += len(data) - len(kept)


# Avro JSON, and messages of a topic.


def _read_messages(messages: Messages, ordinal: int, schema: StreamSchema) -> CutMessages:
    reader = _CdcReader(schema)
    for each in messages:
        offset = int.from_bytes(each[:OFFSET_WIDTH], "big")
        reader.add(each[OFFSET_WIDTH:], place_of(ordinal, offset))
    return reader.finish()


def _read_lines(split: FilePart, schema: StreamSchema) -> Iterator[CutMessages]:
    reader = _CdcReader(schema)
    with open(split.path, "rb") as file:
        at = split.start
        if at:
            # A line belongs to the part in which it begins. Reading from one byte earlier skips a line that
            # began in the part before, but not one that begins exactly here.
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


class _CdcReader:
    """Collects messages that are in Avro JSON, or in Avro with the frame of a schema registry."""

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
            statement = (
                self._form.decode(line[FRAME_WIDTH:])
                if line[:1] == b"\0"
                else read_line(self._form, line)
            )
            problem = add_statement(statement, place, self._rows, self._out)
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
    """Return the SQL type and the encoding of a column's values."""
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
    """Return a value in which NaN and infinities are replaced by their names, as in Avro JSON."""
    if type(value) is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {name: _without_infinity(each) for name, each in value.items()}
    return list(map(_without_infinity, value)) if isinstance(value, list) else value


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(value)
