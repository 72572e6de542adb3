"""The grouping of rows into transactions: when one is complete, and in which order they become versions.

The rows of a transaction are spread over files and batches. A *tally* is the summary of a transaction. The
rules below need only tallies, so the driver decides on a batch of millions of rows from one tally for each
transaction::

    batch ──▶ tallies ─┐
    open tallies ──────┴─▶ group() ──▶ released, in version order
                              ▲    └─▶ open: stay pending
    closed ids ───────────────┘

A transaction is **complete** when

* END has arrived, and so have as many rows as END announces, quarantined rows included; or
* it is a single line that the source does not group, or a cut of snapshot rows; or
* with ordered input, a row of another transaction has arrived after its last row; or
* none of its rows has arrived for the idle time, by a clock that stops while there is more to read
  (`driver_state`); or
* the input has ended.

The driver **releases** the complete transactions in source order, up to the first incomplete one. A transaction
that began after an open one waits for it; the idle time bounds the wait. A transaction without rows, known only
by its BEGIN or END, has no place in that order yet. It delays the transactions whose BEGIN or END arrived after
its own.

Rows that arrive after their transaction was closed are **late**. They are complete at once. They are released
in source order as a version of their own, which names the version of the earlier rows. BEGIN and END of a
transaction without rows are dropped if END announces none: the transaction changed only tables that are not
captured.
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
    """For late rows, the version of the transaction's earlier rows; else None."""

    @property
    def snapshot(self) -> bool:
        """True if the transaction is a cut of snapshot rows."""
        return self.tally.key.startswith(CUT)


class Plan(NamedTuple):
    """The transactions that a batch or a flush releases, and those that stay open."""

    released: tuple[Released, ...]
    """The released transactions, in version order."""
    open: dict[str, Tally]
    """The tallies of the transactions that stay pending, by key."""


class Decision(NamedTuple):
    """The decision on a batch or a flush: its plan, and what the commit needs besides."""

    plan: Plan
    newest: NewestPositions
    """The newest source positions after the plan's versions."""
    may_be_older: bool = False
    """True if each row has to be checked, as it may be older than another change of the same row in the log or
    in the plan. An older change goes to quarantine."""
    sets_older_aside: bool = True
    """True if the settings send older changes to quarantine."""
    cuts: Sequence[Cut] = ()
    """The cuts of the batch's snapshot rows."""
    arrived: frozenset[str] = frozenset()
    """Keys of the transactions that have rows in the batch."""

    @classmethod
    def of(cls, plan: Plan, newest: NewestPositions, settings: IngestSettings) -> Decision:
        """Return the decision for a plan, given the newest source positions before it."""
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
    """Decide which transactions become versions and which stay pending.

    Args:
        tallies: The tallies of the batch; empty for a flush.
        open_tallies: The tallies that earlier batches left pending.
        closed: Transaction key → version, for recently closed transactions.
        rules: The rules by which a transaction is complete.
        now: Current time of the idle clock, the clock of `Tally.seen`.
        ended: True if the input has ended, which completes every transaction.
    """
    # 1. Merge all waiting tallies, and find the last arrival. With ordered input, a transaction has ended if
    #    its last row arrived before that.
    waiting = _merge(tallies, open_tallies, closed)
    newest = max((t.last_arrival or b"" for t in waiting.values()), default=b"")

    def complete(t: Tally) -> bool:
        return (
            ended
            or t.counted
            or t.key in closed
            or t.key.startswith((LINE, CUT))
            or (rules.ordered_input and t.last_arrival is not None and t.last_arrival < newest)
            # The time must be above 0 even if the idle time is 0. Otherwise the batch with a transaction's
            # first rows would close it, and its rows in the next batch would be late.
            or rules.idle_s <= now - t.seen > 0
        )

    # 2. Put the transactions with rows in source order. Those without rows have no source position; they are
    #    ordered by the arrival of their BEGIN or END.
    placed = [t for t in waiting.values() if t.place is not None]
    placed = sorted(placed, key=_arrival_order) if rules.ordered_input else in_source_order(placed)
    placeless = sorted((t for t in waiting.values() if t.place is None), key=_mark_order)
    # 3. An incomplete transaction without rows may still get rows that precede others in source order.
    #    Transactions whose BEGIN or END arrived later must wait for it, or versions would be out of order.
    barrier = min(
        (t.mark for t in placeless if t.mark is not None and not complete(t)), default=None
    )
    # 4. Release in order, and stop at the first transaction that must wait. Skipping it would release later
    #    transactions before it.
    released: list[Released] = []
    done = [t for t in placeless if complete(t) and not t.empty]
    for t in placed:
        if not complete(t) or (barrier is not None and t.mark is not None and t.mark > barrier):
            break
        # First release the complete transactions without rows whose BEGIN or END arrived before this one's.
        if t.mark is not None:
            before = bisect_left([_mark_order(d) for d in done], (False, t.mark, ""))
            released.extend(Released(d) for d in done[:before])
            del done[:before]
        released.append(Released(t, late_of=closed.get(t.key)))
    else:  # No transaction with rows waits, so none can precede the remaining ones without rows.
        released.extend(Released(d) for d in done)
        done = []
    # 5. Drop the complete transactions without any row: they changed no captured table, and would stay open
    #    for ever.
    gone = {r.tally.key for r in released} | {t.key for t in placeless if complete(t) and t.empty}
    return Plan(tuple(released), {k: t for k, t in waiting.items() if k not in gone})


def next_idle(open_tallies: Iterable[Tally], rules: Rules) -> float | None:
    """Return the time of the idle clock at which the first open transaction completes; None if none is open."""
    return min((t.seen + rules.idle_s for t in open_tallies), default=None)


def _merge(
    tallies: Mapping[str, Tally], open_tallies: Mapping[str, Tally], closed: Mapping[str, int]
) -> dict[str, Tally]:
    """Return the open tallies and the batch's, joined by key; drop a late BEGIN or END without rows."""
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
