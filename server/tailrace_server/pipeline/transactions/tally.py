"""Tallies: summaries of transactions, enough to decide when each is complete and in which order they follow.

A source does not group the rows of a snapshot into transactions, so `cut_snapshots` cuts them into versions of
a fixed number of rows. The tallies of open transactions are stored in pending files (`driver_state`).
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
from tailrace_server.pipeline.run.set_aside import SetAside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace_server.pipeline.input.table_bindings import Bindings

_Ordered = TypeVar("_Ordered", bytes, str, int)

CUT: Final = "\0cut"
"""Prefix of the transaction key of a cut; the batch and the number of the cut in the batch follow."""


class Cut(NamedTuple):
    """The part of a run of snapshot rows that becomes one version, or part of one.

    Rows ``start`` to ``stop`` - 1 of run ``run_key`` belong to transaction ``key``. A row's number in the run
    plus ``offset`` is its number among all snapshot rows of the batch.
    """

    run_key: str
    start: int
    stop: int
    offset: int
    key: str


@dataclass(frozen=True, slots=True)
class Tally:
    """The summary of one transaction, or of a part of it."""

    key: str
    transaction_id: str | None = None
    place: bytes | None = None
    """Place of the first row in the source; None if no row has arrived."""
    first_arrival: bytes | None = None
    """Arrival of the first row (`change.arrival`): file, block and line."""
    last_arrival: bytes | None = None
    """Arrival of the last row."""
    first_rows: tuple[tuple[str, bytes], ...] = ()
    """Pairs of entity type and arrival of the first row, one for each file and entity type."""
    mark: bytes | None = None
    """Arrival of the first BEGIN or END; None if neither has arrived."""
    rows: int = 0
    quarantined: int = 0
    expected: int | None = None
    """Number of rows that END announces; None if END has not arrived."""
    timestamp: int | None = None
    """Latest source timestamp of the rows, in microseconds."""
    source: str | None = None
    spans: tuple[PositionSpan, ...] = ()
    """Ranges of the rows' positions and times, one for each entity type and log of the source."""
    seen: float = 0.0
    """Time of the idle clock at which the last part arrived, in seconds."""
    segments: tuple[str, ...] = ()
    """Paths of the pending files that hold rows of the transaction."""

    def plus(self, other: Tally) -> Tally:
        """Return the tally of the transaction whose two parts are this tally and the other."""
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
        """The source's log that the rows' positions belong to; None if there is none or more than one."""
        logs = {span.log for span in self.spans}
        return logs.pop() if len(logs) == 1 else None

    @property
    def highest(self) -> bytes:
        """The highest source position of the rows; `UNPLACED` if no row has a position."""
        return max((span.highest for span in self.spans), default=UNPLACED)

    @property
    def counted(self) -> bool:
        """True if END has arrived, and so have as many rows as it announces, quarantined ones included."""
        return self.expected is not None and self.rows + self.quarantined >= self.expected

    @property
    def empty(self) -> bool:
        """True if the transaction has no row, none in quarantine, and END announced none."""
        return not (self.rows or self.quarantined or self.expected)


class BatchSummary(NamedTuple):
    """The summary of one batch: tallies instead of rows."""

    tallies: dict[str, Tally]
    """Transaction key → tally; snapshot rows have one tally for each run."""
    rows: Counter[str]
    """Entity type → number of rows, without deletes and truncates."""
    splits: list[Change]
    """The SPLIT rows."""
    quarantined: SetAside = SetAside()
    """The summary of the QUARANTINED rows."""
    lines: Sequence[Change] = ()
    """The QUARANTINED rows, for the driver to write; empty if tasks write them."""
    skipped: int = 0
    """Number of lines skipped because an earlier writer had consumed them."""

    @classmethod
    def of(
        cls,
        changes: Sequence[Change],
        skipped: int,
        seen: float,
        tells_shape: Callable[[str], bool],
    ) -> BatchSummary:
        """Return the summary of a batch.

        Args:
            changes: All rows of the batch.
            skipped: Number of lines that an earlier writer had consumed.
            seen: Current time of the idle clock, in seconds.
            tells_shape: The source's `Source.tells_shape`.
        """
        lines = [change for change in changes if change.kind == QUARANTINED]
        return cls(
            tallies=tally(changes, seen),
            rows=rows_of_types(changes),
            splits=[change for change in changes if change.kind == SPLIT],
            quarantined=SetAside.of(lines, tells_shape),
            lines=lines,
            skipped=skipped,
        )

    def without_foreign_effects(self, bindings: Bindings) -> BatchSummary:
        """Return the summary without the statements that changed tables unknown to the log.

        A decoder cannot drop these statements: the first rows of such a table may be in the same batch.
        """
        after = bindings.after(self.splits)
        return self._replace(
            quarantined=self.quarantined.with_effects(after.has_rows_of),
            lines=[
                change
                for change in self.lines
                if not is_effect(change) or after.has_rows_of(change.table or "", change.source)
            ],
        )


