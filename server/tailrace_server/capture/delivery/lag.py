"""How far a subscription is behind: in records, versions and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.position import END

if TYPE_CHECKING:
    from tailrace_server.capture.delivery.live_and_resync import SafePoint
    from tailrace_server.wal.state.view import LogView


class Lag(NamedTuple):
    """The published versions behind a point of the log."""

    records: int
    versions: int
    """The versions whose captures may still come."""
    seconds: float
    """From the commit that was handed over last to the newest one."""


NO_LAG: Final = Lag(0, 0, 0.0)


def lag_behind(safe: SafePoint, view: LogView) -> Lag:
    """Return how far a view goes beyond a safe point.

    Before the first version that is retained, the seconds count from its commit.
    """
    records = view.end_row - safe.rows
    if records <= 0:
        return NO_LAG
    passed = safe.version if safe.index == END else safe.version - 1
    behind_us = view.newest_timestamp - view.timestamp_of(safe.version)
    return Lag(records, view.published - max(passed, 0), max(0, behind_us) / 1e6)
