"""The lead of a version: members in their order, absent where they do not apply.

test_records.py proves promise 8 on leads that were built from messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson

from tailrace.criteria import Operation
from tailrace_server.pipeline.input.change import SNAPSHOT
from tailrace_server.pipeline.transactions.consolidate import Effect
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.records import lead
from tailrace_server.pipeline.transactions.tally import Tally, cut_snapshots

EFFECTS = [Effect(name, str(n), Operation.UPSERT) for n, name in enumerate(("b", "a", "b"))]


def body(released: Released, effects: list[Effect] = EFFECTS) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(
        lead(released, Counter(each.entity_type for each in effects))
    )
    return found


def test_a_whole_transaction_has_the_plain_members_in_their_order() -> None:
    found = body(Released(Tally("7", "7:1", rows=4, expected=4, timestamp=5, source="pg:shop")))
    assert list(found.items()) == [
        ("transaction_id", "7:1"),
        ("mutation_count", 3),
        ("counts", {"a": 1, "b": 2}),
        ("source_count", 4),
        ("source", "pg:shop"),
        ("source_timestamp", 5),
    ]


def test_a_late_version_says_of_which_and_not_what_is_missing() -> None:
    tally = Tally("7", "7", rows=1, expected=4, mark=b"1")
    found = body(Released(tally, late_of=41))
    assert (found["late"], found["of"]) == (True, 41)
    assert not {"expected_count", "without_end"} & found.keys()


def test_a_cut_of_a_snapshot_says_that_it_is_one() -> None:
    key = f"{SNAPSHOT}f\0" + "0"
    tallies, _ = cut_snapshots({key: Tally(key, rows=2, first_arrival=b"1")}, 5, "w-0")
    [tally] = tallies.values()
    found = body(Released(tally))
    assert (found["snapshot"], found["transaction_id"], found["source_count"]) == (True, None, 2)


def test_an_empty_version_has_no_counts() -> None:
    found = body(Released(Tally("7", "7", expected=2)), [])
    assert (found["mutation_count"], found["counts"], found["expected_count"]) == (0, {}, 2)