def rows_of_types(changes: Iterable[Change]) -> Counter[str]:
    """Return entity type → number of its rows among some changes, without deletes and truncates."""
    return Counter(
        change.entity_type or ""
        for change in changes
        if change.kind == CHANGE and change.operation not in (DELETE, TRUNCATE)
    )


def tally(changes: Iterable[Change], seen: float) -> dict[str, Tally]:
    """Return the tallies of some changes by transaction key; ``seen`` is a time of the idle clock."""
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
        spans=_spans(rows),
        seen=seen,
    )


def _spans(rows: Iterable[Change]) -> tuple[PositionSpan, ...]:
    """Return the spans of the rows that have positions."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for row in rows:
        if row.log is not None:
            groups.setdefault((row.entity_type or "", row.log), []).append(row)
    spans = []
    for name, some in groups.items():
        positions = [position_bytes(row.place) for row in some]
        times = [row.timestamp for row in some if row.timestamp is not None]
        made = [
            row.timestamp for row in some if row.timestamp is not None and row.operation != READ
        ]
        marks = 0
        for row in some:
            marks |= row.number or 0
        spans.append(
            PositionSpan(
                *name,
                min(positions),
                max(positions),
                min(made, default=None),
                max(times, default=None),
                marks,
            )
        )
    return tuple(spans)


def _first_place(places: Iterable[bytes | None]) -> bytes | None:
    """Return the smallest place. Places without a position are used only if no place has one."""
    known = [place for place in places if place is not None]
    placed = [place for place in known if position_bytes(place) != UNPLACED]
    return min(placed or known, default=None)


def _first_rows(rows: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """Return the first arrival for each pair of file and entity type."""
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
    """Replace the tallies of snapshot rows, one for each run, by the tallies of the versions they form.

    A *run* is a sequence of snapshot rows in one split without any other change between them. The rows of all
    runs are numbered in the order of arrival, and cut every ``rows_per_version`` rows. Two runs share a version
    only if both come before all other changes of their files and entity types: a row that was read after a
    change must not get a version before that change. Runs of different positions belong to different snapshots,
    and never share a version.

    Args:
        tallies: The tallies of a batch.
        rows_per_version: Maximum number of rows of a version, above 0.
        batch: Name of the batch; cuts of different batches have different keys.

    Returns:
        The new tallies, and the cuts: the version of each snapshot row.
    """
    runs = [t for key, t in tallies.items() if key.startswith(SNAPSHOT)]
    if not runs:
        return dict(tallies), []
    runs.sort(key=lambda t: t.first_arrival or b"")
    after = {key: t for key, t in tallies.items() if not key.startswith(SNAPSHOT)}
    # A version that mixed rows from before and after a change would need two places in the source's order.
    leading = _leading(after.values())
    cuts: list[Cut] = []
    # Invariants: `version` has `filled` rows so far, and `offset` is the number of rows in the runs before.
    # So the rows of a cut are numbered from ``offset + start``.
    version = filled = offset = 0
    joinable = True
    position = UNPLACED
    for run in runs:
        joined, joinable = joinable, leading(run)
        before, position = position, run.highest
        # Close a partly filled version unless the previous run and this one may share it.
        if filled and not (joined and joinable and before == position):
            version, filled = version + 1, 0
        start = 0
        while start < run.rows:
            stop = min(run.rows, start + rows_per_version - filled)
            key = f"{CUT}{batch}\0{version:020}"
            # Only the key and the number of rows differ: the places and times of a part's own rows are unknown
            # here, and those of the run are safe bounds.
            part = replace(run, key=key, rows=stop - start)
            # LAST and ENDED are marks of the run's last row, so only the last part has them.
            if stop < run.rows:
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
    """Return a predicate: True for a run that arrived before all changes of its files and entity types."""
    # Entity type, or file → arrival of its first change. A text and bytes never collide as keys.
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
