"""How long a connection may last, so that a new server behind a balancer gets its share of old clients.

::

    made ──────────── max_connection_age ── up to a fifth more ──────── grace ─────────▶
                       gRPC: GOAWAY, no    its subscriptions end with   what is still
                       new calls           their resume cursor          open is cut

The ends of connections that were made in the same moment are spread over that fifth. Nothing is lost: who
subscribes resumes after the cursor that it is given, on a new connection.
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
"""Name of the guard that cuts what outlives the grace."""
REASON: Final = "this connection has reached its age (max_connection_age)"

_SPREAD: Final = 0.2
"""Share of the age over which ends are spread."""
_CORE_SPREAD: Final = 0.1
"""By what share core makes the age of each connection shorter or longer, of its own accord."""
_CORE_LATE_S: Final = 2.0
"""By how much a connection may be older than we know."""


@dataclass(frozen=True, slots=True)
class ConnectionAge:
    """The age of a server's connections."""

    age_s: float | None = None
    """None: they last for as long as their peers like."""
    grace_s: float = 30.0

    def call_later(
        self, callback: Callable[[], None], *, lived_s: float = 0.0
    ) -> asyncio.TimerHandle | None:
        """Call when a connection has reached its age, drawn anew; return the timer, None without an age.

        Args:
            callback: What ends it.
            lived_s: How old the connection is now.
        """
        if self.age_s is None:
            return None
        age_s = self.age_s * (1 + random.random() * _SPREAD)
        return asyncio.get_running_loop().call_later(max(0.0, age_s - lived_s), callback)

    def core_options(self) -> tuple[tuple[str, int], ...]:
        """Return core's options: refuse new calls before ours end, and cut those that outlive the grace.

        A client whose stream ended before its connection takes no calls would come back on the same one.
        """
        if self.age_s is None:
            return ()
        earliest_s = self.age_s * (1 - _CORE_SPREAD) / (1 + _CORE_SPREAD)
        cut_s = self.age_s * (1 + _SPREAD) + _CORE_LATE_S + self.grace_s
        return (
            ("grpc.max_connection_age_ms", max(1, int(self.age_s / (1 + _CORE_SPREAD) * 1000))),
            ("grpc.max_connection_age_grace_ms", int((cut_s - earliest_s) * 1000)),
        )


def end_for_age(subscription: Subscription) -> None:
    """End a subscription because its connection has reached its age, with the cursor to resume from."""
    cursor = str(subscription.resume_cursor())
    subscription.end(
        SubscriptionBroken(f"{REASON}; connect again and resume after {cursor}", cursor)
    )


class EndsWithAge:
    """Serves one subscription on a connection, and ends it when the connection has reached its age."""

    __slots__ = ("_aged", "_subscription")

    def __init__(self) -> None:
        """Serve nothing yet."""
        self._aged = False
        self._subscription: Subscription | None = None

    def serves(self, subscription: Subscription) -> None:
        """Note what has to end with its connection's age."""
        self._subscription = subscription
        if self._aged:
            end_for_age(subscription)

    def end_for_age(self) -> None:
        """End what it serves, now or as soon as it is there."""
        self._aged = True
        if self._subscription is not None:
            end_for_age(self._subscription)
