"""Materialize CDCv2 messages in files: their schema, and reading a part of a file.

Two kinds of files, told by their names:

* ``.avro``: object container files, whose schema must be that of the stream. Parts begin at a block, found
  by its sync marker.
* ``.json``, ``.jsonl``, ``.ndjson``: Avro JSON, one message a line. Parts begin behind a line's end.

What cannot be used is refused, message by message, and never lost: a container's block is read as far as
it can be, and reading goes on behind its sync marker. Another schema is no such thing; it stops.

Source: Apache Avro 1.11 specification, "Object Container Files", "JSON Encoding".
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.cdcv2.cutting import (
    Messages,
    Progress,
    Refused,
    RowCutter,
    bounds_of,
    invalid,
    rows_table,
)
from tailrace_server.pipeline.cdcv2.updates import place_of
from tailrace_server.pipeline.images import key_text
from tailrace_server.pipeline.sources.cdcv2_values import (
    BadDatum,
    branch_name,
    full_name,
    put_varint,
    varint,
)
from tailrace_server.wal.objects import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

AVRO: Final = ".avro"
LINES: Final = (".json", ".jsonl", ".ndjson")

_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
_READ_BYTES: Final = 4 << 20
_SEEK_BYTES: Final = 1 << 20
_PROGRESS: Final = "com.materialize.cdc.progress"


class SchemaDiffers(InvalidRequest):
    """A schema is not that of the stream. Whoever made the file, or named the folder; says where it differs."""

    code = "CDC_SCHEMA_DIFFERS"


class Split(NamedTuple):
    """A part of a file: the blocks or lines that begin in it."""

    path: str
    ordinal: int
    start: int
    stop: int
    whole: int
    """Bytes of the file."""


class StreamSchema:
    """The schema of a stream's messages, and what a catalog needs to know of its rows. Pickles."""

    def __init__(self, text: str) -> None:
        """Take the text of an Avro schema.

        Raises:
            SchemaDiffers: It is not that of CDCv2; says where.
        """
        self.text = text
        self.message = parsed(text)
        self.data = data_schema(self.message)
        self._columns = [(field["name"], field["type"]) for field in self.data["fields"]]
        self.cutter = RowCutter(self.data)

    def __reduce__(self) -> tuple[object, ...]:
        return StreamSchema, (self.text,)

    @classmethod
    def load(cls, file: Path) -> StreamSchema:
        """Read the schema of a file.

        Raises:
            InvalidRequest: It cannot be read, or is not a schema of CDCv2.
        """
        try:
            return cls(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"--schema {file}: {error}") from error
        except SchemaDiffers as error:
            raise SchemaDiffers(f"--schema {file}: {error}") from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [name for name, _ in self._columns]

    def check_same(self, text: bytes, where: str) -> None:
        """Compare a container's schema with ours.

        Raises:
            SchemaDiffers: It is another; says where they differ.
        """
        if text == self.text.encode():
            return
        place = difference(canonical(self.message), canonical(parsed(text.decode())))
        if place is not None:
            raise SchemaDiffers(f"{where} has another schema: {place}")

    def listing(self, key: Sequence[str]) -> str:
        """Return what rows say of the columns, in the form of `pipeline.columns`."""
        columns = [(name, *_sql_type(kind), _nullable(kind)) for name, kind in self._columns]
        return msgspec.json.encode((columns, tuple(key))).decode()

    def image(self, data: bytes) -> tuple[bytes, dict[str, Any]]:
        """Return a row as JSON text and as plain values."""
        values, _ = self.cutter.form.take(data, 0)
        return orjson.dumps(values), values

    def key(self, values: dict[str, Any], key: Sequence[str]) -> str | None:
        """Return the canonical text of a row's key; None where a column of it is null.

        Without key columns the row itself is the key, always as an array.
        """
        if not key:
            return orjson.dumps(list(values.values())).decode()
        return key_text([orjson.dumps(values[name]) for name in key])


