"""A transaction without its rows: enough to decide when it is complete and what it follows.

A source does not group the rows of a snapshot, so `cut_snapshots` cuts them into versions by number. Tallies of
open transactions are in pending files (`driver_state`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace_server.pipeline.catalog.newest_positions import (
    ENDED,
    LAST,
    PositionSpan,
    joined_spans,
)
from tailrace_server.pipeline.input.change import (
    BEGIN,
    CHANGE,
    DELETE,
    END,
    QUARANTINED,
    READ,
    SNAPSHOT,
    SPLIT,
    TRUNCATE,
    UNPLACED,
    Change,
    arrival,
    file_of,
    is_effect,
    position_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace_server.pipeline.input.table_bindings import Bindings

_Ordered = TypeVar("_Ordered", bytes, str, int)

CUT: Final = "\0cut"
"""Head of the transaction key of a cut; the batch and the number of the version in it follow."""


class Cut(NamedTuple):
    """Rows ``start`` … ``stop`` - 1 of a run of snapshot rows belong to transaction ``key``.

    ``offset`` added to a row's number in the run gives its number in the snapshot.
    """

    run_key: str
    start: int
    stop: int
    offset: int
    key: str


@dataclass(frozen=True, slots=True)
class Tally:
    """One transaction, without its rows."""

    key: str
    transaction_id: str | None = None
    place: bytes | None = None
    """Place of its first row; None while no row has come."""
    first_arrival: bytes | None = None
    last_arrival: bytes | None = None
    """When and where its first and its last row arrived."""
    first_rows: tuple[tuple[str, bytes], ...] = ()
    """(entity type, arrival of its first row there), for each file and entity type with rows of it."""
    mark: bytes | None = None
    """Arrival of its first BEGIN or END."""
    rows: int = 0
    quarantined: int = 0
    expected: int | None = None
    """Rows that END announces."""
    timestamp: int | None = None
    """Latest source timestamp of its rows, µs."""
    source: str | None = None
    spans: tuple[PositionSpan, ...] = ()
    """Positions and times of its rows, for each entity type and log of the source."""
    seen: float = 0.0
    """When the last of it came, by the idle clock, seconds."""
    segments: tuple[str, ...] = ()
    """Pending segments that hold rows of it."""

    def plus(self, other: Tally) -> Tally:
        """Return the tally of both parts; ``seen`` and ``segments`` are joined as well."""
        return Tally(
            key=self.key,
            transaction_id=_least(self.transaction_id, other.transaction_id),
            place=_first_place((self.place, other.place)),
            first_arrival=_least(self.first_arrival, other.first_arrival),
            last_arrival=_greatest(self.last_arrival, other.last_arrival),
            first_rows=_first_rows((*self.first_rows, *other.first_rows)),
            mark=_least(self.mark, other.mark),
            rows=self.rows + other.rows,
            quarantined=self.quarantined + other.quarantined,
            expected=_greatest(self.expected, other.expected),
            timestamp=_greatest(self.timestamp, other.timestamp),
            source=_least(self.source, other.source),
            spans=joined_spans((*self.spans, *other.spans)),
            seen=max(self.seen, other.seen),
            segments=(*self.segments, *(s for s in other.segments if s not in self.segments)),
        )

    @property
    def log(self) -> str | None:
        """The log of the source that its positions count in; None where they are of none, or of several."""
        logs = {span.log for span in self.spans}
        return logs.pop() if len(logs) == 1 else None

    @property
    def highest(self) -> bytes:
        """The highest position of its rows."""
        return max((span.highest for span in self.spans), default=UNPLACED)

    @property
    def counted(self) -> bool:
        """True if END has come and all that it announces is there."""
        return self.expected is not None and self.rows + self.quarantined >= self.expected

    @property
    def empty(self) -> bool:
        """True if it has no rows, none in quarantine, and END announced none."""
        return not (self.rows or self.quarantined or self.expected)


class BatchSummary(NamedTuple):
    """One batch, without its rows."""

    tallies: dict[str, Tally]
    """Snapshot rows by split."""
    rows: Counter[str]
    """Rows by entity type, removals aside."""
    splits: list[Change]
    quarantined: list[Change]
    skipped: int = 0
    """Lines that an earlier writer had consumed."""

    @classmethod
    def of(cls, changes: Sequence[Change], skipped: int, seen: float) -> BatchSummary:
        """Return what is known of a batch; ``seen`` as in `tally`."""
        return cls(
            tallies=tally(changes, seen),
            rows=Counter(
                change.entity_type or ""
                for change in changes
                if change.kind == CHANGE and change.operation not in (DELETE, TRUNCATE)
            ),
            splits=[change for change in changes if change.kind == SPLIT],
            quarantined=[change for change in changes if change.kind == QUARANTINED],
            skipped=skipped,
        )

    def without_foreign_effects(self, bindings: Bindings) -> BatchSummary:
        """Return the summary without effects of statements on tables that the log has no rows of.

        A decoder cannot leave them out: the first rows of a table may be in the same batch.
        """
        after = bindings.after(self.splits)
        return self._replace(
            quarantined=[
                change
                for change in self.quarantined
                if not is_effect(change) or after.has_rows_of(change.table or "", change.source)
            ]
        )


def tally(changes: Iterable[Change], seen: float) -> dict[str, Tally]:
    """Return the tallies of the transactions that changes belong to; those of snapshots by split."""
    by_key: dict[str, list[Change]] = {}
    for change in changes:
        if change.transaction is not None:
            by_key.setdefault(change.transaction, []).append(change)
    return {key: _tally_of(key, group, seen) for key, group in by_key.items()}


def _tally_of(key: str, changes: Sequence[Change], seen: float) -> Tally:
    rows = [change for change in changes if change.kind == CHANGE]
    arrivals = [arrival(change.place) for change in rows]
    marks = [change for change in changes if change.kind in (BEGIN, END)]
    ids = {change.transaction_id for change in changes} - {None}
    sources = {change.source for change in rows} - {None}
    return Tally(
        key=key,
        transaction_id=min(ids, default=None),  # type: ignore[type-var]
        place=_first_place(change.place for change in rows),
        first_arrival=min(arrivals, default=None),
        last_arrival=max(arrivals, default=None),
        first_rows=_first_rows(
            (change.entity_type or "", at) for change, at in zip(rows, arrivals, strict=True)
        ),
        mark=min((arrival(change.place) for change in marks), default=None),
        rows=len(rows),
        quarantined=sum(change.kind == QUARANTINED for change in changes),
        expected=max((c.number for c in marks if c.number is not None), default=None),
        timestamp=max((c.timestamp for c in rows if c.timestamp is not None), default=None),
        source=min(sources, default=None),  # type: ignore[type-var]
        spans=joined_spans(map(_span_of, (row for row in rows if row.log is not None))),
        seen=seen,
    )


def _span_of(change: Change) -> PositionSpan:
    position = position_bytes(change.place)
    earliest = None if change.operation == READ else change.timestamp
    name = change.entity_type or "", change.log or ""
    return PositionSpan(*name, position, position, earliest, change.timestamp, change.number or 0)


def _first_place(places: Iterable[bytes | None]) -> bytes | None:
    """Return the smallest place. Places without a position are used only if no place has one."""
    known = [place for place in places if place is not None]
    placed = [place for place in known if position_bytes(place) != UNPLACED]
    return min(placed or known, default=None)


def _first_rows(rows: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """Return the first of rows for each file and entity type."""
    first: dict[tuple[str, bytes], bytes] = {}
    for entity_type, arrived in rows:
        key = entity_type, file_of(arrived)
        first[key] = min(arrived, first.get(key, arrived))
    return tuple((entity_type, arrived) for (entity_type, _), arrived in first.items())


def _least(a: _Ordered | None, b: _Ordered | None) -> _Ordered | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


def _greatest(a: _Ordered | None, b: _Ordered | None) -> _Ordered | None:
    if a is None or b is None:
        return a if b is None else b
    return max(a, b)


def cut_snapshots(
    tallies: Mapping[str, Tally], rows_per_version: int, batch: str
) -> tuple[dict[str, Tally], list[Cut]]:
    """Replace the tallies of snapshot rows, one for each run, by those of the versions they form.

    A *run* is what a split has of snapshot rows with no other change between them. Rows are numbered in the
    order of their arrival over all runs and cut every ``rows_per_version``. Runs share a version only if they
    come before all other changes of their files and entity types: a row that was read after a change must not
    get a version before it. They share none with rows of another position, which are of another snapshot.

    Args:
        tallies: Of a batch.
        rows_per_version: How many rows a version takes, above 0.
        batch: Names the batch, so that cuts of different batches have different keys.

    Returns:
        The tallies after it, and where each row belongs.
    """
    runs = [t for key, t in tallies.items() if key.startswith(SNAPSHOT)]
    if not runs:
        return dict(tallies), []
    runs.sort(key=lambda t: t.first_arrival or b"")
    after = {key: t for key, t in tallies.items() if not key.startswith(SNAPSHOT)}
    leading = _leading(after.values())
    cuts: list[Cut] = []
    # `version` has `filled` rows so far. `offset` counts the rows of the runs before, so the rows of a cut
    # number ``offset + start`` onwards.
    version = filled = offset = 0
    joinable = True
    position = UNPLACED
    for run in runs:
        joined, joinable = joinable, leading(run)
        before, position = position, run.highest
        if filled and not (joined and joinable and before == position):
            version, filled = version + 1, 0
        start = 0
        while start < run.rows:
            stop = min(run.rows, start + rows_per_version - filled)
            key = f"{CUT}{batch}\0{version:020}"
            part = replace(run, key=key, rows=stop - start)
            if stop < run.rows:  # the last row is in a later part
                spans = (s._replace(marks=s.marks & ~(LAST | ENDED)) for s in run.spans)
                part = replace(part, spans=tuple(spans))
            after[key] = after[key].plus(part) if key in after else part
            cuts.append(Cut(run.key, start, stop, offset, key))
            filled += stop - start
            if filled == rows_per_version:
                version, filled = version + 1, 0
            start = stop
        offset += run.rows
    return after, cuts


def _leading(tallies: Iterable[Tally]) -> Callable[[Tally], bool]:
    """Return a test of whether a run comes before all changes of its files and of its entity types."""
    changed: dict[str | bytes, bytes] = {}
    for t in tallies:
        for entity_type, arrived in t.first_rows:
            for sequence in (entity_type, file_of(arrived)):
                changed[sequence] = min(arrived, changed.get(sequence, arrived))

    def leading(run: Tally) -> bool:
        return all(
            arrived < changed.get(sequence, arrived + b"\0")
            for entity_type, arrived in run.first_rows
            for sequence in (entity_type, file_of(arrived))
        )

    return leading
