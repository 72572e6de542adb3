"""The part of a log that a catalog's settings retain, and the excess of a log over ``max_bytes``.

::

                 trimmed           retained
    versions  ───────────────┃──────────────────────────▶ published
                             ┃◀──── max_lookback ───────  now

``max_lookback`` is a promise and a limit. Younger versions are always retained. Older versions are trimmed once
the oldest one exceeds the limit by 1/8. They are not trimmed earlier because each trim makes a base, so a trim
should remove enough to be worth it.

``max_bytes`` is compared with the size of the segments of published versions, without bases and without files
in their grace period. If ``max_lookback`` is not set, the oldest versions are trimmed as soon as the log is
larger, down to 7/8 of ``max_bytes``; the newest segment is always retained. If ``max_lookback`` is set, a log
that is too large is trimmed to it without waiting for the 1/8.

A log may stay too large, because the promise has priority: an operator can make room, but cannot restore
trimmed versions. ``excess_of`` reports this. There are three causes:

- all versions above the limit are younger than ``max_lookback``, or held by named subscriptions;
- the newest segment alone is larger;
- no process trims the log, because no writer publishes or its upkeep fails. This is only noticed by the time
  that passes.

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
"""A trim waits until the oldest version is older than ``max_lookback`` by 1/8 of it."""
_SLACK_MIN: Final = 60_000_000
"""The least time, µs, by which the oldest version must be older than ``max_lookback``."""
_SHRUNK: Final = 7 / 8
"""Fraction of ``max_bytes`` to which a log without ``max_lookback`` is trimmed."""
_WORTH: Final = 8
"""If a named subscription holds versions, a trim by settings waits until it can remove 1/8 of the log's
bytes."""


class Keeping(NamedTuple):
    """The result of comparing a log with its settings."""

    before: int
    """The first version to retain; the oldest version if there is nothing to trim."""
    due: bool
    """True if a trim to ``before`` is due by the rules above. It is allowed even if it is not due."""
    bytes: int
    """Size of the segments of published versions, in bytes."""
    bytes_over: int
    """Bytes above ``max_bytes`` that remain after a trim to ``before``; 0 if none remain."""


def judge(view: LogView, settings: Mapping[str, int], now: int) -> Keeping:
    """Compare a log with its catalog's settings.

    Args:
        view: The published versions of the log.
        settings: The catalog's settings, by name.
        now: Current time, µs since the epoch.
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
    """Return the extra time, µs, for which data is retained beyond a limit ``kept``, so that trims are rare."""
    return max(kept // _SLACK, _SLACK_MIN)


def first_after(view: LogView, time: int) -> int:
    """Return the first published version that was committed after a time, µs; the next version if none was."""
    return view.version_at(time + 1)


def is_worth(view: LogView, verdict: Keeping, kept: int) -> bool:
    """Return True if a trim is worth its base, although it cannot remove the versions from ``kept`` on."""
    return (
        kept >= verdict.before
        or (verdict.bytes - view.bytes_from(Position(kept, 0))) * _WORTH >= verdict.bytes
    )


_SHOWN: Final = 3
"""The most names of subscriptions that a reason lists."""


class Excess(NamedTuple):
    """The excess of a log over its ``max_bytes``."""

    bytes: int
    """Size of the segments of published versions, in bytes."""
    bytes_over: int
    """Bytes above ``max_bytes``."""
    is_due: bool
    """True if a trim is due and will make the log small enough; False if the log stays too large."""
    reason: str
    """The cause and what an operator can do, as the end of a sentence."""

    def __str__(self) -> str:
        """Return a sentence about the log, which calls the log "it"."""
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
        subscriptions: The named subscriptions, which may hold versions.
        now: Current time, µs since the epoch.
    """
    verdict, bytes_max = judge(view, settings, now), settings.get(MAX_BYTES)
    if bytes_max is None or verdict.bytes <= bytes_max:
        return None
    # A hold beyond its cap does not stop a trim; one within it does.
    holds = holds_below(subscriptions, view, verdict.before, now)
    holding = [each for each in holds if each.is_within_cap]
    kept = min((each.needed.version for each in holding), default=verdict.before)
    goes = verdict.due and kept > view.oldest.version and is_worth(view, verdict, kept)
    due = goes and view.bytes_from(Position(kept, 0)) <= bytes_max
    over = verdict.bytes - bytes_max
    if due:
        reason = (
            "a trim is due; a writer runs it when it publishes; without a writer, run tailrace log "
            "trim"
        )
        return Excess(verdict.bytes, over, True, reason)
    reasons = []
    if holding:
        names = ", ".join(each.name for each in holding[:_SHOWN])
        more = f" and {len(holding) - _SHOWN} more" if len(holding) > _SHOWN else ""
        reasons.append(
            "named subscriptions hold the older versions until their readers advance "
            f"({names}{more})"
        )
    if verdict.bytes_over:
        reasons.append(
            "the versions younger than its max_lookback alone are larger"
            if MAX_LOOKBACK in settings
            else "its newest segment alone is larger"
        )
    reason = (
        f"{' and '.join(reasons)}; free space on the disk, or lower the setting (Room on the "
        "disk, docs/operations.md)"
    )
    return Excess(verdict.bytes, over, False, reason)
