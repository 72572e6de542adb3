"""The CDCv2 codec: captures as ``tailrace.v1.SubscribeResponse.updates``, the rows that were removed and added.

::

    record                        elements
    UPSERT with before and after  (before, -1) (after, +1)      none if both are equal
    UPSERT without before         (after, +1)
    REMOVE, EXPIRE                (before, -1)
    change is {"diff": d}         (the row, d): rows without keys, see wal/record/columns.py
    a needed image is missing     (entity type, key, no data, diff 0): the transport ends there
    TRANSACTION, SCHEMA records   none
    ENTER of a condition          (after, +1); if it is unknown whether the row was in: as a missing image
    LEAVE of a condition          (before, -1); if it is unknown whether the row was in: as a missing image

A transaction of the log has one record for each key, so all elements of one version differ. The codec does not
count elements: their number depends on the content that a subscriber requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace_server.codecs import fields
from tailrace_server.codecs.columns import (
    EMPTY,
    Codec,
    binary_array,
    equal_elements,
    lengths,
    present,
)
from tailrace_server.codecs.protobuf import message_start
from tailrace_server.rows.transitions import NONE, UNSURE, hidden_after, is_unknown
from tailrace_server.wal.record.columns import multiplicity_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.codecs.columns import CaptureColumns

_UPDATE: Final = 0x22
_ENTITY_TYPE: Final = 0x0A
_PRIMARY_KEY: Final = 0x12
_DATA: Final = 0x1A
_TIME: Final = 0x21
_DIFF: Final = 0x28
_ONE_BY_ONE_MAX: Final = 16
"""The most captures that are encoded one by one: for a few, calls of Arrow cost more."""


class Cdcv2Codec(Codec):
    """The wire form of CDCv2 subscriptions; captures must be of whole records, with all bodies."""

    name = "cdcv2"

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the encoded ``updates`` of each capture, joined; empty for a capture without updates."""
        columns = columns.gathered()
        if len(columns) <= _ONE_BY_ONE_MAX or _multiples(columns).any():
            return encode_one_by_one(columns)
        return self.encode_by_column(columns)

    def encode_by_column(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the result of ``encode``, computed with Arrow; no capture may have a multiplicity."""
        before, after = (_image(columns, name) for name in ("before", "after"))
        parts = _parts(columns, present(before), present(after))
        # An update that changes nothing has no elements: its -1 and +1 would cancel out.
        same = pc.fill_null(pc.equal(before, after), False).to_numpy(zero_copy_only=False)
        same &= parts.adds
        elements = [
            _elements(columns, before, parts.removes & ~same, -1),
            _elements(columns, after, parts.adds & ~same, 1),
            _elements(columns, None, parts.incomplete, 0),
        ]
        return pc.binary_join_element_wise(*elements, EMPTY)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the element of a record whose images are too large; its data is their size, as text."""
        element = header_frame[message_start(header_frame) :]
        return fields.field(_UPDATE, element + fields.field(_DATA, b"%d" % omitted_bytes))


class _Parts(NamedTuple):
    """The elements that each record has, as masks of the records."""

    removes: NDArray[np.bool_]
    """Records that remove their ``before``."""
    adds: NDArray[np.bool_]
    """Records that add their ``after``."""
    incomplete: NDArray[np.bool_]
    """Records that lack a needed image, or whose transition is uncertain."""


def _parts(
    columns: CaptureColumns, has_before: NDArray[np.bool_], has_after: NDArray[np.bool_]
) -> _Parts:
    rows = columns.areas == Area.DATA
    upserts = columns.operations == Operation.UPSERT
    updates = upserts & present(columns.names.array)
    # An insert needs the image after, an update both images, and a removal the image before.
    incomplete = rows & np.where(upserts, ~has_after | (updates & ~has_before), ~has_before)
    if columns.transitions is not None:
        # ENTER hides the image before, and LEAVE the image after. So these need only the other image.
        judged = columns.transitions != NONE
        needed = np.where(hidden_after(columns.transitions), has_before, has_after)
        unsure = (columns.transitions & UNSURE != 0) | is_unknown(columns.transitions)
        incomplete = np.where(judged, rows & (~needed | unsure), incomplete)
        upserts = upserts & ~hidden_after(columns.transitions)
    complete = rows & ~incomplete
    return _Parts(complete & has_before, complete & upserts & has_after, incomplete)


def _multiples(columns: CaptureColumns) -> NDArray[np.bool_]:
    """Return a mask of the records that may have a multiplicity: the number of copies of a row without key."""
    rows: NDArray[np.bool_] = columns.areas == Area.DATA
    return rows & present(_image(columns, "change")) & ~present(columns.names.array)


def _image(columns: CaptureColumns, name: str) -> pa.BinaryArray:
    """Return one of the images of each record; all null if the requested content does not include it."""
    image = columns.body(name)
    return pa.nulls(len(columns), pa.binary()) if image is None else image


def _elements(
    columns: CaptureColumns, images: pa.BinaryArray | None, chosen: NDArray[np.bool_], diff: int
) -> pa.BinaryArray:
    """Return an element for each chosen record, and empty bytes for each other record."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(chosen), np.int32)))
    # 1. Encode the chosen records only: most batches have few removals or none.
    taken = pa.array(places)
    types = pa.array([_entity_type(name) for name in columns.entity_types], pa.binary())
    parts = [types.take(pa.array(columns.type_codes[places]))]
    total = lengths(parts[0]).astype(np.int64)
    total += _append_field(parts, _PRIMARY_KEY, columns.keys.array.take(taken))
    if images is not None:
        total += _append_field(parts, _DATA, images.take(taken))
    numbers = _numbers(columns.versions[places], diff)
    parts.append(equal_elements(numbers))
    total += numbers.dtype.itemsize
    prefix, _ = _tags_and_lengths(_UPDATE, total)
    elements = pc.binary_join_element_wise(prefix, *parts, EMPTY)
    # 2. Insert sizes of 0 for the other records. The bytes stay as they are, since the elements are contiguous.
    sizes = np.zeros(len(chosen), np.int64)
    sizes[places] = lengths(elements)
    return binary_array(np.frombuffer(elements.buffers()[2], np.uint8), sizes)


def _append_field(
    parts: list[pa.BinaryArray], tag: int, values: pa.StringArray | pa.BinaryArray
) -> NDArray[np.int64]:
    """Append a length-delimited field, which is absent for null values; return the size of each field."""
    sizes = lengths(values)
    prefix, prefix_sizes = _tags_and_lengths(
        tag, sizes, present(values) if values.null_count else None
    )
    if values.null_count:
        values = values.fill_null(b"" if pa.types.is_binary(values.type) else "")
    parts.extend((prefix, values.view(pa.binary()) if pa.types.is_string(values.type) else values))
    return sizes + prefix_sizes


def _tags_and_lengths(
    tag: int, lengths: NDArray[np.integer], present: NDArray[np.bool_] | None = None
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return tag and varint length of each element, and their size; both are empty if it is not ``present``."""
    sizes = lengths.astype(np.int64)
    least, most = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    # Usually all lengths of a batch need the same number of bytes.
    places = _varint_bytes(most)
    if places == _varint_bytes(least) and present is None:
        return _equal_tags_and_lengths(tag, sizes, places)
    # 1. Write tag and length at the width of the widest length; `used` marks the bytes that are needed.
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
    # 2. Absent elements have no tag either. The mask makes the needed bytes contiguous.
    if present is not None:
        used &= present[:, None]
        prefix_sizes *= present
    return binary_array(digits[used], prefix_sizes), prefix_sizes


def _equal_tags_and_lengths(
    tag: int, sizes: NDArray[np.int64], places: int
) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    """Return the result of ``_tags_and_lengths`` for lengths of equal width: the common case needs no mask."""
    digits = np.empty((len(sizes), 1 + places), np.uint8)
    digits[:, 0] = tag
    for place in range(places):
        last = place + 1 == places
        digits[:, 1 + place] = ((sizes >> (7 * place)) & 0x7F) | (0 if last else 0x80)
    rows = digits.view(np.dtype((np.void, 1 + places)))[:, 0]
    return equal_elements(rows), np.full(len(sizes), 1 + places, np.int64)


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _numbers(versions: NDArray[np.int64], diff: int) -> NDArray[np.void]:
    """Return the encoded fields time and diff of each element."""
    zigzag = (diff << 1) ^ (diff >> 63)
    tail = np.frombuffer(bytes([_DIFF]) + fields.varint(zigzag), np.uint8)
    numbers = np.empty((len(versions), 9 + len(tail)), np.uint8)
    numbers[:, 0] = _TIME
    numbers[:, 1:9] = versions.astype("<i8").view(np.uint8).reshape(-1, 8)
    numbers[:, 9:] = tail
    return numbers.view(np.dtype((np.void, numbers.shape[1])))[:, 0]


def _entity_type(name: str) -> bytes:
    return fields.field(_ENTITY_TYPE, name.encode())


def encode_one_by_one(columns: CaptureColumns) -> pa.BinaryArray:
    """Return the elements of each capture. This is the reference implementation of the wire form."""
    before, after = (_image(columns, name) for name in ("before", "after"))
    parts = _parts(columns, present(before), present(after))
    change, multiples = _image(columns, "change"), _multiples(columns)
    frames = []
    for row in range(len(columns)):
        old, new = before[row].as_py(), after[row].as_py()
        image = old if new is None else new
        diff = multiplicity_of(change[row].as_py()) if multiples[row] else None
        elements = b""
        # A row of a table without key: its number of copies is the diff.
        if diff is not None and image is not None:
            elements = _element(columns, row, image, diff) if diff else b""
        elif parts.incomplete[row]:
            elements = _element(columns, row, None, 0)
        # An update that changes nothing has no elements.
        elif old != new or not parts.adds[row]:
            if parts.removes[row]:
                elements += _element(columns, row, old, -1)
            if parts.adds[row]:
                elements += _element(columns, row, new, 1)
        frames.append(elements)
    return pa.array(frames, pa.binary())


def _element(columns: CaptureColumns, row: int, image: bytes | None, diff: int) -> bytes:
    update = _entity_type(columns.entity_types[columns.type_codes[row]])
    if (key := columns.keys.array[row].as_py()) is not None:
        update += fields.field(_PRIMARY_KEY, key.encode())
    if image is not None:
        update += fields.field(_DATA, image)
    update += _numbers(columns.versions[row : row + 1], diff).tobytes()
    return fields.field(_UPDATE, update)


CDCV2: Final = Cdcv2Codec()
