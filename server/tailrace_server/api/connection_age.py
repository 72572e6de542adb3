"""The age limit of connections, so that a new server behind a load balancer gets its share of old clients.

::

    made ──────────── max_connection_age ── up to a fifth more ──────── grace ─────────▶
                       gRPC: GOAWAY, no    its subscriptions end with   what is still
                       new calls           their resume cursor          open is cut

Connections that were made at the same moment end at random times within that fifth. Nothing is lost: a
subscriber resumes after the cursor that it receives, on a new connection.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.errors import SubscriptionBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.live.subscription import Subscription

GUARD: Final = "max_connection_age"
"""Name of the guard that cuts connections after the grace period."""
REASON: Final = "this connection has reached its age (max_connection_age)"

_SPREAD: Final = 0.2
"""Fraction of the age over which the ends of connections are spread."""
_CORE_SPREAD: Final = 0.1
"""Fraction by which gRPC core itself shortens or lengthens the age of each connection, at random."""
_CORE_LATE_S: Final = 2.0
"""Seconds by which a connection may be older than its first observation."""


@dataclass(frozen=True, slots=True)
class ConnectionAge:
    """The age limit of a server's connections."""

    age_s: float | None = None
    """Age at which a connection ends, in seconds; None: without limit."""
    grace_s: float = 30.0

    def call_later(
        self, callback: Callable[[], None], *, lived_s: float = 0.0
    ) -> asyncio.TimerHandle | None:
        """Call a function when a connection has reached its age, which is randomized; return the timer.

        Args:
            callback: Ends the connection or its streams.
            lived_s: Age of the connection now, in seconds.
        """
        if self.age_s is None:
            return None
        age_s = self.age_s * (1 + random.random() * _SPREAD)
        return asyncio.get_running_loop().call_later(max(0.0, age_s - lived_s), callback)

    def core_options(self) -> tuple[tuple[str, int], ...]:
        """Return the options of gRPC core: refuse new calls first, and cut calls after the grace period.

        Core must refuse calls before this module ends streams. Otherwise a client whose stream has ended would
        come back on the same connection.
        """
        if self.age_s is None:
            return ()
        # Core counts its grace from its own, earlier end. So its grace is longer: it reaches from the earliest
        # end by core to the latest end by this module, and our grace after that.
        earliest_s = self.age_s * (1 - _CORE_SPREAD) / (1 + _CORE_SPREAD)
        cut_s = self.age_s * (1 + _SPREAD) + _CORE_LATE_S + self.grace_s
        return (
            ("grpc.max_connection_age_ms", max(1, int(self.age_s / (1 + _CORE_SPREAD) * 1000))),
            ("grpc.max_connection_age_grace_ms", int((cut_s - earliest_s) * 1000)),
        )


def end_for_age(subscription: Subscription) -> None:
    """End a subscription by the age of its connection; the error has the cursor to resume from."""
    cursor = str(subscription.resume_cursor())
    subscription.end(
        SubscriptionBroken(f"{REASON}; connect again and resume after {cursor}", cursor)
    )


class EndsWithAge:
    """Ends the one subscription of a connection when the connection has reached its age.

    The subscription may open only after that time; then it ends at once.
    """

    __slots__ = ("_aged", "_subscription")

    def __init__(self) -> None:
        """Begin without a subscription."""
        self._aged = False
        self._subscription: Subscription | None = None

    def serves(self, subscription: Subscription) -> None:
        """Set the subscription; end it at once if the connection has already reached its age."""
        self._subscription = subscription
        # The connection may have reached its age while the engine was opening the subscription.
        if self._aged:
            end_for_age(subscription)

    def end_for_age(self) -> None:
        """End the subscription, or remember to end it when it is set."""
        self._aged = True
        if self._subscription is not None:
            end_for_age(self._subscription)
