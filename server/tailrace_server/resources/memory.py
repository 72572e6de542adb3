"""Shares of the memory budget: large messages, short messages, and what requests hold.

=================  ============================================================================
large messages     share a part of the budget; one for which there is no room waits for its turn
all messages       are cut smaller while memory is short: a stalled reader then holds less
criteria, pages    are charged before they are allocated; without room the request is refused
=================  ============================================================================

The cache cannot shed messages that transports have. Each subscription is bounded, to one message here and one
in the transport, but a thousand readers of rows of 1 MiB are too much together.

A request is refused with ``ServerFull``: no other reader pays for it, and a retry helps once others have ended.
A request that is alone is never refused: it has bounds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self

from tailrace.errors import ServerFull

COPIES: Final = 2
"""A transport keeps its own copy of what it was handed."""

_LARGE_SHARE: Final = 4
"""Large messages that are on their way may come to one part in so many of the budget."""

SHORT_MESSAGE_BYTES: Final = 16 << 10
"""The largest message while memory is short, bytes. A stalled stream over gRPC takes some 60 KiB beside
them."""

_SHORT_FROM: Final = 5 / 8
"""Memory is short where the process holds so much of its budget."""


class Wakeable(Protocol):
    """A subscription, as far as it is known here."""

    def wake(self) -> None:
        """Let it ask again."""


class _Line:
    """One queue for room: readers with a large message in flight, and those that wait, by age."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken: dict[Wakeable, int] = {}
        self.waiting: dict[Wakeable, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(self.taken.values())


class LargeMessages:
    """Which messages are large, and the part of the budget that these share while they are on their way.

    There are two lines. A subscription that has never come back from a large message may be about to stall, so
    all of those together get half of the room. The others come first: a stalled crowd delays newcomers, and no
    reader that is active.
    """

    def __init__(self, memory_bytes: int, message_bytes: int) -> None:
        """Make the share of a budget; all of it is free, and messages are cut as usual."""
        self._message_bytes = self.message_bytes_max = message_bytes
        """The largest message of any subscription, bytes, and the size above which a message is large."""
        self._short_from = memory_bytes * _SHORT_FROM
        self._bytes_max = memory_bytes // _LARGE_SHARE
        self._readers, self._newcomers = _Line(self._bytes_max), _Line(self._bytes_max // 2)
        self._lines = self._readers, self._newcomers

    def measured(self, process_bytes: int) -> None:
        """Cut messages smaller from now on if memory is short, and as usual if it is not."""
        self.message_bytes_max = self._message_bytes
        if process_bytes >= self._short_from:
            self.message_bytes_max = min(self._message_bytes, SHORT_MESSAGE_BYTES)

    def admit(self, subscription: Wakeable, size: int, *, reads: bool) -> bool:
        """Return whether a message may be handed over now; if not, the subscription is woken when it may.

        It stays admitted until ``release``. A message larger than all the room has its turn when nothing else
        is on its way.

        Args:
            subscription: Whose message it is.
            size: Its bytes.
            reads: Whether it has taken such a message before.
        """
        line = self._readers if reads else self._newcomers
        if subscription not in line.taken:
            line.waiting.setdefault(subscription, size * COPIES)
            self._admit_waiting()
        return subscription in line.taken

    def keeps_waiting(self, subscription: Wakeable) -> bool:
        """Return whether a subscription was not admitted and still is not."""
        return any(subscription in line.waiting for line in self._lines)

    def release(self, subscription: Wakeable) -> None:
        """Give back the room that a subscription has taken, or its place in the line."""
        for line in self._lines:
            line.waiting.pop(subscription, None)
            line.taken.pop(subscription, None)
        self._admit_waiting()

    @property
    def waiting(self) -> int:
        """Subscriptions that wait for their turn."""
        return sum(len(line.waiting) for line in self._lines)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the messages that wait; 0 while none does."""
        return sum(sum(line.waiting.values()) for line in self._lines)

    def _admit_waiting(self) -> None:
        """Admit those that wait, in their order, as far as there is room."""
        taken = sum(line.taken_bytes for line in self._lines)
        for line in self._lines:
            room = min(self._bytes_max - taken, line.bytes_max - line.taken_bytes)
            while line.waiting:
                subscription, size = next(iter(line.waiting.items()))
                # The first that does not fit stops both lines. Were others let past it, a stream of smaller
                # messages could keep it waiting for ever. With nothing on its way it goes, whatever its size.
                if size > room and taken:
                    return
                del line.waiting[subscription]
                line.taken[subscription] = size
                room -= size
                taken += size
                subscription.wake()


CRITERIA_SHARE: Final = 5
"""Criteria may take 1/5 of the memory budget: 100,000 subscribers of one key each need that."""
PAGES_SHARE: Final = 8
"""Pages may take 1/8 of the memory budget."""


class MemoryShare:
    """The part of the memory budget that one kind of requests may hold."""

    def __init__(self, kind: str, memory_bytes: int, share: int) -> None:
        """Begin without a charge; 1/``share`` of the budget; errors name the kind, in the plural."""
        self._kind = kind
        self._share = share
        self.bytes_max = memory_bytes // share
        self.bytes = 0
        """Bytes charged by all requests now."""

    def empty(self) -> MemoryCharge:
        """Return a charge of no bytes."""
        return MemoryCharge(self)

    def charge(self, nbytes: int) -> MemoryCharge:
        """Charge bytes until the result is released.

        Raises:
            ServerFull: There is no room for them.
        """
        charge = MemoryCharge(self)
        charge.add(nbytes)
        return charge

    def refusal(self) -> ServerFull:
        """Return the error of a request for which there is no room."""
        return ServerFull(
            f"{self._kind} of all open requests may take {self.bytes_max} bytes together, 1/{self._share} of "
            "the server's memory (memory), and these do not fit; try again later, or ask for less"
        )


@dataclass(slots=True)
class MemoryCharge:
    """The bytes of one request in a share; a context manager, or released by hand."""

    _share: MemoryShare
    nbytes: int = 0

    def __enter__(self) -> Self:
        """Return the charge."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self, nbytes: int) -> None:
        """Charge more bytes.

        Raises:
            ServerFull: There is no room for them, and other requests hold some.
        """
        share = self._share
        # A request that is alone is admitted whatever it takes: a refusal would never end.
        if share.bytes + nbytes > share.bytes_max and share.bytes > self.nbytes:
            raise share.refusal()
        self.nbytes += nbytes
        share.bytes += nbytes

    def move_to(self, other: MemoryCharge) -> None:
        """Hand the bytes over to another charge of the same share."""
        other.nbytes += self.nbytes
        self.nbytes = 0

    def release(self) -> None:
        """Release all bytes. Idempotent."""
        self._share.bytes -= self.nbytes
        self.nbytes = 0
