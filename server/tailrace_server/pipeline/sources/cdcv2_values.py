"""Avro data of one schema, three ways: canonical bytes from bytes, bytes from Avro JSON, JSON from bytes.

A schema is compiled to closures, one for each of its nodes. They are strict where Avro libraries are
lenient, because what is misread here becomes a version: a number beyond its width, a branch or symbol
that does not exist, text that is not UTF-8 and bytes that end too soon are `BadDatum`.

*Canonical* is the encoding that every writer makes of its own accord: shortest numbers, arrays and maps
in one block, maps sorted by key. Two rows are equal if and only if their canonical bytes are.

Logical types are read as what they are made of: a decimal is its unscaled bytes, a date its days; the
columns say how that is to be understood (`columns_of`), as everywhere in a catalog.

Source: Apache Avro 1.11 specification, "Data Serialization and Deserialization".
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

_LONG: Final = (-(2**63), 2**63 - 1)
_INT: Final = (-(2**31), 2**31 - 1)

Copy = Callable[[bytes, int, bytearray], int]
"""Appends the canonical form of a datum at a place to a buffer; returns where the datum ends."""
Put = Callable[[Any, bytearray], None]
"""Appends the canonical form of an Avro JSON value to a buffer."""
Take = Callable[[bytes, int], tuple[Any, int]]
"""Returns the plain JSON value of a datum at a place, and where the datum ends."""


class BadDatum(ValueError):
    """Bytes or a JSON value that are not of the schema; says what and where."""


class Form(NamedTuple):
    """The three ways for one schema."""

    copy: Copy
    put: Put
    take: Take


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number and where it ends."""
    value = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise BadDatum(f"the bytes end within a number at byte {at}") from None
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise BadDatum(f"a number of more than 64 bits ends at byte {at}")
    if value >> 64:
        raise BadDatum(f"a number of more than 64 bits ends at byte {at}")
    return (value >> 1) ^ -(value & 1), at


def put_varint(value: int, out: bytearray) -> None:
    """Append a zigzag number in its shortest form."""
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def form_of(schema: Any) -> Form:
    """Compile a schema, given as parsed JSON.

    Raises:
        BadDatum: It is no Avro schema; says where.
    """
    return _Compiler().form(schema, "", "data")


class _Compiler:
    def __init__(self) -> None:
        self._named: dict[str, list[Form]] = {}

    def form(self, schema: Any, namespace: str, place: str) -> Form:
        if isinstance(schema, list):
            return self._union(schema, namespace, place)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            return self._reference(schema, namespace, place)
        if not isinstance(schema, dict) or "type" not in schema:
            raise BadDatum(f"{place}: not an Avro schema: {schema!r}")
        kind = schema["type"]
        if isinstance(kind, dict | list) or (kind in _PRIMITIVES):
            return self.form(kind, namespace, place)
        match kind:
            case "record":
                return self._record(schema, namespace, place)
            case "enum":
                made = _enum(schema["symbols"])
            case "fixed":
                made = _fixed(schema["size"])
            case "array":
                return _array(self.form(schema["items"], namespace, f"{place}[]"))
            case "map":
                return _map(self.form(schema["values"], namespace, f"{place}{{}}"))
            case _:
                return self._reference(kind, namespace, place)
        self._named[full_name(schema["name"], schema.get("namespace", namespace))] = [made]
        return made

    def _reference(self, name: str, namespace: str, place: str) -> Form:
        found = self._named.get(full_name(name, namespace), self._named.get(name))
        if found is None:
            raise BadDatum(f"{place}: type {name!r} is not known")
        if found:
            return found[0]
        return Form(  # of a record within itself, which is not compiled yet
            lambda data, at, out: found[0].copy(data, at, out),
            lambda value, out: found[0].put(value, out),
            lambda data, at: found[0].take(data, at),
        )

    def _record(self, schema: Mapping[str, Any], namespace: str, place: str) -> Form:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        known = self._named[name] = []
        inner = name.rpartition(".")[0]
        fields = [
            (field["name"], self.form(field["type"], inner, f"{place}.{field['name']}"))
            for field in schema["fields"]
        ]
        known.append(_record(fields, place))
        return known[0]

    def _union(self, branches: Sequence[Any], namespace: str, place: str) -> Form:
        forms = [
            (branch_name(branch, namespace), self.form(branch, namespace, place))
            for branch in branches
        ]
        return _union(forms, place)


