"""Tallies as tables: all but the time at which they were seen comes back."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import to_batch
from tailrace_server.pipeline.transactions.driver_state import (
    TALLY_SCHEMA,
    is_tallies,
    tallies_from,
    tallies_table,
)
from tailrace_server.pipeline.transactions.tally import Tally

_COUNTS = st.integers(0, 2**63 - 1)
_BYTES = st.none() | st.binary(max_size=4)
_TALLIES = st.builds(
    Tally,
    key=st.text(max_size=3),
    transaction_id=st.none() | st.text(max_size=3),
    place=_BYTES,
    first_arrival=_BYTES,
    last_arrival=_BYTES,
    mark=_BYTES,
    rows=_COUNTS,
    quarantined=_COUNTS,
    expected=st.none() | _COUNTS,
    timestamp=st.none() | _COUNTS,
    source=st.none() | st.text(max_size=3),
    segments=st.lists(st.text(max_size=3), max_size=2).map(tuple),
)


@given(st.lists(_TALLIES, max_size=4, unique_by=lambda t: t.key))
def test_tallies_come_back_as_seen_now(tallies: list[Tally]) -> None:
    table = tallies_table(tallies)
    assert is_tallies(table)
    assert tallies_from(table, 7.0) == {t.key: replace(t, seen=7.0) for t in tallies}


def test_rows_are_no_tallies() -> None:
    assert not is_tallies(pa.Table.from_batches([to_batch([])]))
    assert tallies_table([]).schema == TALLY_SCHEMA


def test_a_file_of_an_earlier_release_tells_where_the_first_row_arrived_alone() -> None:
    table = tallies_table([Tally("7", first_arrival=b"at", rows=1, first_rows=(("t", b"at"),))])
    [known] = tallies_from(table.drop_columns(["first_rows"]), 0.0).values()
    assert known.first_rows == (("", b"at"),)
