"""Histories and writers of them, drawn by Hypothesis."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tailrace.cdcv2 import INTEGERS, Update, Writer, antichain, product

if TYPE_CHECKING:
    from tailrace.cdcv2 import Lattice, Statement

PAIRS = product(2)
TIMES: dict[str, st.SearchStrategy[Any]] = {
    INTEGERS.name: st.integers(0, 12),
    PAIRS.name: st.tuples(st.integers(0, 3), st.integers(0, 3)),
}
Interval = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Lower and upper bound."""
LATTICES: st.SearchStrategy[Lattice[Any]] = st.sampled_from([INTEGERS, PAIRS])


@dataclass(frozen=True)
class Case:
    """A history and what several writers made of it; together they said all of it."""

    lattice: Lattice[Any]
    history: dict[tuple[object, Any], int]
    statements: list[Statement[Any]]
    chance: random.Random


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a history, up to three writers that are killed and restarted, and a chance for the rest."""
    lattice = draw(LATTICES)
    times = TIMES[lattice.name]
    diffs = st.sampled_from([-2, -1, 1, 2])
    updates = draw(st.lists(st.builds(Update, st.integers(0, 3), times, diffs), max_size=25))
    history: dict[tuple[object, Any], int] = {}
    for data, time, diff in updates:
        history[data, time] = history.get((data, time), 0) + diff
    statements: list[Statement[Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        statements += draw(written(lattice, updates))
    chance = random.Random(draw(st.integers(0, 2**32)))
    return Case(lattice, {at: diff for at, diff in history.items() if diff}, statements, chance)


@st.composite
def written(
    draw: st.DrawFn, lattice: Lattice[Any], updates: list[Update[Any]]
) -> list[Statement[Any]]:
    """Draw what one writer says, killed in the middle of a step and restarted some times."""
    statements: list[Statement[Any]] = []
    start: tuple[Any, ...] = (lattice.minimum,)
    for _ in range(draw(st.integers(0, 2))):
        steps = run(draw, lattice, updates, start)
        said = [(lower, each) for lower, step in steps for each in step]
        if not said:
            break
        killed_at = draw(st.integers(0, len(said) - 1))
        statements += [each for _, each in said[:killed_at]]
        # It begins where the step began that it was killed in: the frontier stored last.
        start = said[killed_at][0]
    for _, step in run(draw, lattice, updates, start):
        statements += step
    return statements


def run(
    draw: st.DrawFn, lattice: Lattice[Any], updates: list[Update[Any]], start: tuple[Any, ...]
) -> list[tuple[tuple[Any, ...], list[Statement[Any]]]]:
    """Return the steps of one life of a writer, each with the frontier that it began at."""
    writer = Writer(lattice, batch_size=draw(st.integers(1, 5)), start=start)
    writer.write(
        each for each in updates if any(lattice.less_equal(low, each.time) for low in start)
    )
    steps = []
    for bound in draw(st.lists(st.sets(TIMES[lattice.name], min_size=1, max_size=3), max_size=4)):
        lower = writer.frontier
        upper = antichain(lattice, (lattice.join(low, time) for low in lower for time in bound))
        steps.append((lower, writer.advance(upper)))
    steps.append((writer.frontier, writer.close()))
    return steps


@st.composite
def intervals(draw: st.DrawFn, name: str) -> list[Interval]:
    """Draw intervals of a kind of time; some reach to the end of time."""
    lattice: Any = INTEGERS if name == INTEGERS.name else PAIRS
    bounds = st.sets(TIMES[name], min_size=1, max_size=3)
    drawn = []
    for lows, highs in draw(st.lists(st.tuples(bounds, bounds), max_size=8)):
        lower = antichain(lattice, lows)
        upper = antichain(lattice, (lattice.join(low, high) for low in lower for high in highs))
        drawn.append((lower, () if draw(st.booleans()) and draw(st.booleans()) else upper))
    return drawn
