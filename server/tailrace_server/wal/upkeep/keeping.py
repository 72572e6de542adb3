"""The part of a log that a catalog's settings retain, and the excess of a log over ``max_bytes``.

::

                 let go            kept
    versions  ───────────────┃──────────────────────────▶ published
                             ┃◀──── max_lookback ───────  now

``max_lookback`` is a promise and a limit. Younger versions are always retained. Older versions are trimmed once
the oldest exceeds the limit by an eighth: each trim makes a base, so a trim should remove enough for its cost.

``max_bytes`` counts the segments of published versions, without bases and files in their grace period. If
``max_lookback`` is not set, the oldest versions are trimmed as soon as the log is larger, down to seven eighths
of ``max_bytes``; the newest segment stays. If ``max_lookback`` is set, a log that is too large is trimmed to it
at once.

A log may stay too large, which ``excess_of`` reports: an operator can make room, but cannot bring back what was
promised. The reasons are that

- all that could go is younger than ``max_lookback``, or is held by named subscriptions;
- its newest segment alone is larger;
- no process trims: no writer publishes, or its upkeep fails. Only time shows that no trim is under way.

The age of a version is the time since its commit, by the clock of the process that compares. Commit timestamps
never fall. So if a clock was ahead and was set back, versions look younger than they are, and stay longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.position import Position
from tailrace_server.wal.sequences.holds import holds_below
from tailrace_server.wal.sequences.settings import MAX_BYTES, MAX_LOOKBACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.state.view import LogView

_SLACK: Final = 8
"""The oldest version goes when it is older than the lookback by one of so many parts of it, …"""
_SLACK_MIN: Final = 60_000_000
"""… and by so many µs at least."""
_SHRUNK: Final = 7 / 8
"""Share of ``max_bytes`` that a trim by bytes alone leaves."""
_WORTH: Final = 8
"""Where a named subscription holds the log back, a trim by settings waits until one part in so many can go."""


class Keeping(NamedTuple):
    """A log compared with its settings."""

    before: int
    """First version to retain; the oldest version if there is nothing to trim."""
    due: bool
    """True if a trim is due by the rule above; a trim that is not due is allowed too."""
    bytes: int
    """Bytes of the segments of published versions."""
    bytes_over: int
    """Bytes above ``max_bytes`` after such a trim; 0 if there are none."""


def judge(view: LogView, settings: Mapping[str, int], now: int) -> Keeping:
    """Compare a log with its catalog's settings: return the part to retain, and whether a trim is due.

    Args:
        view: The published versions of the log.
        settings: The catalog's settings, by name.
        now: µs since the epoch.
    """
    lookback, bytes_max = settings.get(MAX_LOOKBACK), settings.get(MAX_BYTES)
    oldest = before = view.oldest.version
    size = view.bytes_from(view.oldest)
    is_large = bytes_max is not None and size > bytes_max
    due = False
    if lookback is not None:
        before = max(oldest, first_after(view, now - lookback))
        slack = 0 if is_large else slack_of(lookback)
        due = before > oldest and first_after(view, now - lookback - slack) > oldest
    elif bytes_max is not None and is_large:
        before = max(oldest, view.first_within(int(bytes_max * _SHRUNK)))
        due = before > oldest
    left = size if before == oldest else view.bytes_from(Position(before, 0))
    over = 0 if bytes_max is None else max(0, left - bytes_max)
    return Keeping(before, due, size, over)


def slack_of(kept: int) -> int:
    """Return the extra time, µs, for which data is retained beyond its limit: each trim makes a base."""
    return max(kept // _SLACK, _SLACK_MIN)


def first_after(view: LogView, time: int) -> int:
    """Return the first published version that was committed after a time, µs; the next version if none was."""
    return view.version_at(time + 1)


def is_worth(view: LogView, verdict: Keeping, kept: int) -> bool:
    """Return True if a trim is worth its base, given that all from a version ``kept`` on is held."""
    return (
        kept >= verdict.before
        or (verdict.bytes - view.bytes_from(Position(kept, 0))) * _WORTH >= verdict.bytes
    )


_SHOWN: Final = 3
"""The most names of subscriptions in a reason."""


class Excess(NamedTuple):
    """The excess of a log over its ``max_bytes``."""

    bytes: int
    """Bytes of the log's segments."""
    bytes_over: int
    """Bytes above ``max_bytes``."""
    is_due: bool
    """True if a trim that is due makes the log small enough; else the log stays too large."""
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
    """Return the excess of a log over its ``max_bytes``; None if there is none, or ``max_bytes`` is not set.

    Args:
        view: The published versions of the log.
        settings: The catalog's settings, by name.
        subscriptions: The named subscriptions, which may hold versions back from a trim.
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
