"""That a log is larger than ``max_bytes``, and what keeps it so: nothing gives way in silence.

What was promised comes before the room (keeping.py). So a log may be too large, and stay so, because

- all that could go is younger than ``max_lookback``, or is held by named subscriptions;
- its newest segment alone is larger;
- nobody trims: no writer publishes, or its upkeep fails. Only time tells that from a trim under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.position import Position
from tailrace_server.wal.sequences.holds import holds_below
from tailrace_server.wal.sequences.settings import MAX_BYTES, MAX_LOOKBACK
from tailrace_server.wal.upkeep.keeping import is_worth, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.state.view import LogView

_SHOWN: Final = 3
"""So many names of subscriptions are in a reason."""


class Excess(NamedTuple):
    """By how much a log is too large."""

    bytes: int
    """Of its segments."""
    bytes_over: int
    """How many of them are more than ``max_bytes``."""
    is_due: bool
    """Whether a trim that is due makes it small enough; else it stays as large."""
    reason: str
    """The cause and the remedy, as the end of a sentence."""

    def __str__(self) -> str:
        """Return the sentence, with the log as ``it``."""
        return (
            f"it has {self.bytes:,} bytes of records, {self.bytes_over:,} more than its max_bytes: "
            f"{self.reason}"
        )


def excess_of(
    view: LogView,
    settings: Mapping[str, int],
    subscriptions: Iterable[SubscriptionDocument],
    now: int,
) -> Excess | None:
    """Return by how much a log is larger than its ``max_bytes``, or None: it is not, or none is set.

    Args:
        view: What is published of the log.
        settings: Of the catalog, by name.
        subscriptions: The named ones, which may hold what would go.
        now: µs since the epoch.
    """
    verdict, bytes_max = judge(view, settings, now), settings.get(MAX_BYTES)
    if bytes_max is None or verdict.bytes <= bytes_max:
        return None
    holds = holds_below(subscriptions, view, verdict.before, now)
    holding = [each for each in holds if each.is_within_cap]
    kept = min((each.needed.version for each in holding), default=verdict.before)
    goes = verdict.due and kept > view.oldest.version and is_worth(view, verdict, kept)
    due = goes and view.bytes_from(Position(kept, 0)) <= bytes_max
    over = verdict.bytes - bytes_max
    if due:
        reason = "a trim is due, and a writer that publishes makes it; where none does, run tailrace log trim"
        return Excess(verdict.bytes, over, True, reason)
    reasons = []
    if holding:
        names = ", ".join(each.name for each in holding[:_SHOWN])
        more = f" and {len(holding) - _SHOWN} more" if len(holding) > _SHOWN else ""
        reasons.append(
            f"what could go is held by named subscriptions ({names}{more}), until their readers move on"
        )
    if verdict.bytes_over:
        reasons.append(
            "what is younger than its max_lookback alone is larger"
            if MAX_LOOKBACK in settings
            else "its newest segment alone is larger"
        )
    reason = (
        f"{' and '.join(reasons)}; make room, or set less (Room on the disk, docs/operations.md)"
    )
    return Excess(verdict.bytes, over, False, reason)
