"""When a broken subscription is tried again.

The wait before attempt n is drawn from (c/2, c] with c = min(longest, first · factor^(n-1)): never at once,
never all clients of a restarted server in the same moment. After a message the waits begin again at ``first``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import ConnectTimeout, DeadlineExceeded, SubscriptionBroken, TlsFailed

if TYPE_CHECKING:
    from tailrace.clock import Clock
    from tailrace.errors import TailraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How patient a client is."""

    first_s: float = 0.1
    """Ceiling of the first wait."""
    factor: float = 2.0
    """By which each ceiling exceeds the one before."""
    longest_s: float = 10.0
    """Ceiling that no wait exceeds."""
    attempts_max: int | None = None
    """Attempts without a single message before the subscription ends as broken; None: never gives up, 0:
    never tries."""
    random: random.Random = field(default_factory=random.Random, repr=False, compare=False)
    """Source of the jitter."""

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait before an attempt, counted from 1."""
        assert attempt >= 1, attempt
        ceiling = min(self.longest_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return ceiling * (1.0 - self.random.random() / 2)

    def allows(self, attempt: int) -> bool:
        """Return whether there may be another attempt of this number, counted from 1."""
        return self.attempts_max is None or attempt <= self.attempts_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a client waits for a server that should answer. Seconds."""

    connect_s: float = 10.0
    """For the acknowledgement of a subscribe; the first one includes all attempts to connect."""
    request_s: float = 30.0
    """For the answer to a single request, and for the header of a history read."""


class Attempts:
    """The attempts of one subscription to get and keep its connection.

    Before the first acknowledgement all attempts together have ``Timeouts.connect_s``. After it only their
    number is limited, by ``Retry.attempts_max``.
    """

    def __init__(self, retry: Retry, timeouts: Timeouts, clock: Clock, wait_s: float = 0.0) -> None:
        """Start the time of the first connection; the server may wait so long before it acknowledges."""
        self.number = 0
        """Attempts since the last message; 0 while a connection works."""
        self.acknowledged = False
        """True if the server has ever acknowledged the subscription."""
        self._retry = retry
        self._connect_s = timeouts.connect_s + wait_s
        self._clock = clock
        self._deadline = clock.monotonic() + self._connect_s
        """When the first acknowledgement must have come, by the clock's monotonic time."""

    @property
    def patience_s(self) -> float:
        """Seconds that the next acknowledgement may take."""
        if self.acknowledged:
            return self._connect_s
        return max(0.0, self._deadline - self._clock.monotonic())

    def wait_after(self, error: TailraceError, cursor: str | None = None) -> float:
        """Count the next attempt and return the seconds to wait before it.

        Args:
            error: Why the last attempt ended.
            cursor: Text of the last cursor received, for the error.

        Raises:
            TailraceError: No attempt is left: ``error`` itself, ``ConnectTimeout`` or ``SubscriptionBroken``.
        """
        try:
            if not error.retriable:
                raise error
            if not self.acknowledged and isinstance(error, TlsFailed | DeadlineExceeded):
                raise error  # a setting has to change, or the wait that was asked for is over
            self.number += 1
            wait_s = self._retry.wait_s(self.number)
            if not self.acknowledged and wait_s > self.patience_s:
                raise ConnectTimeout(
                    f"no subscription within {self._connect_s:g} s: {error}"
                ) from error
            if not self._retry.allows(self.number):
                if isinstance(error, SubscriptionBroken) or not self.acknowledged:
                    raise error
                raise SubscriptionBroken(str(error), cursor) from error
            return wait_s
        finally:
            del error  # a frame that keeps the error that it raises keeps all frames of it
