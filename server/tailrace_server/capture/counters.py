"""Counters of one engine since it began; only ever rise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What subscriptions report; ``EngineStatistics`` says what each means."""

    subscriptions_opened: int = 0
    subscriptions_ended: int = 0
    subscriptions_failed: int = 0
    captures_delivered: int = 0
    bytes_delivered: int = 0
    heartbeats_sent: int = 0
    resyncs: int = 0
    returns: int = 0

    @property
    def subscriptions(self) -> int:
        """Those that are open."""
        return self.subscriptions_opened - self.subscriptions_ended
