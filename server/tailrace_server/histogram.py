"""A histogram of latencies for metrics: fixed buckets, no lock; to count a latency takes less than 1 µs."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Upper bounds of the buckets in seconds, inclusive; one more bucket has all higher latencies."""


class LatencyHistogram:
    """The number of latencies in each bucket. One thread observes; any thread may read."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        """Begin without latencies."""
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """The count of each bucket, not cumulative; the last one is for latencies above all bounds."""
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a latency; a negative one counts as 0."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the buckets in the form of Prometheus: upper bound, and count of latencies at or below it."""
        found, total = [], 0
        for end, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((end, float(total)))
        return found
