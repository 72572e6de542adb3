"""The book of the memory budget: an account for each use of memory, with its bound and what it holds.

=================  ============================================================================
large messages     have an account; a message for which it has no room waits for its turn
all messages       are cut smaller while memory is short: a stalled reader then holds less
criteria, pages    are charged before they are allocated; without room the request is refused
=================  ============================================================================

The bounds of the accounts add up to more than the budget: each stops one use of memory from taking all of it.
The budget itself is kept by measurement (log_cache/memory_governor.py), as allocators and transports hold bytes
that no account knows.

The cache cannot shed messages that transports have. Each subscription is bounded, to one message here and one
in the transport, but a thousand readers of rows of 1 MiB are too much together.

A request is refused with ``ServerFull``: no other reader pays for it, and a retry helps once others have ended.
A request that is alone is never refused: it has bounds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from tailrace.errors import ServerFull

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE_SHARE: Final = 2
"""The batch cache may take 1/2 of the memory budget, and gives way to everything else."""
LARGE_MESSAGES_SHARE: Final = 4
"""Large messages in flight may take 1/4 of the memory budget."""
CRITERIA_SHARE: Final = 5
"""Criteria may take 1/5 of the memory budget: 100,000 subscribers of one key each need that."""
PAGES_SHARE: Final = 8
"""Pages of history may take 1/8 of the memory budget."""
RECEIVED_SHARE: Final = 8
"""Received bytes may take 1/8 of the memory budget over HTTP, and as much over gRPC."""
ANSWERS_SHARE: Final = 8
"""Complete answers that wait for their readers may take 1/8 of the memory budget."""
ENCODERS_SHARE: Final = 16
"""Encoders of history may take 1/16 of the memory budget; above it, answers are not compressed."""


class MemoryAccount(NamedTuple):
    """One use of memory, at one moment."""

    name: str
    bytes: int
    """Bytes that it holds now, as charged."""
    bytes_max: int | None
    """Its bound; None for the rest of the process, which has only the budget."""


class MemoryBook:
    """The memory budget of a process and its accounts. Any thread may read it."""

    def __init__(self, memory_bytes: int) -> None:
        """Begin without an account."""
        self.memory_bytes = memory_bytes
        self._accounts: dict[str, tuple[Callable[[], int], int]] = {}

    def open(self, name: str, bytes_max: int, held: Callable[[], int]) -> None:
        """Open an account; ``held`` returns its bytes. An account of the same name is replaced."""
        self._accounts[name] = held, bytes_max

    def accounts(self, process_bytes: int) -> tuple[MemoryAccount, ...]:
        """Return all accounts, and at last the rest: code, connections, allocators.

        They add up to ``process_bytes``, the measured memory of the process, or to more where a charge is
        higher than what is really held.
        """
        found = [MemoryAccount(name, held(), most) for name, (held, most) in self._accounts.items()]
        rest = max(0, process_bytes - sum(each.bytes for each in found))
        return *found, MemoryAccount("rest", rest, None)


COPIES: Final = 2
"""A transport keeps its own copy of what it was handed."""

SHORT_MESSAGE_BYTES: Final = 16 << 10
"""The largest message while memory is short, bytes. A stalled stream over gRPC takes some 60 KiB beside
them."""

SHORT_FROM: Final = 5 / 8
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
        self._short_from = memory_bytes * SHORT_FROM
        self.bytes_max = memory_bytes // LARGE_MESSAGES_SHARE
        """Bound of the messages in flight."""
        self._readers, self._newcomers = _Line(self.bytes_max), _Line(self.bytes_max // 2)
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
    def bytes(self) -> int:
        """Bytes of the messages in flight, with the copies of transports."""
        return sum(line.taken_bytes for line in self._lines)

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
        taken = self.bytes
        for line in self._lines:
            room = min(self.bytes_max - taken, line.bytes_max - line.taken_bytes)
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


class MemoryShare:
    """The part of the memory budget that one kind of requests may hold."""

    def __init__(self, kind: str, book: MemoryBook, share: int) -> None:
        """Open an account of 1/``share`` of the budget; errors name the kind, in the plural."""
        self._kind = kind
        self._share = share
        self.bytes_max = book.memory_bytes // share
        self.bytes = 0
        """Bytes charged by all requests now."""
        book.open(kind, self.bytes_max, lambda: self.bytes)

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
