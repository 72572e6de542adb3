"""The order in which transactions become versions, and rows become records.

**The order of lines is never overturned.** Each file is a *sequence*: what a source wrote, one line after
the other. Source positions decide only *between* sequences: of the transactions that are next in all of
their sequences, the one with the lowest position comes first::

    file a   T1(lsn 10)  T3(lsn 30)  T4(lsn 5)          T1  T2  T3  T4: its low position
    file b   T2(lsn 20)  T4(lsn 6)               ─▶     does not move it past T3

Positions are not trusted further than that. They start again where a replica is promoted, a binlog is
reset or a server is restored; they repeat where a connector is restarted; an incremental snapshot has
none. A row without a position stands where its predecessor in the sequence does.

**Files of one entity type** may hold the same rows, so they are one sequence, file after file as they
arrived. There are two exceptions. Files whose names tell different partitions of a topic share no rows.
And a file goes before one that arrived earlier if positions and the source's own time both say so, as
after a copy that lost the files' times.

So the last image of a row is that of its last line, wherever files and batches are cut.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace_server.pipeline.changes import (
    UNORDERED,
    UNPLACED,
    arrival,
    file_of,
    path_in,
    position_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace_server.pipeline.changes import Change
    from tailrace_server.pipeline.transactions.tally import Tally

_PARTITION: Final = re.compile(
    rb"(?:^|[/_.-])partition[=_-]?(\d+)(?=[/_.-])|\+(\d+)\+\d+", re.ASCII
)
"""The partition in a file's path as sinks of Kafka write it: ``partition=3/…``, ``topic+3+0000042.json``."""


class _FilePart(NamedTuple):
    """The transactions with rows of one entity type in one file."""

    numbers: list[int]
    """In the order of their arrival."""
    positions: tuple[bytes, bytes] | None
    """Lowest and highest; None if any has none, or if they fall."""
    times: tuple[int, int] | None
    """First and last source timestamp, µs; None if any has none."""

    def is_before(self, arrived_earlier: _FilePart) -> bool:
        """Whether positions and times both say that this part is the earlier one."""
        positions, others = self.positions, arrived_earlier.positions
        times, other_times = self.times, arrived_earlier.times
        if positions is None or others is None or times is None or other_times is None:
            return False
        return positions[1] < others[0] and times[1] < other_times[0]


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
    """Yield the numbers in sequences, each once, after all that stand before it in a sequence."""
    # 1. A number waits in each of its sequences until it is the next there; it is ready when it is the
    #    next in all of them.
    places: dict[int, list[int]] = defaultdict(list)
    for place, sequence in enumerate(sequences):
        for number in sequence:
            places[number].append(place)
        sequence.reverse()  # the next one is the last, so that taking it is cheap
    waits = {number: len(its) for number, its in places.items()}
    last_position = [UNPLACED] * len(sequences)

    def rank(number: int) -> tuple[bytes, int]:
        position = position_bytes(tallies[number].place or b"")
        if position == UNPLACED:
            position = max(last_position[place] for place in places[number])
        return position, number

    def advance(place: int) -> None:
        sequence = sequences[place]
        while sequence and sequence[-1] in taken:
            sequence.pop()
        if sequence:
            waits[sequence[-1]] -= 1
            if not waits[sequence[-1]]:
                heappush(ready, rank(sequence[-1]))

    ready: list[tuple[bytes, int]] = []
    taken: set[int] = set()
    for place in range(len(sequences)):
        advance(place)
    while len(taken) < len(places):
        # 2. Of those that are ready the lowest position comes next. Where none is, sequences tell of two
        #    transactions in opposite order, and positions have to decide between those.
        position, number = (
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
            last_position[place] = position
            if sequences[place] and sequences[place][-1] == number:
                advance(place)


def _sequences(tallies: Sequence[Tally]) -> list[list[int]]:
    """Return the numbers of the transactions in each sequence, in its order.

    Where a transaction goes on in a later file of an entity type, it stands in the first of them only.
    """
    files: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    types: dict[tuple[str, bytes], dict[bytes, list[tuple[bytes, int]]]] = defaultdict(dict)
    for number, tally in enumerate(tallies):
        first: dict[tuple[str, bytes], bytes] = {}
        for entity_type, arrived in tally.first_rows:
            key = entity_type, _partition_of(file_of(arrived))
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
    positions = [position_bytes(tallies[number].place or b"") for number in numbers]
    times = [tallies[number].timestamp for number in numbers]
    known = [time for time in times if time is not None]
    rising = UNPLACED not in positions and all(a <= b for a, b in pairwise(positions))
    return _FilePart(
        numbers,
        (positions[0], positions[-1]) if rising else None,
        (min(known), max(known)) if len(known) == len(times) else None,
    )


@lru_cache(maxsize=4096)
def _partition_of(file: bytes) -> bytes:
    """Return the partition of a topic that a file's path names; empty where it names none."""
    found = _PARTITION.search(path_in(file))
    return (found[1] or found[2]) if found else b""


def rows_in_order(changes: Iterable[Change]) -> list[Change]:
    """Return the changes of one transaction in the order in which the source made them.

    By ``total_order`` where every row tells it, no two the same, and it rises in each file and through
    the files of each entity type. Else by position where every row has one and it never falls there. Else
    as the rows arrived.
    """
    rows = sorted(changes, key=lambda change: arrival(change.place))
    orders = [change.total_order for change in rows]
    positions = [position_bytes(change.place) for change in rows]
    if UNORDERED not in orders and len(set(orders)) == len(orders) and _rises(rows, orders):
        rows.sort(key=lambda change: change.total_order)
    elif UNPLACED not in positions and _rises(rows, positions):
        rows.sort(key=lambda change: position_bytes(change.place))
    return rows


def _rises(rows: Sequence[Change], values: Sequence[int] | Sequence[bytes]) -> bool:
    """Whether values never fall in a file, nor in a partition of an entity type, rows given by arrival."""
    last: dict[bytes | tuple[str, bytes], Any] = {}
    for change, value in zip(rows, values, strict=True):
        file = file_of(arrival(change.place))
        for sequence in (file, (change.entity_type or "", _partition_of(file))):
            if value < last.get(sequence, value):
                return False
            last[sequence] = value
    return True