def full_name(name: str, namespace: str | None) -> str:
    """Return the full name of a named type."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def branch_name(schema: Any, namespace: str = "") -> str:
    """Return the tag that Avro JSON gives a branch of a union."""
    if isinstance(schema, str):
        return schema
    kind = schema["type"]
    return (
        full_name(schema["name"], schema.get("namespace", namespace))
        if kind in ("record", "enum", "fixed")
        else str(kind)
    )


def _record(fields: Sequence[tuple[str, Form]], place: str) -> Form:
    copies = [form.copy for _, form in fields]
    takes = [(name, form.take) for name, form in fields]
    names = [name for name, _ in fields]

    def copy(data: bytes, at: int, out: bytearray) -> int:
        for each in copies:
            at = each(data, at, out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise BadDatum(f"{place}: {_shown(value)} is not an object")
        if value.keys() != set(names):
            missing = [name for name in names if name not in value]
            what = f"lacks {missing[0]}" if missing else f"has {min(value.keys() - set(names))} too"
            raise BadDatum(f"{place}: the object {what}")
        for name, form in fields:
            form.put(value[name], out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        value = {}
        for name, each in takes:
            value[name], at = each(data, at)
        return value, at

    return Form(copy, put, take)


def _union(forms: Sequence[tuple[str, Form]], place: str) -> Form:
    by_name = {name: (branch, form) for branch, (name, form) in enumerate(forms)}

    def branch_at(data: bytes, at: int) -> tuple[int, int]:
        branch, at = varint(data, at)
        if not 0 <= branch < len(forms):
            raise BadDatum(f"{place}: branch {branch} of a union of {len(forms)}")
        return branch, at

    def copy(data: bytes, at: int, out: bytearray) -> int:
        branch, at = branch_at(data, at)
        put_varint(branch, out)
        return forms[branch][1].copy(data, at, out)

    def put(value: Any, out: bytearray) -> None:
        if value is None:
            name, inner = "null", None
        elif isinstance(value, dict) and len(value) == 1:
            [(name, inner)] = value.items()
        else:
            raise BadDatum(f"{place}: {_shown(value)} does not say which branch of the union it is")
        if name not in by_name:
            raise BadDatum(f"{place}: {name!r} is no branch of the union")
        branch, form = by_name[name]
        put_varint(branch, out)
        form.put(inner, out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = branch_at(data, at)
        return forms[branch][1].take(data, at)

    return Form(copy, put, take)


def _array(items: Form) -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        inner = bytearray()
        total = 0
        while True:
            count, at = _block(data, at)
            if not count:
                break
            total += count
            for _ in range(count):
                at = items.copy(data, at, inner)
        _put_block(total, inner, out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if not isinstance(value, list):
            raise BadDatum(f"{_shown(value)} is not an array")
        inner = bytearray()
        for each in value:
            items.put(each, inner)
        _put_block(len(value), inner, out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        while True:
            count, at = _block(data, at)
            if not count:
                return values, at
            for _ in range(count):
                value, at = items.take(data, at)
                values.append(value)

    return Form(copy, put, take)


def _map(values: Form) -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        found: dict[str, bytearray] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                break
            for _ in range(count):
                key, at = _text(data, at)
                found[key] = inner = bytearray()
                at = values.copy(data, at, inner)
        put_members(found, out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise BadDatum(f"{_shown(value)} is not an object")
        found: dict[str, bytearray] = {}
        for key, each in value.items():
            found[key] = inner = bytearray()
            values.put(each, inner)
        put_members(found, out)

    def put_members(found: Mapping[str, bytearray], out: bytearray) -> None:
        inner = bytearray()
        for key in sorted(found):
            _put_bytes(key.encode(), inner)
            inner += found[key]
        _put_block(len(found), inner, out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        members = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return members, at
            for _ in range(count):
                key, at = _text(data, at)
                members[key], at = values.take(data, at)

    return Form(copy, put, take)


def _enum(symbols: Sequence[str]) -> Form:
    numbers = {symbol: number for number, symbol in enumerate(symbols)}

    def symbol_at(data: bytes, at: int) -> tuple[int, int]:
        number, at = varint(data, at)
        if not 0 <= number < len(symbols):
            raise BadDatum(f"symbol {number} of an enum of {len(symbols)}")
        return number, at

    def copy(data: bytes, at: int, out: bytearray) -> int:
        number, at = symbol_at(data, at)
        put_varint(number, out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if not isinstance(value, str) or value not in numbers:
            raise BadDatum(f"{_shown(value)} is no symbol of the enum")
        put_varint(numbers[value], out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        number, at = symbol_at(data, at)
        return symbols[number], at

    return Form(copy, put, take)


def _fixed(size: int) -> Form:
    def take(data: bytes, at: int) -> tuple[Any, int]:
        return base64.b64encode(_slice(data, at, size)).decode(), at + size

    def put(value: Any, out: bytearray) -> None:
        piece = _latin(value)
        if len(piece) != size:
            raise BadDatum(f"{_shown(value)} is not {size} bytes")
        out += piece

    def copy(data: bytes, at: int, out: bytearray) -> int:
        out += _slice(data, at, size)
        return at + size

    return Form(copy, put, take)


def _whole(bounds: tuple[int, int]) -> Form:
    low, high = bounds

    def checked(value: int) -> int:
        if not low <= value <= high:
            raise BadDatum(f"{value} is beyond {high.bit_length() + 1} bits")
        return value

    def copy(data: bytes, at: int, out: bytearray) -> int:
        value, at = varint(data, at)
        put_varint(checked(value), out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if type(value) is not int:
            raise BadDatum(f"{_shown(value)} is not a whole number")
        put_varint(checked(value), out)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        return varint(data, at)

    return Form(copy, put, take)


def _real(layout: struct.Struct) -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        out += _slice(data, at, layout.size)
        return at + layout.size

    def put(value: Any, out: bytearray) -> None:
        if type(value) not in (int, float):
            raise BadDatum(f"{_shown(value)} is not a number")
        try:
            out += layout.pack(value)
        except (OverflowError, struct.error) as error:
            raise BadDatum(f"{_shown(value)}: {error}") from None

    def take(data: bytes, at: int) -> tuple[Any, int]:
        [value] = layout.unpack(_slice(data, at, layout.size))
        return (value if math.isfinite(value) else str(value)), at + layout.size

    return Form(copy, put, take)


def _boolean() -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        value, at = take(data, at)
        out.append(value)
        return at

    def put(value: Any, out: bytearray) -> None:
        if type(value) is not bool:
            raise BadDatum(f"{_shown(value)} is not a boolean")
        out.append(value)

    def take(data: bytes, at: int) -> tuple[Any, int]:
        value = _slice(data, at, 1)[0]
        if value > 1:
            raise BadDatum(f"{value} is no boolean")
        return bool(value), at + 1

    return Form(copy, put, take)


def _null() -> Form:
    def put(value: Any, out: bytearray) -> None:
        if value is not None:
            raise BadDatum(f"{_shown(value)} is not null")

    return Form(lambda data, at, out: at, put, lambda data, at: (None, at))


def _string() -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        text, at = _text(data, at)
        _put_bytes(text.encode(), out)
        return at

    def put(value: Any, out: bytearray) -> None:
        if not isinstance(value, str):
            raise BadDatum(f"{_shown(value)} is not a string")
        try:
            _put_bytes(value.encode(), out)
        except UnicodeEncodeError as error:
            raise BadDatum(f"{_shown(value)} is not UTF-8: {error.reason}") from None

    return Form(copy, put, _text)


def _bytes() -> Form:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        piece, at = _bytes_at(data, at)
        _put_bytes(piece, out)
        return at

    def take(data: bytes, at: int) -> tuple[Any, int]:
        piece, at = _bytes_at(data, at)
        return base64.b64encode(piece).decode(), at

    return Form(copy, lambda value, out: _put_bytes(_latin(value), out), take)


def _text(data: bytes, at: int) -> tuple[str, int]:
    piece, at = _bytes_at(data, at)
    try:
        return piece.decode(), at
    except UnicodeDecodeError as error:
        raise BadDatum(f"text that is not UTF-8 ends at byte {at}: {error.reason}") from None


def _bytes_at(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = varint(data, at)
    return _slice(data, at, size), at + size


def _slice(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise BadDatum(f"{size} bytes at byte {at}, where {len(data) - at} are left")
    return data[at : at + size]


def _latin(value: Any) -> bytes:
    """Return bytes from the form that Avro JSON gives them: a character each."""
    if not isinstance(value, str):
        raise BadDatum(f"{_shown(value)} is not a string of bytes")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise BadDatum(f"{_shown(value)} is not bytes: a character is above 255") from None


def _block(data: bytes, at: int) -> tuple[int, int]:
    count, at = varint(data, at)
    if count < 0:
        count = -count
        _, at = varint(data, at)
    if count > len(data):
        # Items that take no bytes could make one small message cost any amount of memory.
        raise BadDatum(
            f"a block of {count} items at byte {at}, where {len(data) - at} bytes are left"
        )
    return count, at


def _put_block(count: int, inner: bytes | bytearray, out: bytearray) -> None:
    if count:
        put_varint(count, out)
        out += inner
    out.append(0)


def _put_bytes(piece: bytes, out: bytearray) -> None:
    put_varint(len(piece), out)
    out += piece


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_PRIMITIVES: Final = {
    "null": _null(),
    "boolean": _boolean(),
    "int": _whole(_INT),
    "long": _whole(_LONG),
    "float": _real(struct.Struct("<f")),
    "double": _real(struct.Struct("<d")),
    "string": _string(),
    "bytes": _bytes(),
}
