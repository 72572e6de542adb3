"""One timer for all streams of a face: it ends a stream that cannot write for too long.

A stream notes when its write began, which costs next to nothing a message. The timer reads these notes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class ReaderGone(Exception):
    """The peer of a stream has left, or its connection was ended: nothing more can be sent."""


class Guarded(ABC):
    """A stream that writes one message after the other, and ends when its reader does not read."""

    __slots__ = ("blocked_since", "expired")

    def __init__(self) -> None:
        """Begin between writes."""
        self.blocked_since: float | None = None
        """Loop time at which the write under way began; None between writes."""
        self.expired = False
        """Whether the send deadline, or a lack of memory, has ended the stream."""

    def interrupt(self) -> None:
        """End the stream if a write is under way: there is no memory for a reader that does not read."""
        if self.blocked_since is not None:
            self.expire()

    def expire(self) -> None:
        """End the stream: its reader has left a message unread past the send deadline. Idempotent."""
        if not self.expired:
            self.expired = True
            self._end_stream()

    @abstractmethod
    def _end_stream(self) -> None:
        """End the write under way and its stream, in the face's own way."""


class SendGuard:
    """Watches the streams of one face."""

    def __init__(self, deadline_s: float) -> None:
        """Keep the deadline; no timer runs while there is no stream."""
        self.deadline_s = deadline_s
        self.expired = 0
        """Streams ended as too slow, since the guard was made."""
        self._interval_s = min(1.0, deadline_s / 4)
        self._senders: set[Guarded] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, sender: Guarded) -> None:
        """Start to watch a sender."""
        self._senders.add(sender)
        if self._timer is None:
            self._arm()

    def forget(self, sender: Guarded) -> None:
        """Stop watching a sender."""
        self._senders.discard(sender)
        if not self._senders and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._expire_overdue)

    def _expire_overdue(self) -> None:
        latest = asyncio.get_running_loop().time() - self.deadline_s
        for sender in self._senders:
            if sender.blocked_since is not None and sender.blocked_since <= latest:
                self.expired += not sender.expired
                sender.expire()
        self._arm()
