"""The known times of a stream, and the frontier up to which they are finished: only numbers, no updates.

`TIMES` has a row for each open time with an update or a count above zero::

    time   announced    received     announced is -1: no progress statement covers the time yet
    4      1            1
    6      3            2            ◀─ the frontier stops at the first row that lacks updates,
    9      -1           5               or at the end of the covered interval that it is in

*Coverage* is the union of the intervals of all progress statements, as disjoint intervals in order. A covered
time without a row has a count of zero. Rows and coverage below the frontier are dropped.

Times are partitioned by hash, and `update_times` works on one partition. The new frontier is the least of two
kinds of times: the first time of each partition that lacks updates, and the end of the coverage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.cdcv2 import Waiting
from tailrace_server.pipeline.input.change import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tailrace_server.pipeline.cdcv2.cutting import IntegerProgress

    Longs = npt.NDArray[np.int64]

Interval = tuple[int, int | None]
"""A half-open interval of times; an upper bound of None is the end of time."""

END: Final = 2**63
"""The end of time, as an upper bound."""

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
"""Schema of the known times: ``announced_at`` is the place of the count's message, ``received_at`` that of
the last update's message.
"""

COUNTS: Final = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
    ]
)
"""Schema of counts in progress statements, or of numbers of received updates; ``message`` is the place."""

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
    """True if ``second`` is the number of received updates; False if it is another count."""


class UpdatedTimes(NamedTuple):
    """The updated times of one hash partition."""

    times: pa.RecordBatch
    """The times, of `TIMES`, in order."""
    lowest: int | None
    """The first time that lacks updates; None if no time does."""
    contradiction: Contradiction | None


def counts_table(progress: Iterable[IntegerProgress]) -> pa.RecordBatch:
    """Return the counts of progress statements as a table of `COUNTS`."""
    rows = [(time, count, each.message) for each in progress for time, count in each.counts]
    return batch_of(rows, COUNTS)


def intervals_table(progress: Iterable[IntegerProgress]) -> pa.RecordBatch:
    """Return the intervals of progress statements as a table of `INTERVALS`."""
    return batch_of([(each.lower, each.upper, each.message) for each in progress], INTERVALS)


def received_table(updates: pa.RecordBatch) -> pa.RecordBatch:
    """Return the number of updates at each time, as a table of `COUNTS`."""
    times = updates.column("time").to_numpy()
    found, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    last = np.full(len(found), -1, np.int64)
    np.maximum.at(last, inverse, updates.column("message").to_numpy())
    return pa.RecordBatch.from_arrays(
        [pa.array(each) for each in (found, counts.astype(np.int64), last)], schema=COUNTS
    )


def hashes_of_times(times: Longs) -> npt.NDArray[np.uint64]:
    """Return the hashes by which times are partitioned."""
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
    """Update the times of one hash partition.

    Args:
        old: The known times of the partition, of `TIMES`.
        coverage: The coverage so far.
        intervals: The intervals of all new progress statements, of `INTERVALS`: also of statements whose counts
            are in other partitions.
        counts: The counts of new progress statements for times of the partition, of `COUNTS`.
        received: Numbers of new distinct updates, of `COUNTS`; several rows of one time add up.
        frontier: Times below it are finished.
        first: True to keep the first of two contradicting counts, instead of reporting the contradiction.
    """
    # 1. One count for each time. This needs the intervals: a statement that covers a time without a count for
    #    it says that the count is zero.
    cover = _Cover([*coverage], intervals, frontier)
    contradictions: list[Contradiction] = []
    listed, count, place = _listed(old, counts, cover, contradictions, first=first)
    # 2. One row for each time that has a count, is known, or is new. New values overwrite old ones below.
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
    # 3. More updates than announced are an error, as updates are never taken back. Fewer only mean that the
    #    time waits for more.
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
    # Sort by lower bound. Then an interval begins a new part of the union if and only if its lower bound is
    # above all upper bounds before it.
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
    """Return the finished frontier; None if all time is finished.

    Args:
        frontier: The frontier before.
        coverage: The coverage now.
        lowest: For each hash partition of the times, the first time that lacks updates, or None.
    """
    end: int | None = frontier
    if coverage and coverage[0][0] <= frontier:
        end = coverage[0][1]
    bounds = [each for each in (end, *lowest) if each is not None]
    return min(bounds) if bounds else None


def coverage_after(coverage: Sequence[Interval], frontier: int | None) -> list[Interval]:
    """Return the part of the coverage at or above the frontier."""
    if frontier is None:
        return []
    return [(max(low, frontier), high) for low, high in coverage if high is None or high > frontier]


def why_waiting(
    frontier: int | None, coverage: Sequence[Interval], times: pa.RecordBatch, limit: int
) -> list[Waiting[int]]:
    """Return the reasons why the frontier does not advance, at most ``limit``.

    Holes in the coverage first, then times.
    """
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
    """Says how many statements cover a time; the coverage so far counts as one statement."""

    def __init__(
        self, coverage: Sequence[Interval], intervals: pa.RecordBatch, frontier: int
    ) -> None:
        self._intervals = intervals
        lowers, uppers = _clipped(coverage, intervals, frontier)
        self._lowers, self._uppers = np.sort(lowers), np.sort(uppers)
        self._old = coverage

    def depth(self, times: Longs) -> Longs:
        asked = times.astype(np.uint64)
        # Intervals that begin at or before a time, minus those that end at or before it.
        below = np.searchsorted(self._lowers, asked, "right")
        return below - np.searchsorted(self._uppers, asked, "right")

    def place_of(self, time: int, others: set[int], *, new: bool = False) -> int:
        """Return the place of a statement that covers a time and is not in ``others``.

        -1 for the old coverage.
        """
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
    """Return the times with counts, the first count of each time, and the place of the count's message."""
    # 1. Put the old counts above zero and the new counts into one list.
    olds = {name: old.column(name).to_numpy() for name in ("time", "announced", "announced_at")}
    told = olds["announced"] > 0
    news = {name: counts.column(name).to_numpy() for name in COUNTS.names}
    times = np.concatenate([olds["time"][told], news["time"]])
    count = np.concatenate([olds["announced"][told], news["count"]])
    place = np.concatenate([olds["announced_at"][told], news["message"]])
    is_old = np.zeros(len(times), np.bool_)
    is_old[: np.count_nonzero(told)] = True
    # 2. Drop times that no interval covers any more: they are below the frontier.
    current = cover.depth(times) > 0
    times, count, place, is_old = times[current], count[current], place[current], is_old[current]
    if not len(times):
        return times, count, place
    # 3. Group by time. In a group the count that was read first comes first: old before new, then by place.
    order = np.lexsort((place, ~is_old, times))
    times, count, place, is_old = times[order], count[order], place[order], is_old[order]
    starts = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]]))
    low, high = np.minimum.reduceat(count, starts), np.maximum.reduceat(count, starts)
    listing = np.diff(np.append(starts, len(times)))
    # 4. Two different counts of one time contradict each other. The error needs only the first such time.
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
    # 5. If more statements cover a time than have a count for it, one of them says that the count is zero. If
    #    that statement was read before the count, zero wins. So with ``first`` correct every such time.
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
    # Unsigned numbers, since the end of time (END) is above the largest signed one.
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
    kept = times >= frontier
    return {name: rows.column(name).to_numpy()[kept] for name in rows.schema.names}
