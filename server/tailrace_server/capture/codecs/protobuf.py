"""Captures as elements of ``tailrace.v1.SubscribeResponse.captures``, encoded by columns.

One frame = tag 0x0A, length, capture; field numbers and types as in proto/tailrace/v1, which a test
holds against this file. The numbers of a capture are fixed-width, so all of them are one packed
struct:

    09 version:8   15 index:4   1D ordinal:4   21 timestamp:8   28 area:1   30 operation:1        28 + 4 bytes
    3A entity type   42 primary key   4A changed   50 container type   5A name   62 6A 72 bodies
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.capture.codecs.columns import EMPTY, binary, fixed, lengths, present, spell

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.capture.codecs.columns import CaptureColumns

_CAPTURE: Final = 0x0A
_ENTITY_TYPE: Final = 0x3A
_PRIMARY_KEY: Final = 0x42
_CHANGED: Final = 0x4A
_CHANGED_NAME: Final = 0x0A
_CONTAINER_TYPE: Final = 0x50
_CONTAINER_NAME: Final = 0x5A
_BODIES: Final = {"change": 0x62, "before": 0x6A, "after": 0x72}
_OMITTED_BYTES: Final = 0x78

_HEADER: Final = np.dtype(
    [
        ("version_tag", "u1"),
        ("version", "<i8"),
        ("index_tag", "u1"),
        ("index", "<i4"),
        ("ordinal_tag", "u1"),
        ("ordinal", "<i4"),
        ("timestamp_tag", "u1"),
        ("timestamp", "<i8"),
        ("area_tag", "u1"),
        ("area", "u1"),
        ("operation_tag", "u1"),
        ("operation", "u1"),
    ]
)
_BLANK: Final = np.zeros(1, _HEADER)
for _name, _tag in (
    ("version", 0x09),
    ("index", 0x15),
    ("ordinal", 0x1D),
    ("timestamp", 0x21),
    ("area", 0x28),
    ("operation", 0x30),
):
    _BLANK[f"{_name}_tag"] = _tag


class ProtobufCodec:
    """The wire form of the gRPC face."""

    name = "protobuf"

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one element of ``SubscribeResponse.captures`` a capture."""
        parts: list[pa.BinaryArray] = [self._header(columns), self._entity_type(columns)]
        total = np.full(len(columns), _HEADER.itemsize, np.int64)
        total += lengths(parts[1])
        total += _append_text(parts, _PRIMARY_KEY, columns.primary_keys)
        if columns.changed.null_count < len(columns):
            changed = spell(columns.changed, _changed)
            parts.append(changed)
            total += lengths(changed)
        if columns.container_types is not None:
            containers = _containers(columns)
            parts.append(containers)
            total += lengths(containers)
        for name, tag in _BODIES.items():
            body = columns.bodies.get(name)
            if body is not None and body.null_count < len(body):
                total += _append_text(parts, tag, body)
        prefix, _ = _prefixes(_CAPTURE, total)
        return pc.binary_join_element_wise(prefix, *parts, EMPTY)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame with ``omitted_bytes`` set."""
        capture = header_frame[_after_length(header_frame) :]
        capture += bytes([_OMITTED_BYTES]) + _varint(omitted_bytes)
        return bytes([_CAPTURE]) + _varint(len(capture)) + capture

    def _header(self, columns: CaptureColumns) -> pa.BinaryArray:
        rows = np.repeat(_BLANK, len(columns))
        rows["version"] = columns.versions
        rows["index"] = columns.indexes
        rows["timestamp"] = columns.timestamps
        rows["area"] = columns.areas
        rows["operation"] = columns.operations
        if columns.ordinals is not None:
            rows["ordinal"] = columns.ordinals
        return fixed(rows)

    def _entity_type(self, columns: CaptureColumns) -> pa.BinaryArray:
        fields = [b""] + [_field(_ENTITY_TYPE, name.encode()) for name in columns.entity_types]
        return pa.array(fields, pa.binary()).take(pa.array(columns.type_codes + 1))


def _append_text(
    parts: list[pa.BinaryArray], tag: int, values: pa.StringArray | pa.BinaryArray
) -> NDArray[np.int64]:
    """Append a length-delimited field, absent where the value is null, and return its sizes."""
    sizes = lengths(values)
    prefix, prefix_sizes = _prefixes(tag, sizes, present(values) if values.null_count else None)
    if values.null_count:
        values = values.fill_null(b"" if pa.types.is_binary(values.type) else "")
    parts.extend((prefix, values.view(pa.binary()) if pa.types.is_string(values.type) else values))
    return sizes + prefix_sizes


def _prefixes(
    tag: int, lengths: NDArray[np.integer], present: NDArray[np.bool_] | None = None
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return tag and varint length of each element, empty where not present, and their sizes."""
    sizes = lengths.astype(np.int64)
    least, most = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    places = _varint_bytes(most)
    if places == _varint_bytes(least) and present is None:
        return _even_prefixes(tag, sizes, places)
    digits = np.empty((len(sizes), 1 + places), np.uint8)
    used = np.ones(digits.shape, np.bool_)
    prefix_sizes = np.full(len(sizes), 2, np.int64)
    digits[:, 0] = tag
    for place in range(places):
        rest = sizes >> (7 * place)
        more = rest > 0x7F
        digits[:, 1 + place] = (rest & 0x7F) | (more.view(np.uint8) << 7)
        if place + 1 < places:
            used[:, 2 + place] = more
            prefix_sizes += more
    if present is not None:
        used &= present[:, None]
        prefix_sizes *= present
    return binary(digits[used], prefix_sizes), prefix_sizes


def _even_prefixes(
    tag: int, sizes: NDArray[np.int64], places: int
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return the same for lengths that all take as many bytes, the common case: no byte has to be left out."""
    digits = np.empty((len(sizes), 1 + places), np.uint8)
    digits[:, 0] = tag
    for place in range(places):
        last = place + 1 == places
        digits[:, 1 + place] = ((sizes >> (7 * place)) & 0x7F) | (0 if last else 0x80)
    rows = digits.view(np.dtype((np.void, 1 + places)))[:, 0]
    return fixed(rows), np.full(len(sizes), 1 + places, np.int64)


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _changed(names: tuple[str, ...] | None) -> bytes:
    """Return the ``changed`` field; nothing for null."""
    if names is None:
        return b""
    return _field(_CHANGED, b"".join(_field(_CHANGED_NAME, name.encode()) for name in names))


def _containers(columns: CaptureColumns) -> pa.BinaryArray:
    assert columns.container_types is not None
    assert columns.container_names is not None
    pairs = zip(columns.container_types.tolist(), columns.container_names, strict=True)
    fields = [
        bytes([_CONTAINER_TYPE, kind]) + _field(_CONTAINER_NAME, name.encode()) if kind else b""
        for kind, name in pairs
    ]
    return pa.array(fields, pa.binary())


def _field(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _after_length(frame: bytes) -> int:
    place = 1
    while frame[place] & 0x80:
        place += 1
    return place + 1


PROTOBUF: Final = ProtobufCodec()
