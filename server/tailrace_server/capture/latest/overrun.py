"""The end of a subscription that asked to be disconnected once its ring has overtaken it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import SubscriptionOverrun

if TYPE_CHECKING:
    from tailrace.cursor import Cursor


def overrun_behind(cursor: Cursor) -> SubscriptionOverrun:
    """Return the error that it ends with; ``cursor`` is behind everything that it received."""
    return SubscriptionOverrun(
        "the subscription took less than came, and the server's ring has overtaken it; it asked to be "
        f"disconnected then (overrun_policy): for what it missed, go on after {cursor}",
        str(cursor),
    )
