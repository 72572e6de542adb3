"""Frames of one run, encoded once and shared by all subscriptions that they are sent to.

A block holds a run's frames end to end, already cut into messages of about ``message_bytes``. A
subscription that takes a whole message gets the block's own object, so a hundred of them share one copy.

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
"""Up to so many frames are picked one by one, which is faster than Arrow."""
_BLOCK_BYTES: Final = 1_800
"""Bytes of a block and its cache entry beside the frames: of a small commit nearly all."""


class Frames(NamedTuple):
    """Captures for a transport: their wire bytes, and the place of the last one in the log."""

    data: bytes
    """The frames end to end, as the codec joins them."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    """Number of captures."""
    last: tuple[int, int, int]
    """Version, index and ordinal of the last capture."""


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
        """Keep a codec's messages with the places of their captures in the log."""
        self.versions = versions
        self.indexes = indexes
        self.ordinals = ordinals
        self.offsets = messages.offsets
        self.starts = messages.starts
        stops = self.starts[1:]
        counts = map(sub, stops, self.starts)
        lasts = self._coordinates([*map(sub, stops, repeat(1))])
        # One C call makes all of them. A step of Python for each message would be a fifth of what a batch
        # takes beside the compiled encoder.
        each = map(tuple.__new__, repeat(Frames), zip(messages.data, counts, lasts, strict=True))
        self.messages: dict[int, Frames] = dict(zip(self.starts, each, strict=False))
        """Messages by the number of their first frame."""
        self.nbytes = int(self.offsets[-1]) + 24 * len(versions) + _BLOCK_BYTES

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.versions)

    def take(self, start: int, count_max: int) -> Frames:
        """Return frames from ``start`` to the end of their message, at most ``count_max``.

        A message that is taken whole is shared, not copied.
        """
        # 1. The common case: a whole message, found by its first frame.
        message = self.messages.get(start)
        if message is not None and message.count <= count_max:
            return message
        # 2. Else a part. It never reaches into the next message, as joining two would copy both.
        place = bisect_right(self.starts, start) - 1
        first = self.starts[place]
        message = self.messages[first]
        stop = min(self.starts[place + 1], start + count_max)
        count = stop - start
        base = self.offsets[first]
        data = message.data[self.offsets[start] - base : self.offsets[stop] - base]
        return Frames(data, count, self.coordinates(stop - 1))

    def fitting(self, start: int, count_max: int, bytes_max: int) -> Frames:
        """Return the same within ``bytes_max``, but at least one frame."""
        # At least one, or a frame above the bound would stop its subscription for ever. The caller
        # decides what becomes of it.
        frames = self.take(start, count_max)
        if len(frames.data) <= bytes_max:
            return frames
        limit = self.offsets[start] + bytes_max
        fit = int(np.searchsorted(self.offsets, limit, "right")) - 1 - start
        return self.take(start, max(1, min(frames.count, fit)))

    def size(self, place: int) -> int:
        """Return the bytes of one frame."""
        return int(self.offsets[place + 1] - self.offsets[place])

    def frame(self, place: int) -> bytes:
        """Return one frame."""
        return self.take(place, 1).data

    def coordinates(self, place: int) -> tuple[int, int, int]:
        """Return version, index and ordinal of a capture."""
        return next(self._coordinates((place,)))

    def _coordinates(self, places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        versions, indexes = map(self.versions.item, places), map(self.indexes.item, places)
        ordinals = repeat(0) if self.ordinals is None else map(self.ordinals.item, places)
        return zip(versions, indexes, ordinals, strict=False)

    def pick(self, selection: BatchSelection, message_bytes: int) -> FrameBlock:
        """Return the block of an entity-level selection; this block must be of the whole batch."""
        rows = selection.rows
        versions, indexes = self.versions.take(rows), self.indexes.take(rows)
        return FrameBlock(
            cut_into_messages(self._frames_of(rows), message_bytes), versions, indexes, None
        )

    def _frames_of(self, rows: NDArray[np.int32]) -> pa.BinaryArray:
        if len(rows) <= _ONE_BY_ONE_MAX:
            return pa.array([self.frame(row) for row in rows.tolist()], pa.binary())
        # Each message is its own piece of memory, so Arrow takes from one after the other. `borders` are
        # the places in `rows` where the frames of the next message begin.
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
"""Bytes of one frame of a crowd beside its content: the object, its coordinates, its place by row."""


class CrowdFrames:
    """Frames of one batch, one by one, for publishers that match a few records of it each. Immutable."""

    __slots__ = ("_by_row", "nbytes")

    def __init__(self, block: FrameBlock, rows: Sequence[int]) -> None:
        """Take the frames of a block apart; ``rows`` are the offsets in the batch of its records."""
        self._by_row = {row: block.take(place, 1) for place, row in enumerate(rows)}
        self.nbytes = int(block.offsets[-1]) + _FRAME_BYTES * len(rows) + _BLOCK_BYTES

    def of(self, rows: Sequence[int]) -> Frames | None:
        """Return the frames of some records end to end; None if one of them is not here."""
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
    """Return the log's columns that a content needs."""
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

    ``kind`` and ``cursors`` are as of ``CaptureColumns``.
    """
    # 1. What a capture needs of its own is taken by row; the other columns stay the batch's, and the codec
    # finds a record by `rows`. So a whole batch copies nothing.
    rows = None if selection.identity is None else selection.rows
    versions, indexes = head.versions, head.indexes
    # Few rows go without numpy's functions, whose first call after a pause takes longer than all of this.
    if rows is not None and len(rows) <= SMALL_LENGTH:
        few = rows.tolist()
        versions, indexes = int64s([*map(versions.item, few)]), int32s([*map(indexes.item, few)])
    elif rows is not None:
        places = rows.astype(np.intp)  # once, not in each of them
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
    # 2. Captures that a condition has judged lose the images that are outside of it. Those of a record that is
    # judged by others as well stay as they are.
    if selection.transitions is not None:
        columns = without_hidden(columns.gathered(), selection.transitions)
        columns = replace(columns, transitions=selection.transitions)
    # 3. Column-level captures of one record differ in their bodies, so each gets a record of its own.
    # Only then are the bodies cut: cutting them first would change the record for its other captures.
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
