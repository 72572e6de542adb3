"""Which transactions are complete, and in which order they become versions.

Rows of a transaction come spread over files and batches. A transaction without its rows is a *tally*. The rules
below need nothing else, so the driver decides a batch of millions of rows from one tally for each transaction::

    batch ──▶ tallies ─┐
    open tallies ──────┴─▶ group() ──▶ released, in version order
                              ▲    └─▶ open: stay pending
    closed ids ───────────────┘

A transaction is **complete** when

* END has come and as many rows, quarantined ones included, as it announces; or
* it is a line that the source does not group, or a cut of snapshot rows; or
* with ordered input, a row of another has arrived after its last; or
* no row of it came for the idle time, by a clock that stops while there is more to read
  (`driver_state`); or the input has ended.

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
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.pipeline.input.change import LINE
from tailrace_server.pipeline.transactions.source_order import in_source_order
from tailrace_server.pipeline.transactions.tally import CUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace_server.pipeline.catalog.newest_positions import NewestPositions
    from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
    from tailrace_server.pipeline.transactions.tally import Cut, Tally


class Released(NamedTuple):
    """A transaction that becomes the next version."""

    tally: Tally
    late_of: int | None = None
    """The version that its earlier rows became, where they did."""

    @property
    def snapshot(self) -> bool:
        """True if it is a cut of snapshot rows."""
        return self.tally.key.startswith(CUT)


class Plan(NamedTuple):
    """The result of a batch or a flush."""

    released: tuple[Released, ...]
    """In version order."""
    open: dict[str, Tally]
    """Stay pending."""


class Decision(NamedTuple):
    """The changes of a batch or a flush by their fate: committed, repeated, set aside."""

    plan: Plan
    newest: NewestPositions
    """After its versions."""
    may_be_older: bool = False
    """True if a row can be older than the log's or the plan's change of it, and has to be set aside."""
    sets_older_aside: bool = True
    cuts: Sequence[Cut] = ()
    """The versions of the batch's snapshot rows."""
    arrived: frozenset[str] = frozenset()
    """Keys of the transactions that rows of the batch belong to."""

    @classmethod
    def of(cls, plan: Plan, newest: NewestPositions, settings: IngestSettings) -> Decision:
        """Return a decision without a batch; ``newest`` are the positions before it."""
        after, may_be_older = newest.after(
            span for each in plan.released for span in each.tally.spans
        )
        sets_aside = not settings.takes_older
        return cls(plan, after, may_be_older and sets_aside, sets_aside)


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
            or t.key.startswith((LINE, CUT))
            or (rules.ordered_input and t.last_arrival is not None and t.last_arrival < newest)
            # Above 0 even where the idle time is 0: else the batch that brings a transaction's first rows
            # would close it, and its rows in the next batch would be late.
            or rules.idle_s <= now - t.seen > 0
        )

    # 2. Those with rows stand in source order. Those without have no place in it; what orders them among
    #    the others is when their BEGIN or END came.
    placed = [t for t in waiting.values() if t.place is not None]
    placed = sorted(placed, key=_arrival_order) if rules.ordered_input else in_source_order(placed)
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


def _arrival_order(t: Tally) -> tuple[bytes, str]:
    return t.first_arrival or b"", t.key


def _mark_order(t: Tally) -> tuple[bool, bytes, str]:
    return t.mark is None, t.mark or b"", t.key
