"""What is known of times, and how far they are finished: tables of numbers, no updates.

`TIMES` has a row for each time that is not finished and of which an update or a count above zero is known::

    time   announced    received     -1 announced: no progress statement covers it yet
    4      1            1
    6      3            2            ◀─ the frontier goes no further than the first such row,
    9      -1           5               nor than where the intervals that join end

*Coverage* is the union of the intervals of all progress statements, as disjoint intervals in order. A
covered time without a row has a count of zero. Both are cut off below the frontier.

`update_times` brings the rows of a share of the times up to date, shares being told by a hash of the time; the
frontier is then the least of what the shares find, and of where the coverage ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.cdcv2 import Waiting
from tailrace_server.pipeline.row_batches import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tailrace_server.pipeline.cdcv2.cutting import IntegerProgress

    Longs = npt.NDArray[np.int64]

Interval = tuple[int, int | None]
"""Half-open; None is the end of time."""

END: Final = 2**63
"""The end of time as a number."""

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

TIMES: Final = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("announced", pa.int64(), nullable=False),
        pa.field("announced_at", pa.int64(), nullable=False),
        pa.field("received", pa.int64(), nullable=False),
        pa.field("received_at", pa.int64(), nullable=False),
    ]
)
"""``…_at`` are places of messages: that of the count, and the last of the updates."""

COUNTS: Final = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
    ]
)
"""Counts as progress statements list them, or updates as they were received; ``message`` is the place."""

INTERVALS: Final = pa.schema(
    [
        pa.field("lower", pa.int64(), nullable=False),
        pa.field("upper", pa.int64()),
        pa.field("message", pa.int64(), nullable=False),
    ]
)


class Contradiction(NamedTuple):
    """Two messages that cannot both be true."""

    time: int
    first: tuple[int, int]
    """A count, and the place of its message."""
    second: tuple[int, int]
    exceeded: bool = False
    """Whether the second is how many updates have come; else it is another count."""


class UpdatedTimes(NamedTuple):
    """A share of the times, brought up to date."""

    times: pa.RecordBatch
    """Of `TIMES`, by time."""
    lowest: int | None
    """The first time that misses updates."""
    contradiction: Contradiction | None


def counts_table(progress: Iterable[IntegerProgress]) -> pa.RecordBatch:
    """Return the counts of progress statements as a table of `COUNTS`."""
    rows = [(time, count, each.message) for each in progress for time, count in each.counts]
    return batch_of(rows, COUNTS)


def intervals_table(progress: Iterable[IntegerProgress]) -> pa.RecordBatch:
    """Return the intervals of progress statements as a table of `INTERVALS`."""
    return batch_of([(each.lower, each.upper, each.message) for each in progress], INTERVALS)


def received_table(updates: pa.RecordBatch) -> pa.RecordBatch:
    """Return how many updates there are at each time, as a table of `COUNTS`."""
    times = updates.column("time").to_numpy()
    found, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    last = np.full(len(found), -1, np.int64)
    np.maximum.at(last, inverse, updates.column("message").to_numpy())
    return pa.RecordBatch.from_arrays(
        [pa.array(each) for each in (found, counts.astype(np.int64), last)], schema=COUNTS
    )


def hashes_of_times(times: Longs) -> npt.NDArray[np.uint64]:
    """Return the hash that tells a time's share."""
    return times.astype(np.uint64) * _FACTOR


