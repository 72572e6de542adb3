"""Cutting of messages from a subscription's queue: the captures of the next message, and their frames.

Blocks of frames are already cut into messages. So a part that does not fit waits for the next message:
subscribers that receive messages with the same borders share the bytes.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from tailrace.criteria import CaptureKind, Content
from tailrace_server.log_cache.frames import Frames
from tailrace_server.rows.run import is_narrow

if TYPE_CHECKING:
    from tailrace_server.live.intake import Intake, Slice
    from tailrace_server.live.options import DeliveryOptions
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.log_cache.frames import FrameBlock


def whole_messages(slice: Slice, block: FrameBlock, demand: int | None) -> list[int]:
    """Return the borders of the block's messages that are inside a slice; empty if there are none.

    The last message of the slice is omitted, because it may be joined with the next slice.
    """
    # The slice must begin at a border: else none of its messages has the bytes of a message of the block.
    starts = block.starts
    place = bisect_left(starts, slice.start)
    if starts[place] != slice.start:
        return []
    stop = bisect_left(starts, slice.stop)
    if demand is not None:
        stop = min(stop, bisect_right(starts, slice.start + demand))
    return starts[place:stop] if stop - place > 1 else []


class MessageCutter:
    """The cutting of messages for one subscription. ``demand`` is None where there is no bound."""

    __slots__ = ("_log", "_options")

    def __init__(self, log: FollowedLog, options: DeliveryOptions) -> None:
        """Make a cutter for captures of a log, with the options of one subscription."""
        self._log = log
        self._options = options

    def fitting(
        self, slice: Slice, block: FrameBlock, demand: int | None, bytes_max: int
    ) -> Frames | None:
        """Return the next frames of a slice, as many as ``bytes_max`` and the demand allow.

        A capture that is larger than ``bytes_max`` is returned alone. Return None if it is larger than the
        subscriber accepts (``max_message_bytes``).
        """
        room = slice.stop - slice.start
        if demand is not None and demand < room:
            room = demand
        frames = block.fitting(slice.start, room, bytes_max)
        return frames if len(frames.data) <= self._options.max_message_bytes else None

    def joined(self, intake: Intake, frames: Frames, demand: int | None, bytes_max: int) -> Frames:
        """Return the frames, extended by following slices that fit and are encoded; these leave the queue."""
        # A block that is not encoded yet ends the message: what is ready does not wait for it.
        parts, size, count, last = [frames.data], len(frames.data), frames.count, frames.last
        while intake.queue and size < bytes_max and count != demand:
            slice = intake.queue[0]
            left = None if demand is None else demand - count
            more = self.of_crowd(slice, left, bytes_max - size)
            if more is None:
                if (block := self._ready_block(slice)) is None:
                    break
                room = slice.stop - slice.start
                more = block.take(slice.start, room if left is None else min(room, left))
            # Nothing has left the queue yet: a part that does not fit stays there for the next message.
            size += len(more.data)
            if size > bytes_max:
                break
            parts.append(more.data)
            count += more.count
            last = more.last
            intake.deliver(more.count, last)
        return frames if len(parts) == 1 else Frames(b"".join(parts), count, last)

    async def block(self, slice: Slice) -> FrameBlock:
        """Return the frames of a slice's run; read and encode them if the cache has none."""
        # Only a weak reference: the cache decides how long the block stays in memory.
        block = await self._frames(slice, self._options.content)
        slice.block = weakref.ref(block)
        return block

    def of_crowd(self, slice: Slice, demand: int | None, bytes_max: int) -> Frames | None:
        """Return the whole slice as one message if its frames were made for a crowd and fit; else None."""
        run = slice.run
        count = len(run)
        if run.kind is not CaptureKind.CHANGE or not is_narrow(run.selection):
            return None
        if slice.stop - slice.start < count:
            return None
        if demand is not None and demand < count:
            return None
        # The frames of a crowd are one message for the whole run, so a part of a run cannot use them.
        frames = self._log.reading.crowd_frames(run, self._options.codec, self._options.content)
        if frames is None or len(frames.data) > min(bytes_max, self._options.max_message_bytes):
            return None
        return frames

    def taken(self, slice: Slice) -> None:
        """Drop the frames of a delivered slice, unless its run has more captures or others need the frames."""
        # A slice that was served from a crowd's frames has no block.
        # Only at the end of the run: the next slice of the same run needs the same block.
        if slice.block is not None and slice.stop == len(slice.run):
            codec, content = self._options.codec, self._options.content
            self._log.reading.drop_frames_unless_shared(slice.run, codec, content)

    async def header_only(self, slice: Slice, block: FrameBlock) -> Frames:
        """Return only the header of the next capture, which is too large for the subscriber."""
        # The full frame is made only for its size and cursor; the header comes from a block without bodies.
        frames = block.take(slice.start, 1)
        header = (await self._frames(slice, Content.HEADER)).frame(slice.start)
        header = self._options.codec.with_omitted(header, len(frames.data) - len(header))
        return Frames(header, 1, frames.last)

    async def _frames(self, slice: Slice, content: Content) -> FrameBlock:
        log, codec = self._log, self._options.codec
        return await log.reading.frames(slice.run, log.view, codec, content)

    def _ready_block(self, slice: Slice) -> FrameBlock | None:
        """Return the frames of a slice's run if they are encoded; else begin to encode them and return None."""
        if slice.run.selection.is_unjudged:
            return (
                None  # the run ends the subscription, after everything before the run was delivered
            )
        log, codec, content = self._log, self._options.codec, self._options.content
        block = log.reading.ready_frames(slice.run, log.view, codec, content)
        if block is None:
            log.reading.prefetch_frames(slice.run, log.view, codec, content)
        else:
            slice.block = weakref.ref(block)
        return block
