"""The JSON codec: one object for each capture, the same on the command line and on every JSON transport.

::

    {"version":42,"index":2,"ordinal":0,"cursor":"1.….42.2.0.17…","commitTimestamp":1700000000000000,
     "area":"DATA","operation":"UPSERT","entityType":"product","primaryKey":"17","changed":["price"],
     "change":{…},"before":{…},"after":{…}}

Names are Protobuf's JSON names, enums plain names, and positions numbers; the timestamp is in microseconds.
Images are inserted byte for byte. ``JSON_TEXT`` writes images as JSON strings with the same bytes, for clients
whose parser rounds numbers.

These members are optional. ``"kind":"STATE"`` follows ``entityType`` in captures of a kind other than CHANGE.
``"transition":"ENTER"`` follows if the criteria have a condition. ``containerType`` and ``containerName``
follow ``changed`` in captures of a column. A body is present if it was requested, and null if the record has
none. ``omittedBytes`` replaces bodies that were too large.

A frame is the object and a comma. So joined frames without the last byte are the inside of an array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, CaptureKind, ContainerType, Operation, Transition
from tailrace_server.codecs.columns import EMPTY, Codec, encode_name_lists
from tailrace_server.rows.transitions import TRANSITION_BITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.codecs.columns import CaptureColumns

_BODIES: Final = ("change", "before", "after")
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'
_CONTROL: Final = r"[\x00-\x1f]"
_QUOTE: Final = pa.scalar(b'"', pa.binary())
_encode = msgspec.json.encode
_TRANSITIONS: Final = pa.array(
    [b"", *(b',"transition":"%b"' % each.name.encode() for each in Transition)], pa.binary()
)


class JsonCodec(Codec):
    """The wire form of the JSON faces."""

    def __init__(self, name: str, spliced: Callable[[pa.BinaryArray], pa.BinaryArray]) -> None:
        """Create a codec; ``spliced`` converts images to JSON values and keeps nulls."""
        self.name = name
        self._spliced = spliced

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the frame of each capture, a JSON object and a comma."""
        columns = columns.gathered()
        versions, indexes = digits(columns.versions), digits(columns.indexes)
        timestamps = digits(columns.timestamps)
        zeros = np.zeros(len(columns), np.int32)
        ordinals = digits(zeros if columns.ordinals is None else columns.ordinals)
        # Make a column of text for each member, and join all columns row by row in one call.
        parts: list[pa.Array | pa.Scalar] = [
            *(_text(b'{"version":'), versions, _text(b',"index":'), indexes),
            *(_text(b',"ordinal":'), ordinals, _text(b',"cursor":"')),
            *_cursor_parts(columns, versions, indexes, ordinals, timestamps),
            *(_text(b'","commitTimestamp":'), timestamps, _areas_operations_and_types(columns)),
            *(_text(_kind(columns.kind)), _transitions(columns)),
            *(_text(b',"primaryKey":'), _keys(columns.keys.array)),
            *(_text(b',"changed":'), encode_name_lists(columns.names, _encode)),
        ]
        if columns.container_types is not None:
            parts.append(_containers(columns))
        for name in _BODIES:
            body = columns.body(name)
            if body is not None:
                parts += [_text(f',"{name}":'.encode()), self._spliced(body).fill_null(b"null")]
        return pc.binary_join_element_wise(*parts, _text(b"},"), EMPTY)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame of a capture without bodies with ``omittedBytes`` appended."""
        return header_frame[:-2] + b',"omittedBytes":%d},' % omitted_bytes


def cursor_parts(columns: CaptureColumns) -> list[pa.Array | pa.Scalar]:
    """Return the parts of the captures' cursors, to be joined element by element."""
    ordinals = _text(b"0") if columns.ordinals is None else digits(columns.ordinals)
    places = digits(columns.versions), digits(columns.indexes), ordinals
    return _cursor_parts(columns, *places, digits(columns.timestamps))


def _cursor_parts(
    columns: CaptureColumns, *numbers: pa.Array | pa.Scalar
) -> list[pa.Array | pa.Scalar]:
    """Return the parts of cursors; ``numbers`` are version, index, ordinal and commit timestamp, as texts."""
    if columns.cursors is not None:
        return [columns.cursors()]
    parts: list[pa.Array | pa.Scalar] = [_text(b"1.%s" % columns.catalog_uuid.hex.encode())]
    for each in numbers:
        parts += [_text(b"."), each]
    return parts


def quoted(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return texts as JSON strings; null stays null."""
    return pc.binary_join_element_wise(_QUOTE, escaped(texts), _QUOTE, EMPTY)


def escaped(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return texts as the inside of JSON strings; null stays null."""
    # Three ways, from cheap to expensive: nothing to escape, only quotes and backslashes, control characters.
    if not pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py():
        return texts
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        each = (
            None if text is None else _encode(text.decode())[1:-1] for text in texts.to_pylist()
        )
        return pa.array(list(each), pa.binary())
    return pc.replace_substring(pc.replace_substring(texts, b"\\", b"\\\\"), b'"', b'\\"')


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def digits(numbers: np.ndarray[tuple[int], np.dtype[np.signedinteger]]) -> pa.BinaryArray:
    """Return numbers as decimal text."""
    return pa.array(numbers).cast(pa.string()).view(pa.binary())


def _areas_operations_and_types(columns: CaptureColumns) -> pa.BinaryArray:
    """Return the members area, operation and entity type of each capture."""
    # A batch has few distinct combinations, so encode each of them once.
    codes = (columns.type_codes.astype(np.int64) + 1) * 64 + columns.areas * 8 + columns.operations
    distinct, place = np.unique(codes, return_inverse=True)
    texts = []
    for code in distinct.tolist():
        type_code, rest = divmod(code, 64)
        name = columns.entity_types[type_code - 1] if type_code else None
        texts.append(
            b',"area":"%s","operation":"%s","entityType":%s'
            % (Area(rest // 8).name.encode(), Operation(rest % 8).name.encode(), _encode(name))
        )
    return pa.array(texts, pa.binary()).take(pa.array(place))


def _kind(kind: CaptureKind) -> bytes:
    return b"" if kind is CaptureKind.CHANGE else b',"kind":"%b"' % kind.name.encode()


def _transitions(columns: CaptureColumns) -> pa.Array | pa.Scalar:
    if columns.transitions is None:
        return EMPTY
    return _TRANSITIONS.take(pa.array(columns.transitions & TRANSITION_BITS))


def _keys(keys: pa.StringArray) -> pa.BinaryArray:
    return quoted(keys.view(pa.binary())).fill_null(b"null")


def _containers(columns: CaptureColumns) -> pa.BinaryArray:
    assert columns.container_types is not None
    assert columns.container_names is not None
    pairs = zip(columns.container_types.tolist(), columns.container_names, strict=True)
    texts = [
        b',"containerType":"%s","containerName":%s'
        % (ContainerType(kind).name.encode(), _encode(name))
        if kind
        else b""
        for kind, name in pairs
    ]
    return pa.array(texts, pa.binary())


JSON: Final = JsonCodec("json", lambda images: images)
"""The codec with images as JSON objects."""
JSON_TEXT: Final = JsonCodec("json-text", quoted)
"""The codec with images as JSON strings."""
