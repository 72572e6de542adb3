"""Protobuf frames written by machine code, without the GIL.

It is Python that numba compiles. Arrow's joins cost 120 to 360 ns a capture, this 40; but to load it takes a
second (to compile it five, once, after which the code lies in a cache), so only large batches
come here (``accelerator.py``).

Column by column, in the order of the fields: first each column adds its bytes to the captures'
``sizes``; then each writes at the captures' ``ends``, which it moves on. A loop over one column at a time,
since numba counts references wherever a loop touches several arrays through helpers, which
costs more than the copying. Nothing is checked against its bounds: the batch's checksum was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numba
import numpy as np
import pyarrow as pa
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tailrace_server.capture.codecs import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tailrace_server.capture.codecs.columns import CaptureColumns

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

_F = TypeVar("_F", bound="Callable[..., Any]")

_NUMBERS_BYTES: Final = fields.NUMBERS.itemsize
_CAPTURE, _CHANGED = fields.CAPTURE, fields.CHANGED
_VERSION, _INDEX, _ORDINAL = fields.VERSION, fields.INDEX, fields.ORDINAL
_TIMESTAMP, _AREA, _OPERATION = fields.TIMESTAMP, fields.AREA, fields.OPERATION
_NO_BYTES: Final = np.empty(0, np.uint8)


def encode(columns: CaptureColumns) -> pa.BinaryArray:
    """Return the frame of each capture; entity level only."""
    rows = columns.rows
    if rows is None:
        rows = np.arange(len(columns), dtype=np.int32)
    kinds = columns.type_codes[rows] + np.int32(1)
    kind_table = _table_of([b"", *(fields.entity_type(name) for name in columns.entity_types)])
    key = _text_of(columns.primary_keys)
    changed = _lists_of(columns.changed)
    bodies = [
        (tag, _text_of(columns.bodies[name]))
        for name, tag in fields.BODIES.items()
        if name in columns.bodies
    ]

    sizes = np.full(len(rows), _NUMBERS_BYTES, np.int32)
    _measure_entries(sizes, kinds, kind_table[0])
    if key is not None:
        _measure_texts(sizes, rows, *key[:2])
    if changed is not None:
        _measure_lists(sizes, rows, *changed[:4])
    for _, body in bodies:
        if body is not None:
            _measure_texts(sizes, rows, *body[:2])
    offsets = np.zeros(len(rows) + 1, np.int32)
    _place(sizes, offsets)

    out = np.empty(int(offsets[-1]), np.uint8)
    ends = offsets[:-1].copy()
    ordinals = np.zeros(len(rows), np.int32) if columns.ordinals is None else columns.ordinals
    numbers = (columns.versions, columns.indexes, ordinals, columns.timestamps)
    _write_numbers(out, ends, sizes, rows, *numbers, columns.areas, columns.operations)
    _write_entries(out, ends, kinds, *kind_table)
    if key is not None:
        _write_texts(out, ends, rows, fields.PRIMARY_KEY, *key)
    if changed is not None:
        _write_lists(out, ends, rows, *changed)
    for tag, body in bodies:
        if body is not None:
            _write_texts(out, ends, rows, tag, *body)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(rows), buffers)


def _text_of(array: pa.Array) -> tuple[Bytes, Ints, Bytes] | None:
    """Return validity bitmap, offsets and bytes; None where all are null."""
    if array.null_count == len(array):
        return None
    valid, offsets, data = array.buffers()
    return (
        _bitmap(array, valid),
        np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1],
        _NO_BYTES if data is None else np.frombuffer(data, np.uint8),
    )


def _lists_of(array: pa.ListArray) -> tuple[Bytes, Ints, Ints, Ints, Bytes] | None:
    """Return validity bitmap, offsets, places in a table of fields, and that table; None where all are null."""
    if array.null_count == len(array):
        return None
    valid, offsets = array.buffers()[:2]
    places = array.values.indices.to_numpy(zero_copy_only=False)
    return (
        _bitmap(array, valid),
        np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1],
        places.astype(np.int32, copy=False),
        *_table_of(map(fields.changed_name, array.values.dictionary.to_pylist())),
    )


def _bitmap(array: pa.Array, valid: pa.Buffer | None) -> Bytes:
    """Return the validity of an array from its first element on; empty where all are present."""
    if valid is None or not array.null_count:
        return _NO_BYTES
    if array.offset:
        present = array.is_valid().to_numpy(zero_copy_only=False)
        return np.packbits(present, bitorder="little")
    return np.frombuffer(valid, np.uint8)


def _table_of(texts: Iterable[bytes]) -> tuple[Ints, Bytes]:
    listed = list(texts)
    offsets = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([len(text) for text in listed], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(listed), np.uint8)


# From here on: compiled.

_READ_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_READ_INTS: Final = types.Array(types.int32, 1, "C", readonly=True)
_READ_LONGS: Final = types.Array(types.int64, 1, "C", readonly=True)
_OUT, _ENDS, _SIZES = types.uint8[::1], types.int32[::1], types.int32[::1]


def _compiled(*arguments: Any) -> Callable[[_F], _F]:
    """Compile for one signature when the module is loaded, or take the code from the cache."""
    signature = types.void(*arguments)

    def compile_(function: _F) -> _F:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # there is nowhere to write a cache
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return compile_


def _inlined(function: _F) -> _F:
    return numba.njit(inline="always")(function)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def _copy(context: Any, out: Any, at: Any, source: Any, start: Any, length: Any) -> Any:
    """Copy bytes by memcpy: numba's own slices take three times as long to check as to copy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, origin, start, length = arguments
        to = context.make_array(signature.args[0])(context, builder, to).data
        origin = context.make_array(signature.args[2])(context, builder, origin).data
        to, origin = builder.gep(to, [at]), builder.gep(origin, [start])
        cgutils.raw_memcpy(builder, to, origin, length, itemsize=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, source, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store(context: Any, out: Any, at: Any, number: Any) -> Any:
    """Store a number in its own width, little-endian, at any place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, number = arguments
        to = context.make_array(signature.args[0])(context, builder, to).data
        to = builder.bitcast(builder.gep(to, [at]), number.type.as_pointer())
        builder.store(number, to).align = 1
        return context.get_dummy_value()

    return types.void(out, types.intp, number), generate


@_inlined
def _varint_bytes(number: int) -> Any:
    size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


@_inlined
def _put_varint(out: Any, at: int, number: int) -> Any:
    while number >= 0x80:
        out[at] = (number & 0x7F) | 0x80
        number >>= 7
        at += 1
    out[at] = number
    return at + 1


@_inlined
def _is_present(valid: Any, row: int) -> bool:
    return len(valid) == 0 or (valid[row >> 3] >> (row & 7)) & 1 != 0


@_inlined
def _names_bytes(name_offsets: Any, places: Any, start: int, stop: int) -> Any:
    size = 0
    for each in range(start, stop):
        size += name_offsets[places[each] + 1] - name_offsets[places[each]]
    return size


@_compiled(_SIZES, _READ_INTS, _READ_INTS)
def _measure_entries(sizes: Ints, entries: Ints, table: Ints) -> None:
    for place in range(len(sizes)):
        sizes[place] += table[entries[place] + 1] - table[entries[place]]


@_compiled(_SIZES, _READ_INTS, _READ_BYTES, _READ_INTS)
def _measure_texts(sizes: Ints, rows: Ints, valid: Bytes, offsets: Ints) -> None:
    for place in range(len(rows)):
        row = rows[place]
        if _is_present(valid, row):
            length = offsets[row + 1] - offsets[row]
            sizes[place] += 1 + _varint_bytes(length) + length


@_compiled(_SIZES, _READ_INTS, _READ_BYTES, _READ_INTS, _READ_INTS, _READ_INTS)
def _measure_lists(
    sizes: Ints, rows: Ints, valid: Bytes, offsets: Ints, places: Ints, table: Ints
) -> None:
    for place in range(len(rows)):
        row = rows[place]
        if _is_present(valid, row):
            length = _names_bytes(table, places, offsets[row], offsets[row + 1])
            sizes[place] += 1 + _varint_bytes(length) + length


@_compiled(_SIZES, _ENDS)
def _place(sizes: Ints, offsets: Ints) -> None:
    for place in range(len(sizes)):
        offsets[place + 1] = offsets[place] + 1 + _varint_bytes(sizes[place]) + sizes[place]


@_compiled(
    *(_OUT, _ENDS, _SIZES, _READ_INTS),
    *(_READ_LONGS, _READ_INTS, _READ_INTS, _READ_LONGS, _READ_BYTES, _READ_BYTES),
)
def _write_numbers(
    out: Bytes,
    ends: Ints,
    sizes: Ints,
    rows: Ints,
    versions: Longs,
    indexes: Ints,
    ordinals: Ints,
    timestamps: Longs,
    areas: Bytes,
    operations: Bytes,
) -> None:
    for place in range(len(rows)):
        at = ends[place]
        out[at] = _CAPTURE
        at = _put_varint(out, at + 1, sizes[place])
        out[at] = _VERSION
        _store(out, at + 1, versions[place])
        out[at + 9] = _INDEX
        _store(out, at + 10, indexes[place])
        out[at + 14] = _ORDINAL
        _store(out, at + 15, ordinals[place])
        out[at + 19] = _TIMESTAMP
        _store(out, at + 20, timestamps[place])
        out[at + 28] = _AREA
        out[at + 29] = areas[rows[place]]
        out[at + 30] = _OPERATION
        out[at + 31] = operations[rows[place]]
        ends[place] = at + 32


@_compiled(_OUT, _ENDS, _READ_INTS, _READ_INTS, _READ_BYTES)
def _write_entries(out: Bytes, ends: Ints, entries: Ints, table: Ints, data: Bytes) -> None:
    for place in range(len(entries)):
        start = table[entries[place]]
        length = table[entries[place] + 1] - start
        _copy(out, ends[place], data, start, length)
        ends[place] += length


@_compiled(_OUT, _ENDS, _READ_INTS, types.int64, _READ_BYTES, _READ_INTS, _READ_BYTES)
def _write_texts(
    out: Bytes, ends: Ints, rows: Ints, tag: int, valid: Bytes, offsets: Ints, data: Bytes
) -> None:
    for place in range(len(rows)):
        row = rows[place]
        if _is_present(valid, row):
            start = offsets[row]
            length = offsets[row + 1] - start
            out[ends[place]] = tag
            at = _put_varint(out, ends[place] + 1, length)
            _copy(out, at, data, start, length)
            ends[place] = at + length


@_compiled(
    *(_OUT, _ENDS, _READ_INTS), *(_READ_BYTES, _READ_INTS, _READ_INTS, _READ_INTS, _READ_BYTES)
)
def _write_lists(
    out: Bytes,
    ends: Ints,
    rows: Ints,
    valid: Bytes,
    offsets: Ints,
    places: Ints,
    table: Ints,
    data: Bytes,
) -> None:
    for place in range(len(rows)):
        row = rows[place]
        if _is_present(valid, row):
            start, stop = offsets[row], offsets[row + 1]
            out[ends[place]] = _CHANGED
            at = _put_varint(out, ends[place] + 1, _names_bytes(table, places, start, stop))
            for each in range(start, stop):
                name = table[places[each]]
                length = table[places[each] + 1] - name
                _copy(out, at, data, name, length)
                at += length
            ends[place] = at
