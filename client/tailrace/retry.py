"""The waits and limits of attempts to restore a broken subscription.

The wait before attempt n is random in (c/2, c], with c = min(longest, first · factor^(n-1)). So there is always
a wait, and the clients of a restarted server do not return at the same moment. After a message the waits begin
again at ``first``.
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
    """The retry policy of a client: exponential back-off with jitter."""

    first_s: float = 0.1
    """Upper bound of the first wait, in seconds."""
    factor: float = 2.0
    """Factor between the upper bounds of consecutive waits."""
    longest_s: float = 10.0
    """Upper bound of all waits, in seconds."""
    attempts_max: int | None = None
    """Maximum number of consecutive attempts without a message; after them the subscription ends as broken.
    None: no maximum; 0: no attempts."""
    random: random.Random = field(default_factory=random.Random, repr=False, compare=False)
    """Source of the jitter."""

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait before an attempt, counted from 1."""
        assert attempt >= 1, attempt
        ceiling = min(self.longest_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return ceiling * (1.0 - self.random.random() / 2)

    def allows(self, attempt: int) -> bool:
        """Return True if the policy allows an attempt of this number, counted from 1."""
        return self.attempts_max is None or attempt <= self.attempts_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Maximum times that a client waits for answers of a server."""

    connect_s: float = 10.0
    """Maximum wait for the acknowledgement of a subscription, in seconds. For the first acknowledgement it
    covers all attempts to connect."""
    request_s: float = 30.0
    """Maximum wait for the answer to a single request, and for the header of a read, in seconds."""


class Attempts:
    """The attempts of one subscription to open its connection, and to restore it.

    Before the first acknowledgement, ``Timeouts.connect_s`` limits the total time of all attempts. After it,
    only ``Retry.attempts_max`` limits their number.
    """

    def __init__(self, retry: Retry, timeouts: Timeouts, clock: Clock, wait_s: float = 0.0) -> None:
        """Start the time limit of the first connection; ``wait_s`` extends all limits.

        Args:
            retry: The retry policy.
            timeouts: The maximum waits.
            clock: The source of time.
            wait_s: Time that the server may wait for a version before it acknowledges, in seconds.
        """
        self.number = 0
        """Number of attempts since the last message; 0 while a connection works."""
        self.acknowledged = False
        """True if the server has ever acknowledged the subscription."""
        self._retry = retry
        self._connect_s = timeouts.connect_s + wait_s
        self._clock = clock
        self._deadline = clock.monotonic() + self._connect_s
        """Deadline of the first acknowledgement, in the clock's monotonic time."""

    @property
    def patience_s(self) -> float:
        """Maximum wait for the next acknowledgement, in seconds."""
        if self.acknowledged:
            return self._connect_s
        return max(0.0, self._deadline - self._clock.monotonic())

    def wait_after(self, error: TailraceError, cursor: str | None = None) -> float:
        """Count the next attempt and return the seconds to wait before it.

        Args:
            error: The error that ended the last attempt.
            cursor: Text of the last cursor received, for the error.

        Raises:
            TailraceError: There is no further attempt. It is ``error`` itself, ``ConnectTimeout`` or
                ``SubscriptionBroken``.
        """
        try:
            if not error.retriable:
                raise error
            if not self.acknowledged and isinstance(error, TlsFailed | DeadlineExceeded):
                raise error  # the settings of TLS have to change, or the requested wait is over
            self.number += 1
            wait_s = self._retry.wait_s(self.number)
            # Before the first acknowledgement: give up now if the deadline would pass during the wait.
            if not self.acknowledged and wait_s > self.patience_s:
                raise ConnectTimeout(
                    f"no subscription within {self._connect_s:g} s: {error}"
                ) from error
            # No attempt is left. The caller shall see a `SubscriptionBroken` with the cursor to resume from,
            # unless the subscription was never open.
            if not self._retry.allows(self.number):
                if isinstance(error, SubscriptionBroken) or not self.acknowledged:
                    raise error
                raise SubscriptionBroken(str(error), cursor) from error
            return wait_s
        finally:
            del error  # break the reference cycle between the error, its traceback and this frame
