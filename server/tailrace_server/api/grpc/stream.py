"""One stream of responses: its writes under the send deadline, and the progress of CDCv2.

A stream whose client leaves a message unread for too long ends with an error. The client's C-core answers
keepalive pings even while the application does not read, so without the deadline a stalled stream would stay
open for ever. The timer is in `api.send_guard`.

CDCv2 over a subscription: the updates that are sent are counted, and progress closes versions that are
complete.

::

    frames with updates of 7, 7, 8   complete below 8    + progress [3, 8)  7 → 2
    heartbeat                        complete below 12   + progress [8, 12) 8 → 1

All subscribers share the bytes of the updates, which are sent unchanged. For each subscriber only the number of
updates of each incomplete version is stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import grpc.aio

from tailrace.errors import ImagesMissing, InvalidRequest
from tailrace.v1.change_capture_pb2 import Progress, SubscribeResponse, UpdateCount
from tailrace_server.api.send_guard import Guarded, ReaderGone
from tailrace_server.log_cache.frames import Frames

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace.capture import Heartbeat
    from tailrace.v1.change_capture_pb2 import Update
    from tailrace_server.api.send_guard import SendGuard
    from tailrace_server.live.subscription import Subscription


class SendDeadlineExceeded(Exception):
    """A write was blocked past the deadline; its message is still unsent or unread."""


class GuardedSender(Guarded):
    """The writer of one stream; one task writes its messages one after the other."""

    __slots__ = ("_context", "_guard", "_task", "_time", "_write")

    def __init__(self, guard: SendGuard, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Bind to the current task, which the guard cancels at the deadline."""
        super().__init__()
        task = asyncio.current_task()
        assert task is not None
        self._guard = guard
        self._task = task
        self._time = asyncio.get_running_loop().time
        self._context = context
        self._write = context.write

    def __enter__(self) -> GuardedSender:
        self._guard.watch(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the reason if a write has failed. Doing this here keeps each single write cheap.

        Raises:
            SendDeadlineExceeded: A message was not read in time.
            ReaderGone: The client is gone.
        """
        self._guard.forget(self)
        if self.blocked_since is None:
            return
        self.blocked_since = None
        # The guard cancelled this task. If it was also cancelled by another, ``uncancel`` is not 0, and the
        # cancellation must continue.
        if isinstance(error, asyncio.CancelledError) and self.expired and not self._task.uncancel():
            raise SendDeadlineExceeded from None
        if isinstance(error, grpc.aio.InternalError):
            raise ReaderGone from error

    async def begin(self) -> None:
        """Send the headers, which are not subject to flow control.

        Otherwise grpc.aio would send the headers with the first message. If that message were stuck, grpc.aio
        would send them again with a status; core refuses that, and the call would end without a status.
        """
        self.blocked_since = self._time()
        await self._context.send_initial_metadata(())
        self.blocked_since = None

    async def send(self, data: bytes) -> None:
        """Write a message. An error is turned into its final class when the context of the sender exits."""
        await self.write(data)
        self.rest()

    def write(self, data: bytes) -> Awaitable[None]:
        """Return the write of a message, to be awaited at once. After it call ``write`` again, or ``rest``."""
        self.blocked_since = self._time()
        return self._write(data)

    def rest(self) -> None:
        """Note that no write is in progress."""
        self.blocked_since = None

    def _end_stream(self) -> None:
        self._task.cancel()


class UpdateStream:
    """The CDCv2 progress of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        """Begin at the subscription's resolved start, or at the first whole version after it."""
        start = subscription.acknowledgement.start
        self._subscription = subscription
        self._closed_below = start.version + (start.index > 0)
        self._counts: Counter[int] = Counter()

    def behind(self, message: Frames | Heartbeat) -> bytes:
        """Return the progress to send after a message; empty if there is none.

        Raises:
            ImagesMissing: A record in the message cannot be expressed as updates.
            InvalidRequest: The images of a record are larger than ``max_message_bytes``.
        """
        if isinstance(message, Frames):
            updates = SubscribeResponse.FromString(message.data).updates
            for update in updates:
                # The codec marks a record that it cannot express as an update with diff 0.
                if not update.diff:
                    raise _unsayable(update)
            self._counts.update(update.time for update in updates)
        # Versions below ``upper`` are complete, so their counts are final and can be closed.
        upper = self._subscription.complete_below()
        if upper <= self._closed_below:
            return b""
        counts = sorted((time, count) for time, count in self._counts.items() if time < upper)
        for time, _ in counts:
            del self._counts[time]
        progress = Progress(
            lower=[self._closed_below],
            upper=[upper],
            counts=[UpdateCount(time=time, count=count) for time, count in counts],
        )
        self._closed_below = upper
        return SubscribeResponse(progress=progress).SerializeToString()


def _unsayable(update: Update) -> ImagesMissing | InvalidRequest:
    key = update.primary_key if update.HasField("primary_key") else None
    if update.data:
        return InvalidRequest(
            f"version {update.time}: the row of key {key!r} has {update.data.decode()} bytes, more than "
            "max_message_bytes; subscribe with a larger one"
        )
    return ImagesMissing(update.time, key, "before or after")
