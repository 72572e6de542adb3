"""The accounts of the memory budget: each use of memory has a bound and reports what it holds.

=================  ============================================================================
large messages     have an account; a message for which it has no room waits for its turn
all messages       are cut smaller while memory is short: a stalled reader then holds less
criteria, pages    are charged before they are allocated; without room the request is refused
=================  ============================================================================

The bounds of the accounts add up to more than the budget: each stops one use of memory from taking all of it.
The budget as a whole is enforced by measurement (log_cache/memory_governor.py), as allocators and transports
hold bytes that are in no account.

The cache cannot evict messages that transports hold. Each subscription is bounded, to one message here and one
in the transport, but a thousand readers of rows of 1 MiB would still need too much memory.

A request is refused with ``ServerFull``: other readers are not affected, and a retry helps once others have
ended. A request without competitors is always admitted, as it has bounds of its own.
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
    """The state of one use of memory at one moment."""

    name: str
    bytes: int
    """Bytes that are charged now."""
    bytes_max: int | None
    """Bound in bytes; None for the rest of the process, which only the budget bounds."""


class MemoryBook:
    """The memory budget of a process and its accounts. Any thread may read it."""

    def __init__(self, memory_bytes: int) -> None:
        """Begin without an account."""
        self.memory_bytes = memory_bytes
        self._accounts: dict[str, tuple[Callable[[], int], int]] = {}

    def open(self, name: str, bytes_max: int, held: Callable[[], int]) -> None:
        """Open an account, or replace the account of that name; ``held`` returns its bytes."""
        self._accounts[name] = held, bytes_max

    def accounts(self, process_bytes: int) -> tuple[MemoryAccount, ...]:
        """Return all accounts; the last one is the rest of the process: code, connections, allocators.

        The sum is ``process_bytes``, the measured memory of the process, or more if charges exceed what is
        really held.
        """
        found = [MemoryAccount(name, held(), most) for name, (held, most) in self._accounts.items()]
        rest = max(0, process_bytes - sum(each.bytes for each in found))
        return *found, MemoryAccount("rest", rest, None)


COPIES: Final = 2
"""Number of copies of a message in flight: a transport makes its own copy."""

SHORT_MESSAGE_BYTES: Final = 16 << 10
"""Largest message while memory is short, in bytes. A stalled gRPC stream holds about 60 KiB in addition."""

SHORT_FROM: Final = 5 / 8
"""Fraction of the memory budget from which memory is short."""


class Wakeable(Protocol):
    """A subscription, as far as this module needs it."""

    def wake(self) -> None:
        """Let the subscription request again."""


class _Line:
    """One queue for memory: readers with a large message in flight, and waiting readers in order of arrival."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken: dict[Wakeable, int] = {}
        self.waiting: dict[Wakeable, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(self.taken.values())


class LargeMessages:
    """The size from which messages are large, and the memory that large messages in flight share.

    There are two queues. A subscription that has never finished reading a large message may be about to stall,
    so all such newcomers together get half of the room. The other queue comes first: a stalled crowd delays
    newcomers, but never an active reader.
    """

    def __init__(self, memory_bytes: int, message_bytes: int) -> None:
        """Take the share of a budget; at first all of it is free, and messages have their usual size."""
        self._message_bytes = self.message_bytes_max = message_bytes
        """Largest message of any subscription, in bytes; a message above this size is large."""
        self._short_from = memory_bytes * SHORT_FROM
        self.bytes_max = memory_bytes // LARGE_MESSAGES_SHARE
        """Bound of the messages in flight, in bytes."""
        self._readers, self._newcomers = _Line(self.bytes_max), _Line(self.bytes_max // 2)
        self._lines = self._readers, self._newcomers

    def measured(self, process_bytes: int) -> None:
        """Reduce the size of messages while memory is short; restore it otherwise."""
        self.message_bytes_max = self._message_bytes
        if process_bytes >= self._short_from:
            self.message_bytes_max = min(self._message_bytes, SHORT_MESSAGE_BYTES)

    def admit(self, subscription: Wakeable, size: int, *, reads: bool) -> bool:
        """Return True if a message may be handed over now; if not, the subscription is woken when it may.

        The message is admitted until ``release``. A message larger than the whole room is admitted once no
        other message is in flight.

        Args:
            subscription: The subscription with the message.
            size: Size of the message in bytes.
            reads: True if the subscription has finished reading a large message before.
        """
        line = self._readers if reads else self._newcomers
        if subscription not in line.taken:
            line.waiting.setdefault(subscription, size * COPIES)
            self._admit_waiting()
        return subscription in line.taken

    def keeps_waiting(self, subscription: Wakeable) -> bool:
        """Return True if a subscription waits for admission."""
        return any(subscription in line.waiting for line in self._lines)

    def release(self, subscription: Wakeable) -> None:
        """Release the room of a subscription's message, or remove the subscription from its queue."""
        for line in self._lines:
            line.waiting.pop(subscription, None)
            line.taken.pop(subscription, None)
        self._admit_waiting()

    @property
    def bytes(self) -> int:
        """Bytes of the messages in flight, including the copies of transports."""
        return sum(line.taken_bytes for line in self._lines)

    @property
    def waiting(self) -> int:
        """Number of waiting subscriptions."""
        return sum(len(line.waiting) for line in self._lines)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the waiting messages."""
        return sum(sum(line.waiting.values()) for line in self._lines)

    def _admit_waiting(self) -> None:
        """Admit waiting messages in order, as far as there is room."""
        taken = self.bytes
        for line in self._lines:
            # Both bounds hold: that of all messages in flight, and that of this queue.
            room = min(self.bytes_max - taken, line.bytes_max - line.taken_bytes)
            while line.waiting:
                subscription, size = next(iter(line.waiting.items()))
                # The first message that does not fit stops both queues: if others passed it, a stream of
                # smaller messages could make it wait for ever. If no message is in flight, it is admitted
                # whatever its size.
                if size > room and taken:
                    return
                del line.waiting[subscription]
                line.taken[subscription] = size
                room -= size
                taken += size
                subscription.wake()


class MemoryShare:
    """The part of the memory budget that all requests of one kind may hold together."""

    def __init__(self, kind: str, book: MemoryBook, share: int) -> None:
        """Open an account of 1/``share`` of the budget; errors name the requests by ``kind``, a plural."""
        self._kind = kind
        self._share = share
        self.bytes_max = book.memory_bytes // share
        self.bytes = 0
        """Bytes that all requests are charged now."""
        book.open(kind, self.bytes_max, lambda: self.bytes)

    def empty(self) -> MemoryCharge:
        """Return a charge of 0 bytes."""
        return MemoryCharge(self)

    def charge(self, nbytes: int) -> MemoryCharge:
        """Charge bytes until the returned charge is released.

        Raises:
            ServerFull: There is no room, and other requests hold some.
        """
        charge = MemoryCharge(self)
        charge.add(nbytes)
        return charge

    def refusal(self) -> ServerFull:
        """Return the error for a request without room."""
        return ServerFull(
            f"{self._kind} of all open requests may take {self.bytes_max} bytes together, "
            f"1/{self._share} of the server's memory (memory), and this request would exceed that; try "
            "again later, or request less"
        )


@dataclass(slots=True)
class MemoryCharge:
    """The bytes that one request is charged; a context manager that releases them, or call ``release``."""

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
            ServerFull: There is no room, and other requests hold some.
        """
        share = self._share
        # A request without competitors is admitted at any size: if it were refused, every retry would be too.
        if share.bytes + nbytes > share.bytes_max and share.bytes > self.nbytes:
            raise share.refusal()
        self.nbytes += nbytes
        share.bytes += nbytes

    def move_to(self, other: MemoryCharge) -> None:
        """Transfer the bytes to another charge of the same share."""
        other.nbytes += self.nbytes
        self.nbytes = 0

    def release(self) -> None:
        """Release all bytes. Idempotent."""
        self._share.bytes -= self.nbytes
        self.nbytes = 0