def update_times(
    old: pa.RecordBatch,
    coverage: Sequence[Interval],
    intervals: pa.RecordBatch,
    counts: pa.RecordBatch,
    received: pa.RecordBatch,
    frontier: int,
    *,
    first: bool = False,
) -> UpdatedTimes:
    """Bring a share of the times up to date.

    Args:
        old: What was known of the share's times, of `TIMES`.
        coverage: What was covered.
        intervals: All new progress statements, of `INTERVALS`, whatever share their counts are in.
        counts: What they list of the share's times, of `COUNTS`.
        received: Distinct updates that are new, of `COUNTS`; several rows of one time add up.
        frontier: Times below it are finished.
        first: Let the count that was heard first stand, instead of telling the contradiction.
    """
    cover = _Cover([*coverage], intervals, frontier)
    contradictions: list[Contradiction] = []
    listed, count, place = _listed(old, counts, cover, contradictions, first=first)
    news = _since(received, frontier)
    olds = _since(old, frontier)
    times, inverse = np.unique(
        np.concatenate([listed, olds["time"], news["time"]]), return_inverse=True
    )
    of_listed, of_old, of_new = np.split(inverse, [len(listed), len(listed) + len(olds["time"])])
    announced = np.where(cover.depth(times) > 0, 0, -1).astype(np.int64)
    announced[of_listed] = count
    announced_at = np.full(len(times), -1, np.int64)
    announced_at[of_old] = olds["announced_at"]
    announced_at[of_listed] = place
    got = np.zeros(len(times), np.int64)
    got[of_old] = olds["received"]
    np.add.at(got, of_new, news["count"])
    got_at = np.full(len(times), -1, np.int64)
    got_at[of_old] = olds["received_at"]
    np.maximum.at(got_at, of_new, news["message"])
    too_many = np.flatnonzero((announced >= 0) & (got > announced))
    if len(too_many):
        row = int(too_many[0])
        at = int(announced_at[row])
        contradictions.append(
            Contradiction(
                int(times[row]),
                (int(announced[row]), at if at >= 0 else cover.place_of(int(times[row]), set())),
                (int(got[row]), int(got_at[row])),
                exceeded=True,
            )
        )
    missing = np.flatnonzero(got < announced)
    return UpdatedTimes(
        pa.RecordBatch.from_arrays(
            [pa.array(each) for each in (times, announced, announced_at, got, got_at)],
            schema=TIMES,
        ),
        int(times[missing[0]]) if len(missing) else None,
        min(
            (each for each in contradictions if each.exceeded or not first),
            key=lambda each: each.time,
            default=None,
        ),
    )