def parsed(text: str) -> Any:
    """Return a schema as JSON values.

    Raises:
        SchemaDiffers: It is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaDiffers(f"not a schema: {error}") from None


def data_schema(message: Any) -> Any:
    """Return the schema of ``data``.

    Raises:
        SchemaDiffers: The messages are not those of CDCv2; says where.
    """
    try:
        data = message[0]["items"]["fields"][0]["type"]
        fields = data["fields"]
        wanted = canonical(documented(data))
        found = canonical(message)
    except (KeyError, IndexError, TypeError):
        data, fields, wanted, found = None, None, None, None
    if not isinstance(fields, list):
        raise SchemaDiffers(
            "a CDCv2 schema is a union of an array of updates, whose data is a record, and a record progress"
        )
    place = difference(wanted, found)
    if place is not None:
        raise SchemaDiffers(f"not a schema of CDCv2: {place}")
    try:
        RowCutter(data)
    except (BadDatum, KeyError, TypeError) as error:
        raise SchemaDiffers(f"the schema of data: {error}") from None
    return data


def documented(data: Any) -> Any:
    """Return the documented schema of messages around one of ``data``.

    Source: the Materialize CDC format page, "Example Materialize CDC Avro schema".
    """
    longs = {"type": "array", "items": "long"}
    counts = {
        "type": "record",
        "name": "counts",
        "fields": [{"name": "time", "type": "long"}, {"name": "count", "type": "long"}],
    }
    update = {
        "type": "record",
        "name": "update",
        "namespace": "com.materialize.cdc",
        "fields": [
            {"name": "data", "type": data},
            {"name": "time", "type": "long"},
            {"name": "diff", "type": "long"},
        ],
    }
    progress = {
        "type": "record",
        "name": "progress",
        "namespace": "com.materialize.cdc",
        "fields": [
            {"name": "lower", "type": longs},
            {"name": "upper", "type": longs},
            {"name": "counts", "type": {"type": "array", "items": counts}},
        ],
    }
    return [{"type": "array", "items": update}, progress]


def canonical(schema: Any, namespace: str = "") -> Any:
    """Return what of a schema decides how bytes are read, with full names."""
    if isinstance(schema, list):
        return [canonical(each, namespace) for each in schema]
    if isinstance(schema, str):
        return schema if schema in _SQL or schema == "null" else full_name(schema, namespace)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return canonical(kind, namespace)
    match kind:
        case "array":
            return {"type": kind, "items": canonical(schema["items"], namespace)}
        case "map":
            return {"type": kind, "values": canonical(schema["values"], namespace)}
        case "record" | "enum" | "fixed":
            name = full_name(schema["name"], schema.get("namespace", namespace))
            inner = name.rpartition(".")[0]
            found: dict[str, Any] = {"type": kind, "name": name}
            for member in ("symbols", "size"):
                if member in schema:
                    found[member] = schema[member]
            if kind == "record":
                found["fields"] = [
                    {"name": each["name"], "type": canonical(each["type"], inner)}
                    for each in schema["fields"]
                ]
            return found
    return canonical(kind, namespace)


def difference(wanted: Any, found: Any, place: str = "the schema") -> str | None:
    """Return where two canonical schemas differ first, in words; None if they do not."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        name = wanted.get("name") or found.get("name")
        inner = f"{place}, {wanted.get('type')} {name}" if name else place
        for member in [*wanted, *(each for each in found if each not in wanted)]:
            if member not in found:
                return f"{inner} lacks {member}"
            if member not in wanted:
                return f"{inner} has {member}"
            told = difference(wanted[member], found[member], f"{inner}, {member}")
            if told is not None:
                return told
        return None
    if isinstance(wanted, list) and isinstance(found, list):
        for number, (one, other) in enumerate(zip(wanted, found, strict=False), 1):
            told = difference(one, other, f"{place} {number}")
            if told is not None:
                return told
        if len(wanted) != len(found):
            return f"{place}: {len(found)} where {len(wanted)} are wanted"
        return None
    return None if wanted == found else f"{place}: {_brief(found)} where {_brief(wanted)} is wanted"


