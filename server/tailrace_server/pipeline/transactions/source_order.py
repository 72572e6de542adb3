"""The order in which transactions become versions, and rows become records.

**The order of lines in a file is always preserved.** Each file is a *sequence*: the lines that a source wrote,
in order. Source positions decide only *between* sequences: of the transactions that are next in all of their
sequences, the one with the lowest position comes first. Positions are comparable only within one log of the
source; between logs the source's timestamps decide::

    file a   T1(lsn 10)  T3(lsn 30)  T4(lsn 5)          T1  T2  T3  T4: its low position
    file b   T2(lsn 20)  T4(lsn 6)               ─▶     does not move it past T3

Positions are not reliable enough for more. They start again after a replica is promoted, a binlog is reset or a
server is restored. They repeat after a connector is restarted. Rows of an incremental snapshot have none. A row
without a position is ordered with its predecessor in the sequence.

**Files of one entity type** may hold the same rows, so together they are one sequence, in the order of arrival.
There are two exceptions. Files whose names contain different partitions of a topic share no rows, so they are
different sequences. And a file is put before a file that arrived earlier if positions and the source's
timestamps both say so, for example after a copy that lost the files' modification times. If the files are of
different logs, the timestamps alone decide.

So the last image of a row is always that of its last line, however lines are divided among files and batches.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace_server.pipeline.catalog.newest_positions import (
    Placed,
    is_reset,
    logs_in_one_order,
    may_compare,
)
from tailrace_server.pipeline.input.change import (
    UNORDERED,
    UNPLACED,
    arrival,
    file_of,
    partition_of,
    position_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.tally import Tally

_SAME_MOMENT_US: Final = 100_000
"""Clock tolerance: if two commits are closer, their timestamps may contradict the order of positions."""
_LONG_AGO: Final = -(1 << 63)

_Rank = tuple[int, int, bytes]
"""The sort key of a transaction: time, number of the stretch of a log, and position; see `_ranks`."""
_FIRST: Final[_Rank] = (_LONG_AGO, -1, UNPLACED)


class _FilePart(NamedTuple):
    """The transactions with rows of one entity type in one file."""

    numbers: list[int]
    """Numbers of the transactions, in the order of arrival."""
    ends: tuple[Placed, Placed] | None
    """Places of the first and the last transaction; None if any has no position, or if positions decrease."""
    times: tuple[int, int] | None
    """Earliest and latest source timestamp, in microseconds; None if any transaction has none."""

    def is_before(self, arrived_earlier: _FilePart) -> bool:
        """Return True if, by positions and timestamps, the source wrote this part before the other one."""
        ends, others = self.ends, arrived_earlier.ends
        times, other_times = self.times, arrived_earlier.times
        if ends is None or others is None or times is None or other_times is None:
            return False
        if times[1] >= other_times[0]:
            return False
        last, next_one = ends[1], others[0]
        if not may_compare(last.log or "", next_one.log or ""):
            return True
        # This part has earlier times. If its positions are higher all the same, the log was reset in between.
        return last.position < next_one.position or is_reset(next_one.position, last.position)


def in_source_order(tallies: Iterable[Tally]) -> list[Tally]:
    """Return transactions in the order in which they become versions.

    Args:
        tallies: The tallies of the transactions; each has at least one row.
    """
    by_arrival = sorted(tallies, key=lambda tally: (tally.first_arrival or b"", tally.key))
    sequences = _sequences(by_arrival)
    if len(sequences) < 2:
        return by_arrival
    return [by_arrival[number] for number in _merge(by_arrival, sequences)]


def _merge(tallies: Sequence[Tally], sequences: list[list[int]]) -> Iterator[int]:
    """Yield the numbers of all sequences in topological order, each once.

    Ranks decide between numbers that no sequence orders, and between sequences that contradict each other.
    """
    # 1. A number waits in each of its sequences until it is next there. It is ready when it is next in all of
    #    its sequences; `waits` counts the sequences in which it is not.
    #    `places` has the sequences of each number.
    places: dict[int, list[int]] = defaultdict(list)
    for place, sequence in enumerate(sequences):
        for number in sequence:
            places[number].append(place)
        sequence.reverse()  # the next number is at the end, where a pop is cheap
    waits = {number: len(its) for number, its in places.items()}
    ranks = _ranks(tallies)
    last_rank = [_FIRST] * len(sequences)

    def rank(number: int) -> tuple[_Rank, int]:
        # A transaction without a position gets the rank of its predecessor, so that it stays directly after it.
        own = ranks.get(number)
        return own or max(last_rank[place] for place in places[number]), number

    def advance(place: int) -> None:
        sequence = sequences[place]
        while sequence and sequence[-1] in taken:
            sequence.pop()
        if sequence:
            waits[sequence[-1]] -= 1
            if not waits[sequence[-1]]:
                heappush(ready, rank(sequence[-1]))

    ready: list[tuple[_Rank, int]] = []
    taken: set[int] = set()
    for place in range(len(sequences)):
        advance(place)
    while len(taken) < len(places):
        # 2. The ready number with the lowest rank comes next. If no number is ready, two sequences have the
        #    same transactions in opposite order, and ranks decide among the next numbers of all sequences.
        taken_rank, number = (
            heappop(ready)
            if ready
            else min(rank(sequence[-1]) for sequence in sequences if sequence)
        )
        if number in taken:
            continue
        taken.add(number)
        yield number
        # 3. Advance the sequences in which this number was next. In other sequences a number that was taken
        #    out of turn stays, and is skipped when its turn comes.
        for place in places[number]:
            last_rank[place] = taken_rank
            if sequences[place] and sequences[place][-1] == number:
                advance(place)


def _ranks(tallies: Sequence[Tally]) -> dict[int, _Rank]:
    """Return the rank of each transaction with a position, by its number; the lowest rank comes first.

    A *stretch* is the part of a log between two resets of its positions. Ranks follow the positions within a
    stretch, and the source's timestamps between stretches.
    """
    logs: dict[str, list[int]] = defaultdict(list)
    for number, tally in enumerate(tallies):
        if position_bytes(tally.place or b"") != UNPLACED:
            logs[tally.log or ""].append(number)
    together = logs_in_one_order(logs)
    # Snapshot rows of MySQL name no server. Their log is joined with that of the server if there is only one.
    joined: dict[str, list[int]] = defaultdict(list)
    for log, numbers in logs.items():
        joined[together[log]] += numbers
    stretches = [each for numbers in joined.values() for each in _stretches(tallies, numbers)]
    ranks: dict[int, _Rank] = {}
    for place, stretch in enumerate(stretches):
        # Use the latest time so far instead of the transaction's own: clocks are less exact than positions,
        # and ranks must not decrease while positions increase.
        latest = _LONG_AGO
        for position, number in sorted(stretch):
            latest = max(latest, _time_of(tallies[number]))
            ranks[number] = latest, place, position
    return ranks


def _stretches(
    tallies: Sequence[Tally], numbers: Iterable[int]
) -> Iterator[list[tuple[bytes, int]]]:
    """Yield the stretches of a log: lists of position and number of its transactions.

    A new stretch begins where the first number of the position decreases although the time increases.
    """
    stretch: list[tuple[bytes, int]] = []
    highest, reached = UNPLACED, _LONG_AGO
    timed = sorted(
        (_time_of(tallies[number]), position_bytes(tallies[number].place or b""), number)
        for number in numbers
    )
    # In the order of time, a decrease of positions is a reset of the log only if the time difference is above
    # the tolerance; otherwise the clocks may just be inexact.
    for time, position, number in timed:
        if stretch and is_reset(position, highest) and time - reached > _SAME_MOMENT_US:
            yield stretch
            stretch, highest = [], UNPLACED
        if position >= highest:
            highest, reached = position, time
        stretch.append((position, number))
    yield stretch


def _time_of(tally: Tally) -> int:
    return _LONG_AGO if tally.timestamp is None else tally.timestamp


def _sequences(tallies: Sequence[Tally]) -> list[list[int]]:
    """Return the sequences: lists of the numbers of transactions, each in its order.

    A transaction with rows in several files of an entity type is listed for the first of these files only.
    """
    files: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    types: dict[tuple[str, bytes], dict[bytes, list[tuple[bytes, int]]]] = defaultdict(dict)
    # 1. Collect the transactions of each file, and those of each entity type and partition by file.
    for number, tally in enumerate(tallies):
        first: dict[tuple[str, bytes], bytes] = {}
        for entity_type, arrived in tally.first_rows:
            key = entity_type, partition_of(file_of(arrived))
            first[key] = min(arrived, first.get(key, arrived))
        for key, arrived in first.items():
            file = file_of(arrived)
            files[file][number] = min(arrived, files[file].get(number, arrived))
            types[key].setdefault(file, []).append((arrived, number))
    # 2. Each file is a sequence. So are several files of one entity type and partition together.
    sequences = [sorted(found, key=found.__getitem__) for found in files.values()]
    for rows in types.values():
        if len(rows) > 1:
            # Insertion sort, because `is_before` is no total order: a file moves forward only as long as it is
            # certainly older than its neighbour.
            parts: list[_FilePart] = []
            for part in (_file_part(tallies, rows[file]) for file in sorted(rows)):
                place = len(parts)
                while place and part.is_before(parts[place - 1]):
                    place -= 1
                parts.insert(place, part)
            sequences.append([number for part in parts for number in part.numbers])
    return sequences


def _file_part(tallies: Sequence[Tally], rows: list[tuple[bytes, int]]) -> _FilePart:
    numbers = [number for _, number in sorted(rows)]
    placed = [
        Placed(tally.log or "", position_bytes(tally.place or b""), tally.timestamp)
        for tally in (tallies[number] for number in numbers)
    ]
    rising = all(each.position != UNPLACED for each in placed) and not any(
        after.is_before(before) for before, after in pairwise(placed)
    )
    times = [each.time for each in placed if each.time is not None]
    return _FilePart(
        numbers,
        (placed[0], placed[-1]) if rising else None,
        (min(times), max(times)) if len(times) == len(placed) else None,
    )


def rows_in_order(changes: Iterable[Change]) -> list[Change]:
    """Return the changes of one transaction in the order in which the source made them.

    The first rule that applies decides:

    1. ``total_order``, if every row has one, no two are equal, and it never decreases within a file or through
       the files of an entity type.
    2. The source position, if every row has one, all are of the same log, and it never decreases in that way.
    3. The order of arrival.
    """
    rows = sorted(changes, key=lambda change: arrival(change.place))
    orders = [change.total_order for change in rows]
    positions = [position_bytes(change.place) for change in rows]
    if UNORDERED not in orders and len(set(orders)) == len(orders) and _rises(rows, orders):
        rows.sort(key=lambda change: change.total_order)
    elif (
        UNPLACED not in positions
        and len({change.log for change in rows}) == 1
        and _rises(rows, positions)
    ):
        rows.sort(key=lambda change: position_bytes(change.place))
    return rows


def _rises(rows: Sequence[Change], values: Sequence[int] | Sequence[bytes]) -> bool:
    """Return True if values never decrease within a file or within a partition of an entity type.

    Args:
        rows: The rows, in the order of arrival.
        values: The value of each row.
    """
    last: dict[bytes | tuple[str, bytes], Any] = {}
    for change, value in zip(rows, values, strict=True):
        file = file_of(arrival(change.place))
        for sequence in (file, (change.entity_type or "", partition_of(file))):
            if value < last.get(sequence, value):
                return False
            last[sequence] = value
    return True
