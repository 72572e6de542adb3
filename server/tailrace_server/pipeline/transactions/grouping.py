"""Which transactions are complete, and in which order they become versions.

Rows of a transaction come spread over files and batches. What is known of a transaction without its
rows is its *tally*. The rules below need nothing else, so the driver decides a batch of millions of rows
from one tally for each transaction::

    batch ──▶ tallies ─┐
    open tallies ──────┴─▶ group() ──▶ released, in version order
                              ▲    └─▶ open: stay pending
    closed ids ───────────────┘

A transaction is **complete** when

* END has come and as many rows, quarantined ones included, as it announces; or
* it is a line that the source does not group, or a cut of snapshot rows; or
* with ordered input, a row of another has arrived after its last; or
* no row of it came for the idle time, by a clock that stands while there is more to read
  (`idle_clock`); or the input has ended.

**Released** are the complete ones in source order up to the first that is not: whatever began after
a transaction that is still open waits for it, and the idle time bounds the wait. A transaction of
which only BEGIN or END is known has no place yet; it holds back those whose BEGIN or END came after
its own.

Rows of a transaction that has been closed are **late**. They are complete as they are, and are released
in their place in that order as a version of their own, which names the first. Metadata with neither a row
nor a count is dropped: it belongs to a transaction of tables that are not captured.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace_server.pipeline.changes import (
    BEGIN,
    CHANGE,
    END,
    LINE,
    QUARANTINED,
    SNAPSHOT,
    Change,
    arrival,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace_server.pipeline.transactions.settings import Rules

CLOSED_IDS: Final = 100_000
"""How many closed transactions are remembered. A row of an older one begins a new transaction."""

_CUT: Final = "\0cut"
_Ordered = TypeVar("_Ordered", bytes, str, int)


@dataclass(frozen=True, slots=True)
class Tally:
    """What is known of a transaction, without its rows."""

    key: str
    transaction_id: str | None = None
    place: bytes | None = None
    """Place of its first row; None while no row has come."""
    first_arrival: bytes | None = None
    last_arrival: bytes | None = None
    """When and where its first and its last row arrived."""
    mark: bytes | None = None
    """Arrival of its first BEGIN or END."""
    rows: int = 0
    quarantined: int = 0
    expected: int | None = None
    """Rows that END announces."""
    timestamp: int | None = None
    """Latest source timestamp of its rows, µs."""
    source: str | None = None
    seen: float = 0.0
    """When the last of it came, by the idle clock, seconds."""
    segments: tuple[str, ...] = ()
    """Pending segments that hold rows of it."""

    def plus(self, other: Tally) -> Tally:
        """Return the tally of both parts; ``seen`` and ``segments`` are joined as well."""
        return Tally(
            key=self.key,
            transaction_id=_least(self.transaction_id, other.transaction_id),
            place=_least(self.place, other.place),
            first_arrival=_least(self.first_arrival, other.first_arrival),
            last_arrival=_greatest(self.last_arrival, other.last_arrival),
            mark=_least(self.mark, other.mark),
            rows=self.rows + other.rows,
            quarantined=self.quarantined + other.quarantined,
            expected=_greatest(self.expected, other.expected),
            timestamp=_greatest(self.timestamp, other.timestamp),
            source=_least(self.source, other.source),
            seen=max(self.seen, other.seen),
            segments=(*self.segments, *(s for s in other.segments if s not in self.segments)),
        )

    @property
    def counted(self) -> bool:
        """Whether END has come and all that it announces is there."""
        return self.expected is not None and self.rows + self.quarantined >= self.expected

    @property
    def empty(self) -> bool:
        """Whether it has no rows, none in quarantine, and END announced none."""
        return not (self.rows or self.quarantined or self.expected)


class Released(NamedTuple):
    """A transaction that becomes the next version."""

    tally: Tally
    late_of: int | None = None
    """The version that its earlier rows became, where they did."""

    @property
    def snapshot(self) -> bool:
        """Whether it is a cut of snapshot rows."""
        return self.tally.key.startswith(_CUT)


class Plan(NamedTuple):
    """What a batch or a flush does."""

    released: tuple[Released, ...]
    """In version order."""
    open: dict[str, Tally]
    """Stay pending."""


class Cut(NamedTuple):
    """Rows ``start`` … ``stop`` - 1 of a split's snapshot rows belong to transaction ``key``.

    ``offset`` added to a row's number in the split gives its number in the snapshot.
    """

    split_key: str
    start: int
    stop: int
    offset: int
    key: str


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
        place=min((change.place for change in rows), default=None),
        first_arrival=min(arrivals, default=None),
        last_arrival=max(arrivals, default=None),
        mark=min((arrival(change.place) for change in marks), default=None),
        rows=len(rows),
        quarantined=sum(change.kind == QUARANTINED for change in changes),
        expected=max((c.number for c in marks if c.number is not None), default=None),
        timestamp=max((c.timestamp for c in rows if c.timestamp is not None), default=None),
        source=min(sources, default=None),  # type: ignore[type-var]
        seen=seen,
    )


def cut_snapshots(
    tallies: Mapping[str, Tally], rows_per_version: int, batch: str
) -> tuple[dict[str, Tally], list[Cut]]:
    """Replace the tallies of snapshot rows, one for each split, by those of the versions they form.

    Rows are numbered in the order of their arrival over all splits and cut every ``rows_per_version``.

    Args:
        tallies: Of a batch.
        rows_per_version: How many rows a version takes, above 0.
        batch: Names the batch, so that cuts of different batches have different keys.

    Returns:
        The tallies after it, and where each row belongs.
    """
    splits = [t for key, t in tallies.items() if key.startswith(SNAPSHOT)]
    if not splits:
        return dict(tallies), []
    splits.sort(key=lambda t: t.first_arrival or b"")
    after = {key: t for key, t in tallies.items() if not key.startswith(SNAPSHOT)}
    cuts: list[Cut] = []
    # Splits follow each other as they arrived, and a version may take the end of one and the head of the
    # next. `offset` counts the rows of the splits before, so rows number ``offset + start`` onwards.
    offset = 0
    for split in splits:
        start = 0
        while start < split.rows:
            number = (offset + start) // rows_per_version
            stop = min(split.rows, (number + 1) * rows_per_version - offset)
            key = f"{_CUT}{batch}\0{number:020}"
            part = replace(split, key=key, rows=stop - start)
            after[key] = after[key].plus(part) if key in after else part
            cuts.append(Cut(split.key, start, stop, offset, key))
            start = stop
        offset += split.rows
    return after, cuts


def group(
    tallies: Mapping[str, Tally],
    open_tallies: Mapping[str, Tally],
    closed: Mapping[str, int],
    rules: Rules,
    *,
    now: float,
    ended: bool = False,
) -> Plan:
    """Decide what becomes a version and what stays pending.

    Args:
        tallies: Of the batch; empty for a flush.
        open_tallies: What earlier batches left pending.
        closed: Transaction key → version, of those closed not long ago.
        rules: When a transaction is complete.
        now: The idle clock, which `Tally.seen` was read from.
        ended: Whether no more input will come: everything is complete.
    """
    # 1. All that waits, and the last arrival among it: with ordered input, a transaction whose last row
    #    came before that has ended.
    waiting = _merge(tallies, open_tallies, closed)
    newest = max((t.last_arrival or b"" for t in waiting.values()), default=b"")

    def complete(t: Tally) -> bool:
        return (
            ended
            or t.counted
            or t.key in closed
            or t.key.startswith((LINE, _CUT))
            or (rules.ordered_input and t.last_arrival is not None and t.last_arrival < newest)
            # Above 0 even where the idle time is 0: else the batch that brings a transaction's first rows
            # would close it, and its rows in the next batch would be late.
            or rules.idle_s <= now - t.seen > 0
        )

    # 2. Those with rows stand in source order. Those without have no place in it; what orders them among
    #    the others is when their BEGIN or END came.
    placed = [t for t in waiting.values() if t.place is not None]
    placed.sort(key=_arrival_order if rules.ordered_input else _source_order)
    placeless = sorted((t for t in waiting.values() if t.place is None), key=_mark_order)
    # 3. A transaction without rows that is not complete may still get rows, with a place before others.
    #    Whatever was marked after it must wait, or versions would leave the source's order.
    barrier = min(
        (t.mark for t in placeless if t.mark is not None and not complete(t)), default=None
    )
    # 4. Release in order up to the first that must wait. To pass it over would be to release what comes
    #    after it first.
    released: list[Released] = []
    done = [t for t in placeless if complete(t) and not t.empty]
    for t in placed:
        if not complete(t) or (barrier is not None and t.mark is not None and t.mark > barrier):
            break
        # Complete ones without rows go before the first with rows that was marked after them.
        if t.mark is not None:
            before = bisect_left([_mark_order(d) for d in done], (False, t.mark, ""))
            released.extend(Released(d) for d in done[:before])
            del done[:before]
        released.append(Released(t, late_of=closed.get(t.key)))
    else:  # no transaction with rows waits, so nothing can come before the rest
        released.extend(Released(d) for d in done)
        done = []
    # 5. Metadata of transactions of no captured table is dropped. Kept, it would stay open for ever.
    gone = {r.tally.key for r in released} | {t.key for t in placeless if complete(t) and t.empty}
    return Plan(tuple(released), {k: t for k, t in waiting.items() if k not in gone})


def next_idle(open_tallies: Iterable[Tally], rules: Rules) -> float | None:
    """Return when, by the idle clock, that time of the first open transaction ends; None if none is."""
    return min((t.seen + rules.idle_s for t in open_tallies), default=None)


def _merge(
    tallies: Mapping[str, Tally], open_tallies: Mapping[str, Tally], closed: Mapping[str, int]
) -> dict[str, Tally]:
    """Return all that waits, the batch's own and late rows included; late metadata says nothing."""
    waiting = dict(open_tallies)
    for key, t in tallies.items():
        if key in waiting:
            waiting[key] = waiting[key].plus(t)
        elif t.rows or key not in closed:
            waiting[key] = t
    return waiting


def _source_order(t: Tally) -> tuple[bytes, str]:
    return t.place or b"", t.key


def _arrival_order(t: Tally) -> tuple[bytes, str]:
    return t.first_arrival or b"", t.key


def _mark_order(t: Tally) -> tuple[bool, bytes, str]:
    return t.mark is None, t.mark or b"", t.key


def _least(a: _Ordered | None, b: _Ordered | None) -> _Ordered | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


def _greatest(a: _Ordered | None, b: _Ordered | None) -> _Ordered | None:
    if a is None or b is None:
        return a if b is None else b
    return max(a, b)
