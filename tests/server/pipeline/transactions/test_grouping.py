"""Which transactions become versions, when, and in which order."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.transactions.grouping import Plan, group
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.pipeline.transactions.tally import Tally, tally
from tests.server.pipeline.shapes import decode, end, envelope, postgres

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.change import Change

RULES = Rules(idle_s=5.0)


def row(lsn: int, tx: int | None, table: str = "product", op: str = "c") -> dict[str, object]:
    return envelope(op, postgres(lsn, tx, table), after={"id": lsn})


class Grouping:
    """Batches against kept state, as the driver runs them; every version gets the next number."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.open: dict[str, Tally] = {}
        self.closed: dict[str, int] = {}
        self.released: list[str] = []
        self.now = 0.0
        self.files = 0

    def batch(self, *lines: dict[str, object] | bytes, ended: bool = False) -> list[str]:
        self.files += 1
        changes = decode(*lines, file=f"{self.files:06}")
        return self.run(changes, ended=ended)

    def run(self, changes: list[Change], *, ended: bool = False) -> list[str]:
        plan = self.plan(tally(changes, self.now), ended=ended)
        return [r.tally.key for r in plan.released]

    def plan(self, tallies: dict[str, Tally], *, ended: bool = False) -> Plan:
        plan = group(tallies, self.open, self.closed, self.rules, now=self.now, ended=ended)
        self.open = plan.open
        for released in plan.released:
            self.released.append(released.tally.key)
            if released.late_of is None:
                self.closed[released.tally.key] = len(self.released)
        return plan


def test_with_end_a_transaction_is_complete_when_its_rows_are_in_whatever_the_order() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 7)) == []
    assert grouping.batch(end("7", 2)) == []
    assert grouping.batch(row(2, 7)) == ["7"]
    assert grouping.open == {}


def test_quarantined_rows_count_towards_end() -> None:
    grouping = Grouping()
    bad = envelope("c", postgres(2, 7), after={"no": "key"})
    assert grouping.batch(row(1, 7), bad, end("7", 2)) == ["7"]


def test_a_transaction_of_quarantined_rows_alone_is_a_version_all_the_same() -> None:
    grouping = Grouping()
    assert grouping.batch(envelope("c", postgres(2, 7), after={"no": 1}), end("7", 1)) == ["7"]


def test_without_end_a_transaction_waits_for_the_idle_time() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 7)) == []
    grouping.now = 4.9
    assert grouping.batch(row(2, 7)) == []
    grouping.now = 9.8
    assert grouping.run([]) == []
    grouping.now = 9.9
    assert grouping.run([]) == ["7"]


def test_while_the_idle_clock_stands_nothing_is_idle_not_even_for_no_time() -> None:
    grouping = Grouping(Rules(idle_s=0.0))
    assert grouping.batch(row(1, 7)) == []
    assert grouping.batch(row(2, 8)) == []
    grouping.now = 0.1
    assert grouping.run([]) == ["7", "8"]


def test_the_end_of_the_input_completes_everything() -> None:
    assert Grouping().batch(row(1, 7), row(2, 8), ended=True) == ["7", "8"]


def test_versions_follow_the_source_also_when_a_later_transaction_completes_first() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 7), row(2, 8), end("8", 1)) == []
    assert grouping.batch(row(3, 9), end("9", 1)) == []
    assert grouping.batch(end("7", 1)) == ["7", "8", "9"]


def test_the_idle_time_bounds_the_wait_for_an_earlier_transaction() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 7), row(2, 8), end("8", 1)) == []
    grouping.now = 5.0
    assert grouping.run([]) == ["7", "8"]


def test_a_transaction_known_by_its_end_alone_holds_back_those_that_ended_after_it() -> None:
    grouping = Grouping()
    assert grouping.batch(end("7", 1), end("8", 1)) == []
    assert grouping.batch(row(2, 8)) == []
    assert grouping.batch(row(1, 7)) == ["7", "8"]


def test_rows_that_never_come_leave_a_version_that_says_so() -> None:
    grouping = Grouping()
    grouping.batch(end("7", 3), row(2, 8), end("8", 1))
    grouping.now = 5.0
    plan = grouping.plan({})
    assert [(r.tally.key, r.tally.rows, r.tally.expected) for r in plan.released] == [
        ("7", 0, 3),
        ("8", 1, 1),
    ]


def test_metadata_of_transactions_without_rows_is_dropped() -> None:
    grouping = Grouping()
    assert grouping.batch(end("7", None, "BEGIN"), end("7", 0), row(2, 8), end("8", 1)) == ["8"]
    assert grouping.open == {}


def test_with_ordered_input_a_transaction_ends_where_the_next_begins() -> None:
    grouping = Grouping(Rules(ordered_input=True))
    assert grouping.batch(row(9, 7), row(1, 8), row(2, 8)) == ["7"]
    assert grouping.batch(row(3, 8)) == []
    assert grouping.batch(row(4, 9)) == ["8"]


def test_rows_of_a_closed_transaction_are_late_and_name_its_version() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 7), end("7", 1)) == ["7"]
    plan = grouping.plan(tally(decode(row(2, 7), row(3, 7)), 0.0))
    [late] = plan.released
    assert (late.late_of, late.tally.rows) == (1, 2)
    assert grouping.batch(end("7", 3)) == []


def test_late_rows_take_their_place_in_the_source_among_what_comes_with_them() -> None:
    grouping = Grouping()
    assert grouping.batch(row(1, 10), row(5, 12), ended=True) == ["10", "12"]
    late = decode(row(6, 12), file="a") + decode(row(2, 11, "customer"), file="b")
    plan = grouping.plan(tally(late, 0.0), ended=True)
    assert [(r.tally.key, r.late_of) for r in plan.released] == [("11", None), ("12", 2)]


