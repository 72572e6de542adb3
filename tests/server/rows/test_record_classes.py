"""Groups of records by class: the three ways find the same rows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace_server.rows.record_classes import RecordClass, group_by_class
from tests.server.rows.heads import head_of

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = ("order", "customer", "product")
kinds = st.tuples(
    st.sampled_from(list(Area)), st.sampled_from(list(Operation)), st.integers(-1, len(TYPES) - 1)
)


def plainly(records: Sequence[tuple[int, int, int]]) -> dict[RecordClass, list[int]]:
    groups: dict[RecordClass, list[int]] = defaultdict(list)
    for row, (area, operation, code) in enumerate(records):
        groups[RecordClass(area, operation, TYPES[code] if code >= 0 else None)].append(row)
    return groups


@given(data=st.data(), count=st.sampled_from([1, 48, 49, 300]), classes=st.integers(1, 9))
def test_each_class_has_its_rows_in_rising_order(
    data: st.DataObject, count: int, classes: int
) -> None:
    some = data.draw(st.lists(kinds, min_size=classes, max_size=classes))
    random = data.draw(st.randoms())
    records = [random.choice(some) for _ in range(count)]
    grouped = group_by_class(head_of(records, TYPES))
    assert {key: rows.tolist() for key, rows in grouped.groups} == plainly(records)


@pytest.mark.parametrize("entity_types", [1_022, 1_023, 1_500])
def test_more_types_than_short_codes_can_tell_apart_are_grouped(entity_types: int) -> None:
    names = tuple(f"type {number}" for number in range(entity_types))
    records = [(Area.DATA, Operation.UPSERT, code) for code in (0, entity_types - 1)] * 30
    grouped = group_by_class(head_of(records, names))
    assert [(key.entity_type, rows.tolist()) for key, rows in grouped.groups] == [
        (names[0], [*range(0, 60, 2)]),
        (names[-1], [*range(1, 60, 2)]),
    ]
