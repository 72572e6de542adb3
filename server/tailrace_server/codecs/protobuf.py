"""Captures as elements of ``tailrace.v1.SubscribeResponse.captures``; ``fields.py`` has their bytes.

There are three ways to the same bytes. Up to 16 captures are encoded one by one, so that a live commit
of one row takes 10 µs. More are written by the compiled encoder (``compiled_frames.py``) once it is
loaded. Until then, and at column level, Arrow encodes them column by column: 300 µs a batch and 120 ns a
capture. docs/adr/0037 says what each way is worth.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.codecs import compiled_encoder_loader, fields
from tailrace_server.codecs.columns import (
    EMPTY,
    Codec,
    binary_array,
    cut_into_messages,
    encode_name_lists,
    equal_elements,
    join_into_messages,
    lengths,
    present,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace_server.codecs.columns import CaptureColumns, EncodedMessages


_ONE_BY_ONE_MAX: Final = 16
"""Up to so many captures are encoded one by one: numpy and Arrow cost more, whatever they do."""
_numbers: Final = struct.Struct("<BqBiBiBqBBBB")
"""``fields.NUMBERS`` for one capture."""


class ProtobufCodec(Codec):
    """The wire form of the gRPC face."""

    name = "protobuf"

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames in messages; the compiled encoder writes each frame where it will stay."""
        if len(columns) <= _ONE_BY_ONE_MAX:
            return join_into_messages(encode_one_by_one(columns), message_bytes)
        compiled = None
        if columns.container_types is None:  # the compiled encoder knows the entity level only
            compiled = compiled_encoder_loader.encoder_for(len(columns))
        if compiled is None:
            return cut_into_messages(self.encode(columns), message_bytes)
        return compiled.write_messages(columns, message_bytes)

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one element of ``SubscribeResponse.captures`` a capture, by Arrow."""
        columns = columns.gathered()
        # 1. Each part is a column: its element is a capture's bytes for one field, empty where absent.
        # `total` grows with it, because the length stands in front of the parts.
        parts: list[pa.BinaryArray] = [self._numbers(columns), self._entity_type(columns)]
        total = np.full(len(columns), fields.NUMBERS.itemsize, np.int64)
        total += lengths(parts[1])
        total += append_field(parts, fields.PRIMARY_KEY, columns.keys.array)
        if not columns.names.all_null:
            changed = encode_name_lists(columns.names, _changed)
            parts.append(changed)
            total += lengths(changed)
        if columns.container_types is not None:
            containers = _containers(columns)
            parts.append(containers)
            total += lengths(containers)
        for name, tag in fields.BODIES.items():
            body = columns.body(name)
            if body is not None and body.null_count < len(body):
                total += append_field(parts, tag, body)
        # 2. Only now are all sizes known. Arrow joins the parts of each capture in one call.
        prefix, _ = tags_and_lengths(fields.CAPTURE, total)
        return pc.binary_join_element_wise(prefix, *parts, EMPTY)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame with ``omitted_bytes`` set."""
        capture = header_frame[message_start(header_frame) :]
        capture += bytes([fields.OMITTED_BYTES]) + fields.varint(omitted_bytes)
        return bytes([fields.CAPTURE]) + fields.varint(len(capture)) + capture

    def _numbers(self, columns: CaptureColumns) -> pa.BinaryArray:
        rows = np.repeat(fields.BLANK, len(columns))
        rows["version"] = columns.versions
        rows["index"] = columns.indexes
        rows["timestamp"] = columns.timestamps
        rows["area"] = columns.areas
        rows["operation"] = columns.operations
        if columns.ordinals is not None:
            rows["ordinal"] = columns.ordinals
        return equal_elements(rows)

    def _entity_type(self, columns: CaptureColumns) -> pa.BinaryArray:
        encoded, codes = _types(columns)
        return pa.array(encoded, pa.binary()).take(pa.array(codes + 1))


