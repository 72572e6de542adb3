"""A histogram of latencies, for metrics: fixed buckets, no lock, well under a microsecond to observe one."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Upper ends of the buckets, inclusive, seconds; what is above the last one has a bucket of its own."""


class LatencyHistogram:
    """The number of latencies in each bucket. One thread observes; any thread may read."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        """Begin without latencies."""
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Of each bucket alone, the one above all others last."""
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a latency; one below zero is none."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus has them: upper end, and how many are at or below it."""
        found, total = [], 0
        for end, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((end, float(total)))
        return found
