"""Which records are the newest of a key, against a plain loop over what is matched."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Criteria, Operation, canonical
from tailrace_server.live.latest_rows import BOUNDS, NewestBounds, NewestRecords, RowSet
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.base.winners import HASHES_END
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.images import images_of
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog, ModelMutation, criteria_lists, transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead

    Matched = list[tuple[BatchHead, BatchSelection]]


def matched(folder: str, written: Sequence[list[Any]], criteria: tuple[Criteria, ...]) -> Matched:
    writer = ModelWriter(Path(folder), "shop", ModelLog(known={}))
    writer.write(*written)
    writer.writer.close()
    view = CommitLog.open(Path(folder) / "shop").view
    found = []
    with BatchReader(Path(folder) / "shop") as reader:
        for number in range(len(view)):
            ref = view.batch(number)
            grouped = group_by_class(reader.head(ref))
            images = images_of(reader, ref, view)
            found.append((grouped.head, Predicate(canonical(criteria)).select(grouped, images)))
    return found


def passes(found: Matched, low: int, bounds: NewestBounds = BOUNDS) -> list[int]:
    """Return the rows that as many passes find as the bounds make of them."""
    parts: list[Any] = []
    start, high = 0, 1 << 40
    while start < HASHES_END:
        newest = NewestRecords(start, ("counted",), bounds)
        for head, selection in found:
            newest.add(head, selection, low, high)
        parts.append(newest.rows(first=start == 0))
        assert newest.stop > start
        start = newest.stop
    rows: list[int] = RowSet(low, high, parts).within(low, high).tolist()
    return rows


def plainly(found: Matched, low: int) -> list[int]:
    """Return the same, by one step for each capture."""
    newest: dict[tuple[object, ...], int] = {}
    given = set()
    for head, selection in found:
        ordinals = [0] * len(selection)
        if selection.ordinals is not None:
            ordinals = selection.ordinals.tolist()
        for place, ordinal in zip(selection.rows.tolist(), ordinals, strict=True):
            row = head.ref.first_row + place
            if row < low:
                continue
            code, key = int(head.type_codes[place]), head.primary_keys[place].as_py()
            name = head.entity_types[code] if code >= 0 else None
            area = Area(head.areas[place])
            if area is Area.INFRASTRUCTURE:
                newest["lead",] = row
            elif area is Area.SCHEMA or (name == "counted" and key is not None):
                given.add(row)
            elif key is None:
                newest = {unit: at for unit, at in newest.items() if unit[0] != name}
                newest[name, "truncate"] = row
            else:
                newest[name, "row", key, ordinal] = row
    return sorted({*newest.values(), *given})


@settings(max_examples=25)
@given(
    written=st.lists(transactions, min_size=1, max_size=12),
    criteria=criteria_lists,
    low=st.integers(0, 30),
    keys=st.integers(1, 6),
)
def test_every_key_has_its_newest_record_and_no_other_whatever_is_matched(
    written: list[list[object]], criteria: tuple[Criteria, ...], low: int, keys: int
) -> None:
    with TemporaryDirectory() as folder:
        found = matched(folder, written, criteria)
    expected = plainly(found, low)
    assert passes(found, low) == expected
    assert passes(found, low, NewestBounds(keys=keys)) == expected
    assert passes(found, low, NewestBounds(key_bytes=keys)) == expected


def upsert(key: str, entity_type: str = "product") -> ModelMutation:
    return ModelMutation(entity_type, key, Operation.UPSERT, None, {"id": 1})


def test_truncates_leads_schemas_and_rows_without_a_key(tmp_path: Path) -> None:
    truncate = ModelMutation("product", None, Operation.REMOVE, None, None)
    written = [
        [upsert("1"), upsert("2"), upsert("1", "order"), upsert("x", "counted")],
        [truncate, upsert("3"), truncate, upsert("1"), upsert("x", "counted")],
        [ModelMutation("product", "1", Operation.REMOVE, {"id": 1}, None), upsert("1", "order")],
    ]
    found = matched(str(tmp_path), written, ())
    rows = passes(found, 0)
    assert rows == plainly(found, 0)
    told = [
        (int(head.versions[at]), Operation(head.operations[at]).name, name, key)
        for row in rows
        for head, _ in found
        if 0 <= (at := row - head.ref.first_row) < len(head.versions)
        for name in [head.entity_types[head.type_codes[at]] if head.type_codes[at] >= 0 else None]
        for key in [head.primary_keys[at].as_py()]
        if head.areas[at] != Area.SCHEMA
    ]
    assert told == [
        (1, "UPSERT", "counted", "x"),
        (2, "REMOVE", "product", None),
        (2, "UPSERT", "counted", "x"),
        (3, "TRANSACTION", None, None),
        (3, "REMOVE", "product", "1"),
        (3, "UPSERT", "order", "1"),
    ]


@given(
    rows=st.sets(st.integers(100, 5_000), max_size=300),
    start=st.integers(0, 6_000),
    length=st.integers(0, 3_000),
)
@example(rows=set(), start=0, length=1)
def test_a_set_of_rows_is_the_same_as_numbers_and_as_bits(
    rows: set[int], start: int, length: int
) -> None:
    parts = [np.array(sorted(rows), np.int64), np.array(sorted(rows)[:3], np.int64)]
    for high in (5_001, 1_000_000):
        subject = RowSet(100, high, parts)
        expected = [row for row in sorted(rows) if start <= row < start + length]
        assert subject.within(start, start + length).tolist() == expected
        later = [row for row in rows if row >= start]
        assert subject.first_at_or_after(start) == min(later, default=None)


def test_a_set_of_rows_takes_a_bit_for_each_record_at_most() -> None:
    dense = RowSet(0, 80_000, [np.arange(80_000)])
    assert dense.nbytes == 10_000
    assert dense.first_at_or_after(79_999) == 79_999
    sparse = RowSet(0, 1 << 40, [np.arange(10)])
    assert sparse.nbytes == 80


@pytest.mark.parametrize("row", [0, 70_000, 140_000])
def test_a_row_far_away_is_found(row: int) -> None:
    parts = [np.array([140_000]), np.arange(3_000) + 200_000]
    assert RowSet(0, 203_000, parts).first_at_or_after(row) == 140_000