def test_late_rows_wait_for_an_open_transaction_before_them_and_grow_meanwhile() -> None:
    grouping = Grouping()
    assert grouping.batch(row(5, 12), end("12", 1)) == ["12"]
    assert grouping.batch(row(2, 11), row(6, 12)) == []
    assert grouping.batch(row(1, 12), row(7, 12)) == []  # a low position does not move a line
    assert grouping.batch(row(8, 12)) == []
    plan = grouping.plan(tally(decode(row(9, 12), end("11", 1)), 0.0))
    assert [(r.tally.key, r.tally.rows, r.late_of) for r in plan.released] == [
        ("11", 1, None),
        ("12", 5, 1),
    ]


def test_the_idle_time_bounds_the_wait_of_late_rows() -> None:
    grouping = Grouping()
    assert grouping.batch(row(5, 12), end("12", 1)) == ["12"]
    assert grouping.batch(row(2, 11), row(6, 12)) == []
    grouping.now = 5.0
    assert grouping.run([]) == ["11", "12"]
    assert grouping.open == {}


def test_late_rows_wait_for_a_transaction_that_is_known_by_an_earlier_end_alone() -> None:
    grouping = Grouping()
    assert grouping.batch(row(5, 12), end("12", 2), ended=True) == ["12"]
    assert grouping.batch(end("11", 1), row(6, 12), end("12", 2)) == []
    assert grouping.batch(row(2, 11)) == ["11", "12"]


def test_with_ordered_input_late_rows_take_their_place_by_arrival() -> None:
    grouping = Grouping(Rules(ordered_input=True))
    assert grouping.batch(row(1, 7), row(2, 8), row(3, 9)) == ["7", "8"]
    assert grouping.batch(row(4, 9), row(5, 7), row(6, 10)) == ["9", "7"]


def test_lines_that_the_source_does_not_group_are_versions_of_their_own() -> None:
    message = envelope("c", {"table": "t"}, after={"id": 1})
    released = Grouping().batch(message, message)
    assert len(set(released)) == 2


Batch = dict[str, list[dict[str, object]]]
"""Topic → its lines in a batch."""


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[Batch], dict[str, int]]:
    """Draw transactions over three topics, each with its rows in order and any part of them in a batch.

    Their marks come over a topic of their own, before or after the rows.
    """
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    topics: Batch = {"a": [], "b": [], "c": [], "marks": []}
    lsn = 0
    for number, size in enumerate(sizes, 1):
        if draw(st.booleans()):
            topics["marks"].append(end(str(number), None, "BEGIN"))
        for _ in range(size):
            lsn += 1
            table = draw(st.sampled_from("abc"))
            topics[table].append(row(lsn, number, table))
        topics["marks"].append(end(str(number), size))
    count = draw(st.integers(1, 5))
    batches: list[Batch] = [{} for _ in range(count)]
    for topic, lines in topics.items():
        cuts = draw(st.lists(st.integers(0, len(lines)), min_size=count - 1, max_size=count - 1))
        for batch, (start, stop) in zip(
            batches, itertools.pairwise([0, *sorted(cuts), len(lines)]), strict=True
        ):
            batch[topic] = lines[start:stop]
    return batches, {str(number): size for number, size in enumerate(sizes, 1)}


def decoded(number: int, batch: Batch) -> list[Change]:
    """Decode a batch, one file a topic."""
    return [
        change
        for topic, lines in batch.items()
        for change in decode(*lines, file=f"{number:06}-{topic}")
    ]


@given(feeds())
def test_every_transaction_is_released_once_and_whole(
    case: tuple[list[Batch], dict[str, int]],
) -> None:
    batches, sizes = case
    grouping = Grouping()
    rows: dict[str, int] = {}
    for number, batch in enumerate(batches):
        plan = grouping.plan(tally(decoded(number, batch), 0.0))
        for released in plan.released:
            assert released.late_of is None
            assert released.tally.key not in rows
            rows[released.tally.key] = released.tally.rows
        placed = [r.tally.place for r in plan.released if r.tally.place is not None]
        assert placed == sorted(placed)
        waiting = [t.place for t in plan.open.values() if t.place is not None and not t.counted]
        assert all(place < other for place in placed for other in waiting)
    assert rows == sizes
    assert grouping.open == {}


@given(feeds(), st.sets(st.integers(0, 6)))
def test_what_is_released_together_follows_the_source_late_or_not(
    case: tuple[list[Batch], dict[str, int]], closing: set[int]
) -> None:
    """After some batches all that is open is closed, so that what follows of it is late."""
    batches, sizes = case
    grouping = Grouping()
    rows = dict.fromkeys(sizes, 0)
    for number, batch in enumerate([*batches, {}]):
        known = dict(grouping.closed)
        ended = number in closing or number == len(batches)
        plan = grouping.plan(tally(decoded(number, batch), 0.0), ended=ended)
        for released in plan.released:
            rows[released.tally.key] += released.tally.rows
            assert released.late_of == known.get(released.tally.key)
        placed = [r.tally.place for r in plan.released if r.tally.place is not None]
        assert placed == sorted(placed)
        waiting = [t.place for t in plan.open.values() if t.place is not None]
        assert all(place < other for place in placed for other in waiting)
    assert rows == sizes
    assert grouping.open == {}


@given(feeds())
def test_without_batches_versions_follow_the_source(
    case: tuple[list[Batch], dict[str, int]],
) -> None:
    batches, sizes = case
    whole: Batch = {}
    for batch in batches:
        for topic, lines in batch.items():
            whole[topic] = whole.get(topic, []) + lines
    grouping = Grouping()
    assert grouping.run(decoded(0, whole)) == list(sizes)
