"""The captures that one subscription was handed, and how soon after the commit."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.capture.statistics import Counters


class DeliveryCounts:
    """Counts of one subscription, which go into those of its engine as well."""

    __slots__ = ("_counters", "_latencies", "captures", "nbytes", "since")

    def __init__(self, counters: Counters, transport: str) -> None:
        """Begin at zero, now; ``transport`` is the label of its latencies."""
        self._counters = counters
        self._latencies = counters.latencies_over(transport)
        self.captures = 0
        self.nbytes = 0
        self.since = monotonic()
        """When the subscription was opened."""
        counters.subscriptions_opened += 1

    @property
    def age_s(self) -> float:
        """Seconds since it was opened."""
        return monotonic() - self.since

    def add(self, captures: int, nbytes: int, committed_at: float) -> None:
        """Count captures that were handed over together, the first committed at a time by `committed_at`.

        Commits before the subscription's begin are history. Its latency would be that of the
        subscriber's question, not of the server.
        """
        self.captures += captures
        self.nbytes += nbytes
        counters = self._counters
        counters.captures_delivered += captures
        counters.bytes_delivered += nbytes
        if committed_at >= self.since:
            self._latencies.observe(monotonic() - committed_at)
