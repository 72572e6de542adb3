"""The message that a subscription's transport is sending, and its share of the memory budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.resources.memory import LargeMessages, Wakeable


class LastMessage:
    """The last message that one subscription gave to its transport, and the room reserved for it."""

    __slots__ = ("_asked", "_large", "_message_bytes", "_takes_large", "frames", "handed_at")

    def __init__(self, message_bytes: int, large: LargeMessages) -> None:
        """Begin without a message.

        Args:
            message_bytes: The usual size at which the subscription's messages are cut.
            large: The room that all large messages of the process share.
        """
        self._message_bytes = message_bytes
        self._large = large
        self._asked = False
        """True if room for a large message was requested and is not released yet."""
        self._takes_large = False
        """True if the transport has sent a large message before and requested the next."""
        self.frames: Frames | None = None
        """The message; None once the transport has requested the next one."""
        self.handed_at = 0.0
        """The event loop's time, in seconds, at which the transport got the message."""

    @property
    def bytes_max(self) -> int:
        """The largest size of the next message, in bytes; less than usual while memory is short."""
        return min(self._message_bytes, self._large.message_bytes_max)

    @property
    def nbytes(self) -> int:
        """Size of the message that the transport is sending, in bytes; 0 without a message."""
        return 0 if self.frames is None else len(self.frames.data)

    @property
    def has_room(self) -> bool:
        """True if the transport is sending a large message, which occupies a part of the shared room."""
        return self._asked and self.frames is not None

    def stalled_for(self, now: float) -> float:
        """Return the seconds for which the transport has been sending the message; 0 without a message."""
        return 0.0 if self.frames is None else now - self.handed_at

    def admits(self, size: int, subscription: Wakeable) -> bool:
        """Return True if there is room for a message now; if not, the subscription is woken when there is."""
        if size <= self.bytes_max:
            return True
        # The request stands even if there is no room now: the subscription is woken when there is.
        self._asked = True
        return self._large.admit(subscription, size, reads=self._takes_large)

    def waits_for_room(self, subscription: Wakeable) -> bool:
        """Return True if a message was not admitted and still waits for room."""
        return self._large.keeps_waiting(subscription)

    def taken(self, subscription: Wakeable) -> None:
        """Note that the transport has requested the next message: release the last one and its room."""
        if self._asked and self.frames is not None:
            self._large.release(subscription)
            self._asked, self._takes_large = False, True
        self.frames = None

    def end(self, subscription: Wakeable) -> None:
        """End with the subscription: release the message, and its room or its place in the queue for room."""
        self.frames = None  # the transport may still be sending the message, and holds it itself
        self._large.release(subscription)