def joined_coverage(
    coverage: Sequence[Interval], intervals: pa.RecordBatch, frontier: int
) -> list[Interval]:
    """Return the union of intervals from the frontier on."""
    lowers, uppers = _clipped([*coverage], intervals, frontier)
    order = np.argsort(lowers, kind="stable")
    lowers, uppers = lowers[order], uppers[order]
    filled = uppers > lowers
    lowers, uppers = lowers[filled], uppers[filled]
    if not len(lowers):
        return []
    reach = np.maximum.accumulate(uppers)
    begins = np.concatenate([[True], lowers[1:] > reach[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return [
        (low, None if high == END else high)
        for low, high in zip(lowers[begins].tolist(), reach[ends].tolist(), strict=True)
    ]


def frontier_after(
    frontier: int, coverage: Sequence[Interval], lowest: Iterable[int | None]
) -> int | None:
    """Return the finished frontier; None when all time is finished.

    Args:
        frontier: Where it was.
        coverage: What is covered now.
        lowest: What the shares of the times found.
    """
    end: int | None = frontier
    if coverage and coverage[0][0] <= frontier:
        end = coverage[0][1]
    bounds = [each for each in (end, *lowest) if each is not None]
    return min(bounds) if bounds else None


def coverage_after(coverage: Sequence[Interval], frontier: int | None) -> list[Interval]:
    """Return what of the coverage lies at or above the frontier."""
    if frontier is None:
        return []
    return [(max(low, frontier), high) for low, high in coverage if high is None or high > frontier]


def why_waiting(
    frontier: int | None, coverage: Sequence[Interval], times: pa.RecordBatch, limit: int
) -> list[Waiting[int]]:
    """Return what the frontier waits for: holes first, then times; at most ``limit`` reasons."""
    if frontier is None:
        return []
    reasons: list[Waiting[int]] = []
    at: int | None = frontier
    for low, high in coverage:
        if at is not None and low > at:
            reasons.append(Waiting(at, None, 0, (low,)))
        at = high
    known = times.select(["time", "announced", "received"]).sort_by("time").to_pydict()
    for time, announced, received in zip(*known.values(), strict=True):
        if len(reasons) >= limit:
            break
        if announced < 0 or received < announced:
            reasons.append(Waiting(time, None if announced < 0 else announced, received))
    return reasons[:limit]


class _Cover:
    """How many statements cover a time; what was covered before counts as one."""

    def __init__(
        self, coverage: Sequence[Interval], intervals: pa.RecordBatch, frontier: int
    ) -> None:
        self._intervals = intervals
        lowers, uppers = _clipped(coverage, intervals, frontier)
        self._lowers, self._uppers = np.sort(lowers), np.sort(uppers)
        self._old = coverage

    def depth(self, times: Longs) -> Longs:
        asked = times.astype(np.uint64)
        below = np.searchsorted(self._lowers, asked, "right")
        return below - np.searchsorted(self._uppers, asked, "right")

    def place_of(self, time: int, others: set[int], *, new: bool = False) -> int:
        """Return the message of a statement that covers a time and is none of some; -1 for an old one."""
        for low, high in () if new else self._old:
            if low <= time and (high is None or time < high):
                return -1
        for row in self._intervals.to_pylist():
            covers = row["lower"] <= time and (row["upper"] is None or time < row["upper"])
            if covers and row["message"] not in others:
                return int(row["message"])
        return -1


def _listed(
    old: pa.RecordBatch,
    counts: pa.RecordBatch,
    cover: _Cover,
    found: list[Contradiction],
    *,
    first: bool,
) -> tuple[Longs, Longs, Longs]:
    """Return times that are listed, the counts heard first, and their places."""
    olds = {name: old.column(name).to_numpy() for name in ("time", "announced", "announced_at")}
    told = olds["announced"] > 0
    news = {name: counts.column(name).to_numpy() for name in COUNTS.names}
    times = np.concatenate([olds["time"][told], news["time"]])
    count = np.concatenate([olds["announced"][told], news["count"]])
    place = np.concatenate([olds["announced_at"][told], news["message"]])
    is_old = np.zeros(len(times), np.bool_)
    is_old[: np.count_nonzero(told)] = True
    # What is covered no more is below the frontier.
    current = cover.depth(times) > 0
    times, count, place, is_old = times[current], count[current], place[current], is_old[current]
    if not len(times):
        return times, count, place
    order = np.lexsort((place, ~is_old, times))
    times, count, place, is_old = times[order], count[order], place[order], is_old[order]
    starts = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]]))
    low, high = np.minimum.reduceat(count, starts), np.maximum.reduceat(count, starts)
    listing = np.diff(np.append(starts, len(times)))
    for group in np.flatnonzero(low != high)[:1].tolist():
        start = int(starts[group])
        other = start + int(np.flatnonzero(count[start:] != count[start])[0])
        found.append(
            Contradiction(
                int(times[start]),
                (int(count[start]), int(place[start])),
                (int(count[other]), int(place[other])),
            )
        )
    silent_groups = np.flatnonzero(cover.depth(times[starts]) > listing)
    for group in silent_groups[: None if first else 1].tolist():
        start = int(starts[group])
        time = int(times[start])
        others = set(place[start : start + int(listing[group])].tolist())
        silent = (0, cover.place_of(time, others, new=bool(is_old[start])))
        one = (int(count[start]), int(place[start]))
        if silent[1] < one[1]:
            found.append(Contradiction(time, silent, one))
            count[start] = 0
        else:
            found.append(Contradiction(time, one, silent))
    return times[starts], count[starts], place[starts]


def _clipped(
    coverage: Sequence[Interval], intervals: pa.RecordBatch, frontier: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    floor = np.uint64(frontier)
    uppers = intervals.column("upper")
    closed = np.asarray(uppers.is_null())
    new_uppers = uppers.fill_null(0).to_numpy().astype(np.uint64)
    new_uppers[closed] = END
    lowers = np.concatenate(
        [
            np.array([low for low, _ in coverage], np.uint64),
            intervals.column("lower").to_numpy().astype(np.uint64),
        ]
    )
    old_uppers = np.array([END if high is None else high for _, high in coverage], np.uint64)
    uppers_all = np.concatenate([old_uppers, new_uppers])
    return np.maximum(lowers, floor), np.maximum(uppers_all, floor)


def _since(rows: pa.RecordBatch, frontier: int) -> dict[str, Longs]:
    times = rows.column("time").to_numpy()
    wanted = times >= frontier
    return {name: rows.column(name).to_numpy()[wanted] for name in rows.schema.names}
