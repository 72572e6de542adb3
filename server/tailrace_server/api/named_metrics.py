"""Named subscriptions in /metrics. Unlike other subscriptions each has a label: their number has a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tailrace.named import SubscriptionHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from tailrace_server.named.loss_watch import WatchedSubscription


class NamedCollector(Collector):
    """Turns one look at the named subscriptions into metric families."""

    def __init__(self, watched: Callable[[], Sequence[WatchedSubscription]]) -> None:
        """Read from ``watched`` at each scrape."""
        self._watched = watched

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        age, behind, kept, seconds, size = (
            GaugeMetricFamily(
                f"tailrace_named_subscription_{name}", text, labels=["catalog", "name"]
            )
            for name, text in (
                ("age_seconds", "Since the first change was committed that is not acknowledged."),
                ("behind_bytes", "Of the log from that change on."),
                ("kept", "Whether retention keeps what it needs: 1, or 0 where its hold is over."),
                (
                    "lost_in_seconds",
                    "Until retention may take what it needs, where that comes by time.",
                ),
                ("lost_in_bytes", "How much the log may grow before that, where it comes by size."),
            )
        )
        for each in self._watched():
            labels = [each.named.catalog, each.named.name]
            age.add_metric(labels, each.named.hold.age_us / 1e6)
            behind.add_metric(labels, each.named.hold.bytes)
            kept.add_metric(labels, each.named.health is SubscriptionHealth.HELD)
            if each.loss.in_us is not None:
                seconds.add_metric(labels, each.loss.in_us / 1e6)
            if each.loss.in_bytes is not None:
                size.add_metric(labels, each.loss.in_bytes)
        yield from (age, behind, kept, seconds, size)


def register_named(
    metrics: CollectorRegistry, watched: Callable[[], Sequence[WatchedSubscription]]
) -> None:
    """Add the named subscriptions to a registry."""
    metrics.register(NamedCollector(watched))
