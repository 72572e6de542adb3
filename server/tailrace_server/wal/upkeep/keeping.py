"""What a catalog's settings keep of its log, and what they let go: the rule behind trims that nobody asks for.

::

                 let go            kept
    versions  ───────────────┃──────────────────────────▶ published
                             ┃◀──── max_lookback ───────  now

``max_lookback`` is a promise and a bound. Nothing younger goes, for whatever reason. What is older goes once
the oldest version is an eighth older still: each trim makes a base, so it should let go of something.

``max_bytes`` counts the segments that are named, without bases and without files in their grace. Where no
lookback is set, the oldest versions go as soon as the log is larger, down to seven eighths; the newest segment
stays. Where one is set, a log that is too large lets go at once of what is older. If it is too large even then,
it stays so, and this is told: an operator can make room, but nobody can bring back what was promised.

Age is that of the commit, by the clock of the process that asks. Commit timestamps never fall. So a clock that
was ahead and was set back makes versions look younger than they are, and they stay longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace_server.wal.settings.values import MAX_BYTES, MAX_LOOKBACK
from tailrace_server.wal.state.batch_table import FIRST_INDEX, FIRST_VERSION, LAST_VERSION, SEGMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.wal.state.state import LogState

_SLACK: Final = 8
"""The oldest version goes when it is older than the lookback by one of so many parts of it, …"""
_SLACK_MIN: Final = 60_000_000
"""… and by so many µs at least."""
_SHRUNK: Final = 7 / 8
"""Share of ``max_bytes`` that a trim by bytes alone leaves."""


class Keeping(NamedTuple):
    """How a log stands to its settings."""

    before: int
    """First version to keep; that of the oldest position where nothing is to go."""
    due: bool
    """Whether a trim is due by the rule above; what is not due may go all the same."""
    bytes: int
    """Of all segments."""
    bytes_over: int
    """By how much they exceed ``max_bytes`` after such a trim; 0 where they do not."""


def judge(state: LogState, settings: Mapping[str, int], now: int) -> Keeping:
    """Return what the settings of a catalog let go of its log.

    Args:
        state: The log.
        settings: Of the catalog, by name.
        now: µs since the epoch.
    """
    lookback, bytes_max = settings.get(MAX_LOOKBACK), settings.get(MAX_BYTES)
    oldest = before = state.oldest.version
    size = int(state.batches.segments.sizes.sum())
    is_large = bytes_max is not None and size > bytes_max
    due = False
    if lookback is not None:
        before = max(oldest, first_after(state, now - lookback))
        slack = 0 if is_large else slack_of(lookback)
        due = before > oldest and first_after(state, now - lookback - slack) > oldest
    elif bytes_max is not None and is_large:
        before = max(oldest, _first_within(state, int(bytes_max * _SHRUNK)))
        due = before > oldest
    left = size if before == oldest else _bytes_from(state, before)
    over = 0 if bytes_max is None else max(0, left - bytes_max)
    return Keeping(before, due, size, over)


def slack_of(kept: int) -> int:
    """Return for how long, µs, what need be kept for a time is kept beyond it: each trim makes a base."""
    return max(kept // _SLACK, _SLACK_MIN)


def first_after(state: LogState, time: int) -> int:
    """Return the first published version that was committed after a time, µs; the one to come if none was."""
    count = state.commits.count_up_to(0, state.published)
    firsts, timestamps = state.commits.columns[:, :count]
    place = int(np.searchsorted(timestamps, time, "right"))
    return state.published + 1 if place == count else int(firsts[place])


def _first_within(state: LogState, size: int) -> int:
    """Return the first version of the newest segments that have so many bytes; the newest is always one."""
    sizes, table = state.batches.segments.sizes, state.batches
    kept = int(np.searchsorted(np.cumsum(sizes[::-1]), size, "right"))
    first = len(sizes) - max(1, kept)
    batch = int(np.searchsorted(table.columns[SEGMENT, : len(table)], first, "left"))
    version, index = (int(table.columns[field, batch]) for field in (FIRST_VERSION, FIRST_INDEX))
    # A segment may begin in the middle of a version, whose beginning is in the segment before it.
    return min(version if index == 0 else version + 1, state.published + 1)


def _bytes_from(state: LogState, version: int) -> int:
    """Return the bytes of the segments that hold anything at or above a version."""
    table = state.batches
    batch = int(np.searchsorted(table.columns[LAST_VERSION, : len(table)], version, "left"))
    if batch == len(table):
        return 0
    return int(table.segments.sizes[int(table.columns[SEGMENT, batch]) :].sum())
