"""Reads of random logs: their rows are what plain Python makes of the records, in parts of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.cursor import Cursor
from tailrace.position import Position
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.wal.catalog import open_catalog
from tests.server.log_read.histories import (
    CAPTURE,
    applied,
    by_record,
    capture_of,
    changes_read,
    expected_changes,
    read,
    records_of,
    state_read,
    values,
    write,
)
from tests.server.wal.base.tables import histories, naive

if TYPE_CHECKING:
    from tailrace_server.wal.record.mutation import Mutation

TABLES = st.sampled_from(["order", "item"])
SIZES = st.integers(1, 9)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), TABLES, SIZES)
def test_change_rows_are_those_of_the_records_in_parts_of_any_size(
    history: list[list[Mutation]], table: str, size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), history)
        records = records_of(Path(folder))
        expected = expected_changes(records, table)
        found = changes_read(read(Path(folder), table, rows_per_part=size), table)
    assert by_record(found, records) == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), SIZES)
def test_captures_are_the_records_of_the_log_in_parts_of_any_size(
    history: list[list[Mutation]], size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), history)
        found = read(Path(folder), None, shape=Shape.CAPTURES, rows_per_part=size)
        orders = read(Path(folder), "order", shape=Shape.CAPTURES, rows_per_part=size)
        records = records_of(Path(folder))
    expected = [capture_of(each) for each in records]
    assert [tuple(row[name] for name in CAPTURE) for row in found] == expected
    assert orders == [each for each in found if each["entity_type"] == "order"]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), TABLES, SIZES, st.data())
def test_a_state_and_the_changes_after_it_are_the_later_state(
    history: list[list[Mutation]], table: str, size: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, history)
        records = records_of(root)
        newest = 1 + len(history)
        first = data.draw(st.integers(0, newest))
        last = data.draw(st.integers(first, newest))
        # A count below zero, which only a damaged source makes, is in no state.
        prefixes = (naive(records[:count], newest, table) for count in range(len(records) + 1))
        assume(all(row.multiplicity >= 0 for each in prefixes for row in each.values()))
        before, after = (state_read(root, table, each, size) for each in (first, last))
        found = []
        if first < last:
            rows = read(root, table, starting=first + 1, ending=last, rows_per_part=size)
            found = changes_read(rows, table)
    assert applied(before, found, table) == applied(after, [], table)
    assert sorted(after) == sorted(
        values(table, key, row.image)
        for key, row in naive(records, last, table).items()
        for _ in range(row.multiplicity)
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), TABLES, SIZES, st.booleans(), st.data())
def test_net_changes_turn_the_state_before_into_the_state_after_once_a_key(
    history: list[list[Mutation]],
    table: str,
    size: int,
    computes_updates: bool,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, history)
        records = records_of(root)
        # Begin and end anywhere, also in the middle of a version.
        places = st.integers(0, len(records) - 1)
        first, last = sorted(data.draw(st.tuples(places, places)))
        begin, end = (Position(records[each][1], records[each][2]) for each in (first, last))
        prefixes = (naive(records[:count], 99, table) for count in range(len(records) + 1))
        assume(all(row.multiplicity >= 0 for each in prefixes for row in each.values()))
        uuid = open_catalog(root, "shop").view.uuid
        rows = read(
            *(root, table),
            starting=Cursor.past(uuid, begin),
            ending=Cursor.past(uuid, end),
            deduplication=Deduplication.NET_CHANGES,
            compute_updates=computes_updates,
            rows_per_part=size,
        )
    before, after = (
        [
            values(table, key, row.image)
            for key, row in naive(records[: each + 1], 99, table).items()
            for _ in range(row.multiplicity)
        ]
        for each in (first, last)
    )
    found = changes_read(rows, table)
    assert applied(before, found, table) == applied(after, [], table)
    assert all(begin < each.at <= end for each in found)
    if table == "order":
        kinds: dict[str, list[str]] = {}
        for each in found:
            kinds.setdefault(each.image[0], []).append(each.kind)
        pair = ["update_preimage", "update_postimage"] if computes_updates else ["delete", "insert"]
        assert all(each in (["insert"], ["delete"], pair) for each in kinds.values())
        assert sorted(each.image for each in found if each.kind in (pair[0], "delete")) == sorted(
            row for row in before if row[0] in kinds
        )