def splits(path: str, ordinal: int, size: int, wanted: int) -> list[Split]:
    """Return the parts of a file, of about ``wanted`` bytes each."""
    parts = max(1, round(size / wanted))
    cuts = [size * part // parts for part in range(parts + 1)]
    return [Split(path, ordinal, cuts[n], cuts[n + 1], size) for n in range(parts)]


def read_split(split: Split, schema: StreamSchema) -> Iterator[Messages]:
    """Yield what a part of a file holds, a few megabytes at a time.

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


def _read_container(split: Split, schema: StreamSchema) -> Iterator[Messages]:
    with open(split.path, "rb") as file:
        try:
            meta, sync, first = _header(file.read(_SEEK_BYTES))
            codec = meta.get("avro.codec", b"null").decode()
            if codec not in _CODECS:
                raise BadDatum(f"codec {codec!r}; known are {', '.join(_CODECS)}")
            text = meta["avro.schema"]
        except (BadDatum, KeyError) as error:
            if split.start == 0:
                reason = f"not an Avro container file: {error}"
                yield Messages(
                    refused=[Refused(place_of(split.ordinal, 0), reason, b"")], messages=1
                )
            return
        schema.check_same(text, split.path)
        at = first if split.start <= first else _next_block(file, split.start, sync)
        out = Messages()
        read = 0
        while at < min(split.stop, split.whole):
            file.seek(at)
            place = place_of(split.ordinal, at)
            try:
                count, data, stop = _block_at(file, at, sync)
                data = _CODECS[codec](data)
            except (BadDatum, *_DAMAGED) as error:
                out.refused.append(Refused(place, f"a damaged block: {error}", b""))
                out.messages += 1
                at = _next_block(file, at + 1, sync)
                continue
            schema.cutter.cut(data, count, place, out)
            read += len(data)
            at = stop
            if read >= _READ_BYTES:
                yield out
                out, read = Messages(), 0
        yield out


def _header(data: bytes) -> tuple[dict[str, bytes], bytes, int]:
    if data[:4] != _MAGIC:
        raise BadDatum("it does not begin with Obj and 1")
    meta: dict[str, bytes] = {}
    at = 4
    while True:
        count, at = varint(data, at)
        if count == 0:
            break
        if count < 0:
            count = -count
            _, at = varint(data, at)
        for _ in range(count):
            key, at = _piece(data, at)
            meta[key.decode(errors="replace")], at = _piece(data, at)
    sync = data[at : at + _SYNC]
    if len(sync) < _SYNC:
        raise BadDatum("its header ends too soon")
    return meta, sync, at + _SYNC


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = varint(data, at)
    if size < 0 or at + size > len(data):
        raise BadDatum("its header ends too soon")
    return data[at : at + size], at + size


def _block_at(file: Any, at: int, sync: bytes) -> tuple[int, bytes, int]:
    head = file.read(20)
    count, used = varint(head, 0)
    size, used = varint(head, used)
    if count < 0 or size < 0:
        raise BadDatum(f"{count} messages in {size} bytes")
    file.seek(at + used)
    data = file.read(size)
    if len(data) < size:
        raise BadDatum(f"it has {size} bytes, and the file ends after {len(data)} of them")
    if file.read(_SYNC) != sync:
        raise BadDatum("its sync marker is not that of the file")
    return count, data, at + used + size + _SYNC


def _next_block(file: Any, at: int, sync: bytes) -> int:
    """Return where the first block begins whose sync marker before it ends behind ``at``."""
    at = max(0, at - _SYNC)
    file.seek(at)
    kept = b""
    while True:
        data = file.read(_SEEK_BYTES)
        if not data:
            return at + len(kept) + _SYNC  # beyond the end
        found = (kept + data).find(sync)
        if found >= 0:
            return at + found + _SYNC
        at += len(kept) + len(data) - (_SYNC - 1)
        kept = (kept + data)[-(_SYNC - 1) :]


def _inflate(data: bytes) -> bytes:
    return zlib.decompress(data, -15)


def _snappy(data: bytes) -> bytes:
    shift = size = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    plain: bytes = pa.decompress(data[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(plain).to_bytes(4, "big") != data[-4:]:
        raise BadDatum("its checksum is wrong")
    return plain


def _zstandard(data: bytes) -> bytes:
    with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
        plain: bytes = stream.read()
        return plain


_CODECS: Final = {
    "null": lambda data: data,
    "deflate": _inflate,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "snappy": _snappy,
    "zstandard": _zstandard,
}
_DAMAGED: Final = (zlib.error, lzma.LZMAError, OSError, ValueError, pa.ArrowException)


# Avro JSON.


def _read_lines(split: Split, schema: StreamSchema) -> Iterator[Messages]:
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
            reader.take(line, place_of(split.ordinal, at))
            at += len(line)
            read += len(line)
            if read >= _READ_BYTES:
                yield reader.finish()
                read = 0
        yield reader.finish()


class _JsonReader:
    """Collects messages of Avro JSON lines."""

    def __init__(self, schema: StreamSchema) -> None:
        self._form = schema.cutter.form
        self._begin()

    def _begin(self) -> None:
        self._rows: list[tuple[bytes, int, int, int]] = []
        self._out = Messages()

    def finish(self) -> Messages:
        out = self._out
        if self._rows:
            out.updates.append(rows_table(self._rows))
        self._begin()
        return out

    def take(self, line: bytes, place: int) -> None:
        text = line.strip()
        if not text:
            return
        self._out.messages += 1
        try:
            message = json.loads(text)
            if not isinstance(message, dict) or len(message) != 1:
                raise BadDatum('a line is {"array": […]} or {"com.materialize.cdc.progress": {…}}')
            [(name, body)] = message.items()
            if name == "array":
                self._rows.extend(self._updates(body, place))
            elif name == _PROGRESS:
                self._out.progress.append(_progress_of(body, place))
            else:
                raise BadDatum(f"{name!r} is neither array nor {_PROGRESS}")
        except (ValueError, RecursionError) as error:
            reason = f"not JSON: {error}" if type(error) is not BadDatum else str(error)
            self._out.refused.append(Refused(place, reason, line.rstrip(b"\r\n")))

    def _updates(self, body: Any, place: int) -> list[tuple[bytes, int, int, int]]:
        if not isinstance(body, list):
            raise BadDatum("array: not an array")
        rows = []
        for update in body:
            data, time, diff = _members(update, ("data", "time", "diff"), "update")
            row = bytearray()
            self._form.put(data, row)
            if _long(time, "time") < 0:
                raise BadDatum(f"time {time} is below zero")
            if _long(diff, "diff") == 0:
                raise BadDatum(f"time {time}: a diff of zero is not a change; leave it out")
            rows.append((bytes(row), time, diff, place))
        return rows


def _progress_of(body: Any, place: int) -> Progress:
    lower, upper, counts = _members(body, ("lower", "upper", "counts"), "progress")
    for name, times in (("lower", lower), ("upper", upper), ("counts", counts)):
        if not isinstance(times, list):
            raise BadDatum(f"progress.{name}: not an array")
    bounds = bounds_of(*([_long(time, "time") for time in each] for each in (lower, upper)))
    pairs = []
    for each in counts:
        time, count = _members(each, ("time", "count"), "counts")
        pairs.append((_long(time, "time"), _long(count, "count")))
    progress = Progress(*bounds, tuple(pairs), place)
    problem = invalid(progress)
    if problem is not None:
        raise BadDatum(problem)
    return progress._replace(counts=tuple({pair: None for pair in pairs if pair[1]}))


def _members(body: Any, names: Sequence[str], what: str) -> list[Any]:
    if not isinstance(body, dict) or body.keys() != set(names):
        raise BadDatum(f"{what}: it has {', '.join(names)}, and nothing else")
    return [body[name] for name in names]


def _long(value: Any, what: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise BadDatum(f"{what} {_brief(value)} is no whole number of 64 bits")
    return value


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


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# For those who write such files: tests, benches and whoever repairs a message.


def container(
    schema: StreamSchema, blocks: Sequence[tuple[int, bytes]], codec: str = "null"
) -> bytes:
    """Return a container file of blocks, each with the number of its messages."""
    out = bytearray(_MAGIC)
    meta = {"avro.codec": codec.encode(), "avro.schema": schema.text.encode()}
    put_varint(len(meta), out)
    for key, value in meta.items():
        for piece in (key.encode(), value):
            put_varint(len(piece), out)
            out += piece
    out.append(0)
    sync = b"tailrace-sync-16"
    out += sync
    for count, data in blocks:
        packed = zlib.compress(data)[2:-4] if codec == "deflate" else data
        put_varint(count, out)
        put_varint(len(packed), out)
        out += packed + sync
    return bytes(out)


__all__ = [
    "AVRO",
    "LINES",
    "SchemaDiffers",
    "Split",
    "StreamSchema",
    "branch_name",
    "container",
    "read_split",
    "splits",
]
