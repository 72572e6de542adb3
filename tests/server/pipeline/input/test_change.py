"""Changes as rows of one table, and the place of each as bytes that sort as the source does."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import (
    BEGIN,
    CHANGE_SCHEMA,
    LINE_MESSAGES,
    NO_POSITION,
    QUARANTINED,
    Change,
    FileSplit,
    arrival,
    from_table,
    line_of,
    position_in,
    quarantined,
    to_batch,
)

_NUMBERS = st.integers(0, 2**64 - 1)
_PLACES = st.tuples(
    st.tuples(_NUMBERS, _NUMBERS, _NUMBERS),
    st.integers(0, 2**63),
    st.sampled_from("ab"),
    st.integers(1, 2**40 - 1),
    st.integers(0, LINE_MESSAGES - 1),
)


def place(
    position: tuple[int, int, int], modified_us: int, file: str, line: int, message: int = 0
) -> bytes:
    return FileSplit(file, 17, modified_us).place(line, position, message)


@given(st.lists(_PLACES, min_size=2, max_size=5))
def test_places_sort_by_position_then_time_then_file_then_line_then_message(
    of: list[tuple[tuple[int, int, int], int, str, int, int]],
) -> None:
    assert sorted(place(*each) for each in of) == [place(*each) for each in sorted(of)]


def test_a_place_gives_position_file_and_line_back() -> None:
    made = place((1, 2, 3), 4, "a/é.json", 42)
    assert position_in(made) == (1, 2, 3)
    assert line_of(made) == ("a/é.json", 17, 42)
    assert line_of(place((1, 2, 3), 4, "a/é.json", 42, 7)) == ("a/é.json", 17, 42)


def test_a_place_of_an_earlier_release_gives_its_line_back() -> None:
    made = place((1, 2, 3), 4, "a", 42)
    assert line_of(made[:-8] + (42).to_bytes(8, "big")) == ("a", 17, 42)


def test_the_arrival_is_what_follows_the_position() -> None:
    assert arrival(place((1, 2, 3), 4, "a", 5)) == arrival(place((9, 9, 9), 4, "a", 5))
    assert arrival(place(NO_POSITION, 4, "a", 5)) < arrival(place(NO_POSITION, 4, "a", 6))


def test_a_file_from_before_1970_stands_at_the_epoch() -> None:
    assert place(NO_POSITION, -5, "a", 1) == place(NO_POSITION, 0, "a", 1)


def test_changes_go_through_a_batch_unchanged() -> None:
    changes = [
        Change(BEGIN, b"1", "7", "7:1"),
        quarantined(FileSplit("f", 3, 9), 4, b"\xff", "not UTF-8", incompatible=True),
    ]
    assert list(from_table(to_batch(changes))) == changes
    assert changes[1].kind == QUARANTINED
    assert (changes[1].file, changes[1].block, changes[1].line) == ("f", 3, 4)
    assert line_of(changes[1].place) == ("f", 3, 4)
    assert to_batch([]).schema == CHANGE_SCHEMA


def test_a_table_of_an_earlier_release_lacks_later_columns() -> None:
    table = pa.Table.from_batches([to_batch([Change(BEGIN, b"1", "7", columns="[]")])])
    [change] = from_table(table.drop_columns(["columns"]))
    assert change == Change(BEGIN, b"1", "7")
