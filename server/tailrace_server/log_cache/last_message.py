"""The last message of a subscription, while the transport has it, and its share of the memory budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.resources.memory import LargeMessages, Wakeable


class LastMessage:
    """The newest message of a transport. A subscription has one, and passes itself to ask for room."""

    __slots__ = ("_asked", "_large", "_message_bytes", "_takes_large", "frames", "handed_at")

    def __init__(self, message_bytes: int, large: LargeMessages) -> None:
        """Begin with none; ``message_bytes`` is where the subscription's messages are cut."""
        self._message_bytes = message_bytes
        self._large = large
        self._asked = False
        """True if room for a large message was asked for, and is not given back."""
        self._takes_large = False
        """True if the transport has taken a large message and come back for the next."""
        self.frames: Frames | None = None
        """The message; None once the transport has come back for the next."""
        self.handed_at = 0.0
        """The event loop's time when it was handed over, seconds."""

    @property
    def bytes_max(self) -> int:
        """The largest next message, bytes; less than usual while memory is short."""
        return min(self._message_bytes, self._large.message_bytes_max)

    @property
    def nbytes(self) -> int:
        """Bytes that the transport has not come back from."""
        return 0 if self.frames is None else len(self.frames.data)

    @property
    def has_room(self) -> bool:
        """True if the transport has a large message, in the room that all of those share."""
        return self._asked and self.frames is not None

    def stalled_for(self, now: float) -> float:
        """Return for how many seconds the transport has been busy with the message."""
        return 0.0 if self.frames is None else now - self.handed_at

    def admits(self, size: int, subscription: Wakeable) -> bool:
        """Return whether there is room for a message now; if not, the subscription is woken when there is."""
        if size <= self.bytes_max:
            return True
        self._asked = True
        return self._large.admit(subscription, size, reads=self._takes_large)

    def waits_for_room(self, subscription: Wakeable) -> bool:
        """Return whether a message was not admitted and still is not."""
        return self._large.keeps_waiting(subscription)

    def taken(self, subscription: Wakeable) -> None:
        """Forget the message: the transport has come back for the next. Its room is given back."""
        if self._asked and self.frames is not None:
            self._large.release(subscription)
            self._asked, self._takes_large = False, True
        self.frames = None

    def end(self, subscription: Wakeable) -> None:
        """Forget the message, and give back the room or the place in the line, as the subscription ends."""
        self.frames = None  # the transport may still be busy with it, and has it itself
        self._large.release(subscription)
