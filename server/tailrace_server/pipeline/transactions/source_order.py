"""The order in which transactions become versions, and rows become records.

**The order of lines is never overturned.** Each file is a *sequence*: what a source wrote, one line after
the other. Source positions decide only *between* sequences: of the transactions that are next in all of
their sequences, the one with the lowest position comes first. Positions compare within one log of the source;
between logs its time decides::

    file a   T1(lsn 10)  T3(lsn 30)  T4(lsn 5)          T1  T2  T3  T4: its low position
    file b   T2(lsn 20)  T4(lsn 6)               ─▶     does not move it past T3

Positions are not trusted further than that. They start again where a replica is promoted, a binlog is
reset or a server is restored; they repeat where a connector is restarted; an incremental snapshot has
none. A row without a position has the place of its predecessor in the sequence.

**Files of one entity type** may hold the same rows, so they are one sequence, file after file as they
arrived. There are two exceptions. Files whose names tell different partitions of a topic share no rows.
And a file goes before one that arrived earlier if positions and the source's own time both say so, as
after a copy that lost the files' times. Between logs the time says it alone.

So the last image of a row is that of its last line, wherever files and batches are cut.
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
"""Two commits so close may have times in the opposite order of their positions."""
_LONG_AGO: Final = -(1 << 63)

_Rank = tuple[int, int, bytes]
"""Time, number of the stretch of a log, and position; see `_ranks`."""
_FIRST: Final[_Rank] = (_LONG_AGO, -1, UNPLACED)


class _FilePart(NamedTuple):
    """The transactions with rows of one entity type in one file."""

    numbers: list[int]
    """In the order of their arrival."""
    ends: tuple[Placed, Placed] | None
    """First and last; None if any has no position, or if positions fall."""
    times: tuple[int, int] | None
    """First and last source timestamp, µs; None if any has none."""

    def is_before(self, arrived_earlier: _FilePart) -> bool:
        """Return True if the source wrote this part before the other, by positions and times."""
        ends, others = self.ends, arrived_earlier.ends
        times, other_times = self.times, arrived_earlier.times
        if ends is None or others is None or times is None or other_times is None:
            return False
        if times[1] >= other_times[0]:
            return False
        last, next_one = ends[1], others[0]
        if not may_compare(last.log or "", next_one.log or ""):
            return True
        # Lower numbers at a later time are those of a log that began anew.
        return last.position < next_one.position or is_reset(next_one.position, last.position)


def in_source_order(tallies: Iterable[Tally]) -> list[Tally]:
    """Return transactions in the order in which they become versions.

    Args:
        tallies: Of transactions with at least one row each.
    """
    by_arrival = sorted(tallies, key=lambda tally: (tally.first_arrival or b"", tally.key))
    sequences = _sequences(by_arrival)
    if len(sequences) < 2:
        return by_arrival
    return [by_arrival[number] for number in _merge(by_arrival, sequences)]


def _merge(tallies: Sequence[Tally], sequences: list[list[int]]) -> Iterator[int]:
    """Yield the numbers in sequences, each once, after all that come before it in a sequence."""
    # 1. A number waits in each of its sequences until it is the next there; it is ready when it is the
    #    next in all of them.
    places: dict[int, list[int]] = defaultdict(list)
    for place, sequence in enumerate(sequences):
        for number in sequence:
            places[number].append(place)
        sequence.reverse()  # the next one is the last, so that taking it is cheap
    waits = {number: len(its) for number, its in places.items()}
    ranks = _ranks(tallies)
    last_rank = [_FIRST] * len(sequences)

    def rank(number: int) -> tuple[_Rank, int]:
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
        # 2. Of those that are ready the lowest rank comes next. Where none is, sequences tell of two
        #    transactions in opposite order, and ranks have to decide between those.
        taken_rank, number = (
            heappop(ready)
            if ready
            else min(rank(sequence[-1]) for sequence in sequences if sequence)
        )
        if number in taken:
            continue
        taken.add(number)
        yield number
        # 3. What stands behind it in a sequence is the next there now. What was taken out of its turn
        #    is passed over when its turn comes.
        for place in places[number]:
            last_rank[place] = taken_rank
            if sequences[place] and sequences[place][-1] == number:
                advance(place)


def _ranks(tallies: Sequence[Tally]) -> dict[int, _Rank]:
    """Return a rank for each transaction with a position; the lowest rank comes first.

    Ranks follow the positions within a stretch of a log, and the source's times between stretches.
    """
    logs: dict[str, list[int]] = defaultdict(list)
    for number, tally in enumerate(tallies):
        if position_bytes(tally.place or b"") != UNPLACED:
            logs[tally.log or ""].append(number)
    together = logs_in_one_order(logs)
    joined: dict[str, list[int]] = defaultdict(list)
    for log, numbers in logs.items():
        joined[together[log]] += numbers
    stretches = [each for numbers in joined.values() for each in _stretches(tallies, numbers)]
    ranks: dict[int, _Rank] = {}
    for place, stretch in enumerate(stretches):
        # The latest time so far, not the transaction's own: clocks are less exact than positions, and a rank
        # must not fall where a position rises.
        latest = _LONG_AGO
        for position, number in sorted(stretch):
            latest = max(latest, _time_of(tallies[number]))
            ranks[number] = latest, place, position
    return ranks


def _stretches(
    tallies: Sequence[Tally], numbers: Iterable[int]
) -> Iterator[list[tuple[bytes, int]]]:
    """Yield position and number of the transactions of a log, one list from each of its beginnings on.

    A log begins anew where the first number of its position falls although the time rises.
    """
    stretch: list[tuple[bytes, int]] = []
    highest, reached = UNPLACED, _LONG_AGO
    timed = sorted(
        (_time_of(tallies[number]), position_bytes(tallies[number].place or b""), number)
        for number in numbers
    )
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
    """Return the numbers of the transactions in each sequence, in its order.

    If a transaction continues in a later file of an entity type, it is in the first of them only.
    """
    files: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    types: dict[tuple[str, bytes], dict[bytes, list[tuple[bytes, int]]]] = defaultdict(dict)
    for number, tally in enumerate(tallies):
        first: dict[tuple[str, bytes], bytes] = {}
        for entity_type, arrived in tally.first_rows:
            key = entity_type, partition_of(file_of(arrived))
            first[key] = min(arrived, first.get(key, arrived))
        for key, arrived in first.items():
            file = file_of(arrived)
            files[file][number] = min(arrived, files[file].get(number, arrived))
            types[key].setdefault(file, []).append((arrived, number))
    sequences = [sorted(found, key=found.__getitem__) for found in files.values()]
    for rows in types.values():
        if len(rows) > 1:
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

    By ``total_order`` if every row has it, no two are equal, and it rises in each file and through
    the files of each entity type. Else by position where every row has one of the same log and it never falls
    there. Else as the rows arrived.
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
    """Return True if values, of rows by arrival, never fall in a file or in a partition of an entity type."""
    last: dict[bytes | tuple[str, bytes], Any] = {}
    for change, value in zip(rows, values, strict=True):
        file = file_of(arrival(change.place))
        for sequence in (file, (change.entity_type or "", partition_of(file))):
            if value < last.get(sequence, value):
                return False
            last[sequence] = value
    return True
