"""The input and the output of a codec: columns of captures, and frames in messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from tailrace.criteria import CaptureKind
from tailrace.schema import Schema
from tailrace_server.wal.record.text_columns import NameLists, Texts, int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from numpy.typing import NDArray


_NO_SCHEMA: Final = Schema()


def no_schema(version: int) -> Schema:
    """Return an empty schema, for captures whose columns are not known."""
    return _NO_SCHEMA


@dataclass(frozen=True, slots=True)
class CaptureColumns:
    """Captures of one batch. Some columns have one element a capture, the others one a record."""

    catalog_uuid: UUID
    versions: NDArray[np.int64]
    """A capture."""
    indexes: NDArray[np.int32]
    """A capture."""
    timestamps: NDArray[np.int64]
    """A capture: commit timestamps, µs."""
    areas: NDArray[np.uint8]
    """A record."""
    operations: NDArray[np.uint8]
    """A record."""
    type_codes: NDArray[np.int32]
    """A record: place in ``entity_types``; -1 on leads."""
    entity_types: tuple[str, ...]
    keys: Texts
    """A record: primary keys."""
    names: NameLists
    """A record: the columns that changed."""
    texts: dict[str, Texts]
    """A record: of ``change``, ``before`` and ``after`` those that the content includes."""
    rows: NDArray[np.int32] | None = None
    """A capture: its record. None: one capture a record, in their order."""
    ordinals: NDArray[np.int32] | None = None
    """A capture. None: all are at entity level."""
    container_types: NDArray[np.uint8] | None = None
    """A capture: role of the column; 0 at entity level."""
    container_names: tuple[str, ...] | None = None
    """A capture: name of the column; "" at entity level."""
    schema_of: Callable[[int], Schema] = no_schema
    """Version → the schema that it was written with, for codecs that read values."""
    kind: CaptureKind = CaptureKind.CHANGE
    """The kind that all of them have."""
    transitions: NDArray[np.uint8] | None = None
    """A capture: how it moved its row, a code of `rows.transitions`. Then captures have
    one record each. None: no condition was evaluated on them."""
    cursors: Callable[[], pa.BinaryArray] | None = None
    """Makes the text of each capture's cursor. None: it is that of the capture's place in the log."""

    def body(self, name: str) -> pa.BinaryArray | None:
        """Return one of ``texts`` as an Arrow array; None if the content leaves it out."""
        found = self.texts.get(name)
        return None if found is None else found.array

    def gathered(self) -> CaptureColumns:
        """Return the same captures with one record each."""
        rows = self.rows
        if rows is None:
            return self
        places = pa.array(rows)

        def taken(array: pa.Array) -> pa.Array:
            if array.null_count == len(array) >= len(rows):  # all are null, whatever the rows
                return array.slice(0, len(rows))
            return array.take(places)

        return replace(
            self,
            areas=self.areas[rows],
            operations=self.operations[rows],
            type_codes=self.type_codes[rows],
            keys=Texts.of(taken(self.keys.array)),
            names=NameLists.of(taken(self.names.array)),
            texts={name: Texts.of(taken(body.array)) for name, body in self.texts.items()},
            rows=None,
        )

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.versions)


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Frames end to end, cut into messages."""

    offsets: NDArray[np.int64]
    """Place of each frame in the bytes of all messages, and the end of the last; shape (frames + 1,)."""
    starts: list[int]
    """Number of the first frame of each message; last, the number of frames."""
    data: list[bytes]
    """Bytes of each message."""


def cut_into_messages(frames: pa.BinaryArray, message_bytes: int) -> EncodedMessages:
    """Cut frames into messages of up to so many bytes; a larger frame is a message of its own."""
    within = np.frombuffer(frames.buffers()[1], np.int32)
    offsets = within[frames.offset : frames.offset + len(frames) + 1].astype(np.int64)
    starts = [0]
    while starts[-1] < len(frames):
        limit = offsets[starts[-1]] + message_bytes
        starts.append(max(starts[-1] + 1, int(offsets.searchsorted(limit, "right")) - 1))
    data = memoryview(frames.buffers()[2])
    borders = offsets[starts].tolist()
    pieces = [bytes(data[start:stop]) for start, stop in pairwise(borders)]
    return EncodedMessages(offsets - offsets[0], starts, pieces)


def join_into_messages(frames: Sequence[bytes], message_bytes: int) -> EncodedMessages:
    """Join frames that lie apart into such messages; for a few frames."""
    starts: list[int] = []
    size = 0
    for place, frame in enumerate(frames):
        if not starts or size + len(frame) > message_bytes:
            starts.append(place)
            size = 0
        size += len(frame)
    starts.append(len(frames))
    offsets = int64s([*accumulate(map(len, frames), initial=0)])
    pieces = [b"".join(frames[start:stop]) for start, stop in pairwise(starts)]
    return EncodedMessages(offsets, starts, pieces)


class Codec(Protocol):
    """A wire form of captures."""

    name: str

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one frame a capture. Pure; called in reader threads."""

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames in messages of up to so many bytes. A codec may write them itself instead."""
        return cut_into_messages(self.encode(columns), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame of a header with the number of bytes of bodies that were left out."""


EMPTY = pa.scalar(b"", pa.binary())


def lengths(array: pa.Array) -> NDArray[np.int32]:
    """Return the byte length of each element of a binary or string array; 0 for null."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[
        array.offset : array.offset + len(array) + 1
    ]
    sizes = np.diff(offsets)
    if array.null_count:
        sizes = np.where(present(array), sizes, 0).astype(np.int32)
    return sizes


def present(array: pa.Array) -> NDArray[np.bool_]:
    """Return which elements are not null."""
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def encode_name_lists(
    names: NameLists, encode: Callable[[tuple[str, ...] | None], bytes]
) -> pa.BinaryArray:
    """Return each list of names encoded; a batch has few distinct lists, and each is encoded once."""
    array, dictionary = names.array, names.names
    bounds = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1].tolist()
    codes = array.values.indices.to_numpy().tobytes()
    nulls = set(np.flatnonzero(~present(array)).tolist()) if array.null_count else ()
    known: dict[bytes | None, int] = {}
    encoded: list[bytes] = []
    places = np.empty(len(array), np.int32)
    for row in range(len(array)):
        key = None if row in nulls else codes[4 * bounds[row] : 4 * bounds[row + 1]]
        place = known.get(key)
        if place is None:
            place = known[key] = len(encoded)
            listed = None if key is None else np.frombuffer(key, np.int32).tolist()
            encoded.append(
                encode(None if listed is None else tuple(dictionary[code] for code in listed))
            )
        places[row] = place
    return pa.array(encoded, pa.binary()).take(pa.array(places))


def binary_array(data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> pa.BinaryArray:
    """Return the binary array of the elements that lie end to end in ``data``, of the given sizes."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)


def equal_elements(rows: NDArray[np.void]) -> pa.BinaryArray:
    """Return the items of a packed structured array as binary elements."""
    size = rows.dtype.itemsize
    offsets = np.arange(0, size * (len(rows) + 1), size, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )
