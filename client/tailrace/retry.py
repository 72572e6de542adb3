"""When a broken subscription is tried again.

The wait before attempt n is drawn from (c/2, c] with c = min(longest, first · factor^(n-1)): never at once,
never all clients of a restarted server in the same moment. Whoever got a message begins again at ``first``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


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
