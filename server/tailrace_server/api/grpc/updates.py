"""CDCv2 over a subscription: the updates that leave are counted, and closed by progress once they are complete.

::

    frames with updates of 7, 7, 8   complete below 8    + progress [3, 8)  7 → 2
    heartbeat                        complete below 12   + progress [8, 12) 8 → 1

The bytes of the updates are shared by all subscribers and go out as they are. Counted for one subscriber is
what of versions not yet complete has left: a number for each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tailrace.errors import ImagesMissing, InvalidRequest
from tailrace.v1.change_capture_pb2 import Progress, SubscribeResponse, UpdateCount
from tailrace_server.log_cache.frames import Frames

if TYPE_CHECKING:
    from tailrace.capture import Heartbeat
    from tailrace.v1.change_capture_pb2 import Update
    from tailrace_server.live.subscription import Subscription


class UpdateStream:
    """One subscription's progress."""

    def __init__(self, subscription: Subscription) -> None:
        """Begin at the subscription's resolved start, or at the first whole version behind it."""
        start = subscription.acknowledgement.start
        self._subscription = subscription
        self._closed_below = start.version + (start.index > 0)
        self._counts: Counter[int] = Counter()

    def behind(self, message: Frames | Heartbeat) -> bytes:
        """Return what is to be sent behind a message: progress, or nothing.

        Raises:
            ImagesMissing: A record in it cannot be said as updates.
            InvalidRequest: The images of one are larger than the subscription takes.
        """
        if isinstance(message, Frames):
            updates = SubscribeResponse.FromString(message.data).updates
            for update in updates:
                if not update.diff:
                    raise _unsayable(update)
            self._counts.update(update.time for update in updates)
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