def encode_one_by_one(columns: CaptureColumns) -> list[bytes]:
    """Return the frame of each capture. This is the plain statement of the wire form."""
    rows = list(range(len(columns))) if columns.rows is None else columns.rows.tolist()
    ordinals = [0] * len(rows) if columns.ordinals is None else columns.ordinals.tolist()
    versions, indexes = columns.versions.tolist(), columns.indexes.tolist()
    timestamps = columns.timestamps.tolist()
    types, codes = _types(columns)
    keys, changed = columns.keys.values(rows), columns.names.values(rows)
    bodies = [
        (tag, columns.texts[name].values(rows))
        for name, tag in fields.BODIES.items()
        if name in columns.texts
    ]
    frames = []
    for place, row in enumerate(rows):
        parts = [
            _numbers.pack(
                *(fields.VERSION, versions[place], fields.INDEX, indexes[place]),
                *(fields.ORDINAL, ordinals[place], fields.TIMESTAMP, timestamps[place]),
                *(fields.AREA, columns.areas[row], fields.OPERATION, columns.operations[row]),
            )
        ]
        parts.append(types[codes[row] + 1])
        if (key := keys[place]) is not None:
            parts.append(fields.field(fields.PRIMARY_KEY, key))
        parts.append(_changed(changed[place]))
        if columns.container_types is not None:
            assert columns.container_names is not None
            parts.append(
                _container(int(columns.container_types[place]), columns.container_names[place])
            )
        for tag, values in bodies:
            if (body := values[place]) is not None:
                parts.append(fields.field(tag, body))
        frames.append(fields.field(fields.CAPTURE, b"".join(parts)))
    return frames


def _types(columns: CaptureColumns) -> tuple[list[bytes], NDArray[np.int32]]:
    """Return the fields of entity types with the data behind them, and the code of each record."""
    if columns.transitions is None:
        return fields.entity_types(columns.entity_types, columns.kind), columns.type_codes
    count = len(columns.entity_types)
    return (
        fields.judged_entity_types(columns.entity_types, columns.kind),
        fields.judged_codes(columns.type_codes, columns.transitions, count),
    )


def append_field(
    parts: list[pa.BinaryArray], tag: int, values: pa.StringArray | pa.BinaryArray
) -> NDArray[np.int64]:
    """Append a length-delimited field, absent where the value is null, and return its sizes."""
    sizes = lengths(values)
    prefix, prefix_sizes = tags_and_lengths(
        tag, sizes, present(values) if values.null_count else None
    )
    if values.null_count:
        values = values.fill_null(b"" if pa.types.is_binary(values.type) else "")
    parts.extend((prefix, values.view(pa.binary()) if pa.types.is_string(values.type) else values))
    return sizes + prefix_sizes


def tags_and_lengths(
    tag: int, lengths: NDArray[np.integer], present: NDArray[np.bool_] | None = None
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return tag and varint length of each element, and the sizes of these; empty where not present."""
    sizes = lengths.astype(np.int64)
    least, most = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    places = _varint_bytes(most)
    if places == _varint_bytes(least) and present is None:
        return _equal_tags_and_lengths(tag, sizes, places)
    # 1. Lay out tag and length as wide as the widest needs them; `used` says which bytes count.
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
    # 2. An absent element has no tag either. The mask leaves the bytes that count end to end.
    if present is not None:
        used &= present[:, None]
        prefix_sizes *= present
    return binary_array(digits[used], prefix_sizes), prefix_sizes


def _equal_tags_and_lengths(
    tag: int, sizes: NDArray[np.int64], places: int
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return the same for lengths that all take as many bytes, the common case: no mask is needed."""
    digits = np.empty((len(sizes), 1 + places), np.uint8)
    digits[:, 0] = tag
    for place in range(places):
        last = place + 1 == places
        digits[:, 1 + place] = ((sizes >> (7 * place)) & 0x7F) | (0 if last else 0x80)
    rows = digits.view(np.dtype((np.void, 1 + places)))[:, 0]
    return equal_elements(rows), np.full(len(sizes), 1 + places, np.int64)


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _changed(names: Iterable[str] | None) -> bytes:
    """Return the ``changed`` field; nothing for null."""
    if names is None:
        return b""
    return fields.field(fields.CHANGED, b"".join(fields.changed_name(name) for name in names))


def _containers(columns: CaptureColumns) -> pa.BinaryArray:
    assert columns.container_types is not None
    assert columns.container_names is not None
    pairs = zip(columns.container_types.tolist(), columns.container_names, strict=True)
    return pa.array([_container(kind, name) for kind, name in pairs], pa.binary())


def _container(kind: int, name: str) -> bytes:
    """Return role and name of a column; nothing at entity level."""
    if not kind:
        return b""
    return bytes([fields.CONTAINER_TYPE, kind]) + fields.field(fields.CONTAINER_NAME, name.encode())


def message_start(frame: bytes) -> int:
    """Return the place behind tag and length of an element, where its message begins."""
    place = 1
    while frame[place] & 0x80:
        place += 1
    return place + 1


PROTOBUF: Final = ProtobufCodec()
