"""Frames of one run, encoded once and shared by all subscriptions to which they are sent.

A block has a run's frames end to end, already divided into messages of about ``message_bytes``. A subscription
that takes a whole message gets the block's own object, so a hundred subscriptions share one copy.

    frames     |0|1|2|3| … |319|320| … |
    messages   |<------ 0 ------>|<------ 1 ------>|
    starts      0                 320
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import repeat
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.criteria import CaptureKind, Content
from tailrace_server.codecs.columns import CaptureColumns, cut_into_messages
from tailrace_server.rows.column_captures import cut_bodies, roles_of
from tailrace_server.rows.transitions import without_hidden
from tailrace_server.wal.record.text_columns import SMALL_LENGTH, int32s, int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.codecs.columns import Codec, EncodedMessages
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.record.text_columns import Texts
    from tailrace_server.wal.segment.reader import BatchHead

_ONE_BY_ONE_MAX: Final = 16
"""Up to this many frames are picked one by one, which is faster than with Arrow."""
_BLOCK_BYTES: Final = 1_800
"""Bytes of a block and its cache entry without the frames; for a small commit this is nearly all."""


class Frames(NamedTuple):
    """Some captures, encoded for a transport."""

    data: bytes
    """The frames, joined as the codec joins them."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    """Number of captures."""
    last: tuple[int, int, int]
    """Version, index and ordinal of the last capture in the log."""


class FrameBlock:
    """All frames of one selection of one batch, for one codec and content. Immutable."""

    __slots__ = (
        "__weakref__",
        "indexes",
        "messages",
        "nbytes",
        "offsets",
        "ordinals",
        "starts",
        "versions",
    )

    def __init__(
        self,
        messages: EncodedMessages,
        versions: NDArray[np.int64],
        indexes: NDArray[np.int32],
        ordinals: NDArray[np.int32] | None,
    ) -> None:
        """Combine a codec's messages with the versions, indexes and ordinals of their captures.

        ``ordinals`` is None if all ordinals are 0.
        """
        self.versions = versions
        self.indexes = indexes
        self.ordinals = ordinals
        self.offsets = messages.offsets
        self.starts = messages.starts
        stops = self.starts[1:]
        counts = map(sub, stops, self.starts)
        lasts = self._coordinates([*map(sub, stops, repeat(1))])
        # One C call makes all Frames. A Python step for each message would take a fifth of the whole time for a
        # batch, now that encoding is compiled.
        each = map(tuple.__new__, repeat(Frames), zip(messages.data, counts, lasts, strict=True))
        self.messages: dict[int, Frames] = dict(zip(self.starts, each, strict=False))
        """The messages, by the number of their first frame in the block."""
        self.nbytes = int(self.offsets[-1]) + 24 * len(versions) + _BLOCK_BYTES

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.versions)

    def take(self, start: int, count_max: int) -> Frames:
        """Return the frames from number ``start`` to the end of their message, at most ``count_max``.

        A whole message is not copied.
        """
        # 1. The usual case is a whole message, looked up by its first frame.
        message = self.messages.get(start)
        if message is not None and message.count <= count_max:
            return message
        # 2. Else return a part of one message. Joining two messages would copy both.
        place = bisect_right(self.starts, start) - 1
        first = self.starts[place]
        message = self.messages[first]
        stop = min(self.starts[place + 1], start + count_max)
        count = stop - start
        base = self.offsets[first]
        data = message.data[self.offsets[start] - base : self.offsets[stop] - base]
        return Frames(data, count, self.coordinates(stop - 1))

    def fitting(self, start: int, count_max: int, bytes_max: int) -> Frames:
        """Return the frames of ``take``, limited to ``bytes_max`` bytes, but at least one frame."""
        # At least one frame: otherwise a frame above the bound would stop its subscription for ever. The caller
        # decides what to do with it.
        frames = self.take(start, count_max)
        if len(frames.data) <= bytes_max:
            return frames
        limit = self.offsets[start] + bytes_max
        fit = int(np.searchsorted(self.offsets, limit, "right")) - 1 - start
        return self.take(start, max(1, min(frames.count, fit)))

    def size(self, place: int) -> int:
        """Return the size of one frame in bytes."""
        return int(self.offsets[place + 1] - self.offsets[place])

    def frame(self, place: int) -> bytes:
        """Return one frame."""
        return self.take(place, 1).data

    def coordinates(self, place: int) -> tuple[int, int, int]:
        """Return version, index and ordinal of the capture at a place in the block."""
        return next(self._coordinates((place,)))

    def _coordinates(self, places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        versions, indexes = map(self.versions.item, places), map(self.indexes.item, places)
        ordinals = repeat(0) if self.ordinals is None else map(self.ordinals.item, places)
        return zip(versions, indexes, ordinals, strict=False)

    def pick(self, selection: BatchSelection, message_bytes: int) -> FrameBlock:
        """Return the block of a selection of whole records; this block must have the whole batch."""
        rows = selection.rows
        versions, indexes = self.versions.take(rows), self.indexes.take(rows)
        return FrameBlock(
            cut_into_messages(self._frames_of(rows), message_bytes), versions, indexes, None
        )

    def _frames_of(self, rows: NDArray[np.int32]) -> pa.BinaryArray:
        if len(rows) <= _ONE_BY_ONE_MAX:
            return pa.array([self.frame(row) for row in rows.tolist()], pa.binary())
        # Each message is a separate piece of memory, so frames are taken from one message after the other.
        # `borders` are the places in `rows` at which the frames of each message begin.
        parts = []
        borders = np.searchsorted(rows, self.starts)
        for piece, (start, message) in enumerate(self.messages.items()):
            stop = start + message.count
            offsets = (self.offsets[start : stop + 1] - self.offsets[start]).astype(np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(message.data)]
            frames = pa.BinaryArray.from_buffers(pa.binary(), stop - start, buffers)
            parts.append(frames.take(pa.array(rows[borders[piece] : borders[piece + 1]] - start)))
        return pa.concat_arrays(parts)


_FRAME_BYTES: Final = 260
"""Bytes of one crowd frame without its content: the object, its coordinates and its dictionary entry."""


class CrowdFrames:
    """Single frames of one batch, for many publishers that match a few of its records each. Immutable."""

    __slots__ = ("_by_row", "nbytes")

    def __init__(self, block: FrameBlock, rows: Sequence[int]) -> None:
        """Divide a block into its frames; ``rows`` has the row in the batch of each frame."""
        self._by_row = {row: block.take(place, 1) for place, row in enumerate(rows)}
        self.nbytes = int(block.offsets[-1]) + _FRAME_BYTES * len(rows) + _BLOCK_BYTES

    def of(self, rows: Sequence[int]) -> Frames | None:
        """Return the joined frames of some rows of the batch; None if one of them is missing."""
        if len(rows) == 1:
            return self._by_row.get(rows[0])
        each = [self._by_row.get(row) for row in rows]
        found = [frames for frames in each if frames is not None]
        if len(found) < len(rows):
            return None
        return Frames(b"".join(frames.data for frames in found), len(found), found[-1].last)


_BODY_NAMES = (
    (Content.CHANGE, "change"),
    (Content.BEFORE, "before"),
    (Content.AFTER, "after"),
)


def body_columns(content: Content) -> tuple[str, ...]:
    """Return the names of the image columns that a content needs."""
    return tuple(name for flag, name in _BODY_NAMES if flag in content)


def encode(
    head: BatchHead,
    bodies: dict[str, Texts],
    selection: BatchSelection,
    *,
    codec: Codec,
    catalog_uuid: UUID,
    timestamps_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    schema_of: Callable[[int], Schema],
    message_bytes: int,
    kind: CaptureKind = CaptureKind.CHANGE,
    cursors: Callable[[], pa.BinaryArray] | None = None,
) -> FrameBlock:
    """Encode a selection of a batch. Pure; any thread may call it.

    Args:
        head: The head of the batch.
        bodies: The image columns of the batch that the content needs.
        selection: The captures to encode.
        codec: The wire form.
        catalog_uuid: The uuid of the catalog.
        timestamps_of: Returns the commit timestamps of versions, µs.
        schema_of: Returns the schema of a version.
        message_bytes: The size at which messages are cut.
        kind: The kind of the captures, as in ``CaptureColumns``.
        cursors: Makes the cursors of the captures, as in ``CaptureColumns``.
    """
    # 1. Versions, indexes and timestamps have one value for each capture. The other columns remain those of the
    # batch, where the codec looks a record up by `rows`. So encoding a whole batch copies nothing.
    rows = None if selection.identity is None else selection.rows
    versions, indexes = head.versions, head.indexes
    # For few rows numpy's functions are avoided: their first call after a pause takes longer than all the rest.
    if rows is not None and len(rows) <= SMALL_LENGTH:
        few = rows.tolist()
        versions, indexes = int64s([*map(versions.item, few)]), int32s([*map(indexes.item, few)])
    elif rows is not None:
        places = rows.astype(np.intp)  # converted once, not in each `take`
        versions, indexes = versions.take(places), indexes.take(places)
    columns = CaptureColumns(
        catalog_uuid=catalog_uuid,
        versions=versions,
        indexes=indexes,
        timestamps=timestamps_of(versions),
        areas=head.areas,
        operations=head.operations,
        type_codes=head.type_codes,
        entity_types=head.entity_types,
        keys=head.keys,
        names=head.names,
        texts=bodies,
        rows=rows,
        ordinals=selection.ordinals,
        schema_of=schema_of,
        kind=kind,
        cursors=cursors,
    )
    # 2. Captures with transitions lose the images that do not meet the condition. The columns are copied first,
    # because other captures of the same record may have other transitions.
    if selection.transitions is not None:
        columns = without_hidden(columns.gathered(), selection.transitions)
        columns = replace(columns, transitions=selection.transitions)
    # 3. Captures of single columns of one record differ in their images, so each gets a copy of the record.
    #    Only then are the images cut: cutting them first would change the record's other captures.
    if selection.names is not None:
        columns = columns.gathered()
        columns = replace(
            columns,
            texts=cut_bodies(columns.texts, selection.names),
            container_types=roles_of(head, selection, schema_of),
            container_names=selection.names,
        )
    messages = codec.messages(columns, message_bytes)
    return FrameBlock(messages, versions, indexes, selection.ordinals)
