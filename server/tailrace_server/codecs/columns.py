"""The interface of codecs: their input, columns of captures, and their output, messages of frames."""

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
    """Return an empty schema, for captures whose columns are unknown."""
    return _NO_SCHEMA


@dataclass(frozen=True, slots=True)
class CaptureColumns:
    """Captures of one batch, as columns.

    A record can have several captures. So some columns have one element for each capture, and the others one
    for each record; ``rows`` connects the two.
    """

    catalog_uuid: UUID
    versions: NDArray[np.int64]
    """Version of each capture."""
    indexes: NDArray[np.int32]
    """Index of each capture's record in its version."""
    timestamps: NDArray[np.int64]
    """Commit timestamp of each capture, in microseconds."""
    areas: NDArray[np.uint8]
    """Area of each record."""
    operations: NDArray[np.uint8]
    """Operation of each record."""
    type_codes: NDArray[np.int32]
    """Index of each record's entity type in ``entity_types``; -1 for TRANSACTION records."""
    entity_types: tuple[str, ...]
    keys: Texts
    """Primary key of each record."""
    names: NameLists
    """Changed columns of each record; null if the record names none, as an insert."""
    texts: dict[str, Texts]
    """Name of each requested body, ``change``, ``before`` or ``after`` → the body of each record."""
    rows: NDArray[np.int32] | None = None
    """Index of each capture's record; None: each record has one capture, in the same order."""
    ordinals: NDArray[np.int32] | None = None
    """Ordinal of each capture; None: all captures are of whole records."""
    container_types: NDArray[np.uint8] | None = None
    """Role of each capture's column, 0 for a whole record; None: all captures are of whole records."""
    container_names: tuple[str, ...] | None = None
    """Name of each capture's column, "" for a whole record; None: all captures are of whole records."""
    schema_of: Callable[[int], Schema] = no_schema
    """Function that returns the schema that a version was written with, for codecs that read values."""
    kind: CaptureKind = CaptureKind.CHANGE
    """The kind of all captures."""
    transitions: NDArray[np.uint8] | None = None
    """Code of ``rows.transitions`` for each capture; then each record has one capture. None: all are 0."""
    cursors: Callable[[], pa.BinaryArray] | None = None
    """Function that returns the text of each capture's cursor; None: the cursor of its place in the log."""

    def body(self, name: str) -> pa.BinaryArray | None:
        """Return one of ``texts`` as an Arrow array; None if it was not requested."""
        found = self.texts.get(name)
        return None if found is None else found.array

    def gathered(self) -> CaptureColumns:
        """Return the captures with one record for each of them, so that all columns have equal lengths."""
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
    """Contiguous frames, cut into messages."""

    offsets: NDArray[np.int64]
    """Offset of each frame in the joined bytes of all messages, and the total size; shape (frames + 1,)."""
    starts: list[int]
    """Index of the first frame of each message, and finally the number of frames."""
    data: list[bytes]
    """The bytes of each message."""


def cut_into_messages(frames: pa.BinaryArray, message_bytes: int) -> EncodedMessages:
    """Cut contiguous frames into messages of up to ``message_bytes``; a larger frame gets its own message."""
    within = np.frombuffer(frames.buffers()[1], np.int32)
    offsets = within[frames.offset : frames.offset + len(frames) + 1].astype(np.int64)
    starts = [0]
    while starts[-1] < len(frames):
        # Take the frames that end within the limit, but at least one.
        limit = offsets[starts[-1]] + message_bytes
        starts.append(max(starts[-1] + 1, int(offsets.searchsorted(limit, "right")) - 1))
    data = memoryview(frames.buffers()[2])
    borders = offsets[starts].tolist()
    pieces = [bytes(data[start:stop]) for start, stop in pairwise(borders)]
    return EncodedMessages(offsets - offsets[0], starts, pieces)


def join_into_messages(frames: Sequence[bytes], message_bytes: int) -> EncodedMessages:
    """Join separate frames to messages of up to ``message_bytes``; for a few frames."""
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
    """Interface of an encoder of captures to one wire form."""

    name: str
    """Cache key of the codec's frames."""

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the frame of each capture. Pure; called in reader threads."""

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames in messages of up to ``message_bytes``; a codec may override this to be faster."""
        return cut_into_messages(self.encode(columns), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame of a capture whose bodies are too large.

        Args:
            header_frame: The frame of the capture without bodies.
            omitted_bytes: The size of the bodies; the frame reports it in their place.
        """


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
    """Return a mask of the elements that are not null."""
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def encode_name_lists(
    names: NameLists, encode: Callable[[tuple[str, ...] | None], bytes]
) -> pa.BinaryArray:
    """Encode each list of names. Each distinct list is encoded once; a batch has few of them."""
    array, dictionary = names.array, names.names
    bounds = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1].tolist()
    codes = array.values.indices.to_numpy().tobytes()
    nulls = set(np.flatnonzero(~present(array)).tolist()) if array.null_count else ()
    known: dict[bytes | None, int] = {}
    encoded: list[bytes] = []
    places = np.empty(len(array), np.int32)
    for row in range(len(array)):
        # The bytes of a list's codes are its key, so that a repeated list needs no Python objects.
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
    """Return a binary array whose elements are contiguous in ``data`` and have the given sizes."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)


def equal_elements(rows: NDArray[np.void]) -> pa.BinaryArray:
    """Return the items of a packed structured array as elements of a binary array."""
    size = rows.dtype.itemsize
    offsets = np.arange(0, size * (len(rows) + 1), size, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )
