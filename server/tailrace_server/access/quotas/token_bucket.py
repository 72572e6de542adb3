"""A rate with a burst: it fills with time and is emptied by use."""

from __future__ import annotations


class TokenBucket:
    """Holds at most ``capacity``, and fills at ``rate`` a second. The clock is its caller's."""

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        """Begin full."""
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float) -> float:
        """Return what it holds; below 0 it is in debt."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.rate)
        self._at = max(self._at, now)
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Return in how many seconds it holds an amount; 0 now."""
        return max(0.0, (amount - self.level(now)) / self.rate)

    def take(self, amount: float, now: float) -> None:
        """Take an amount, into debt where there is less."""
        self._level = self.level(now) - amount
