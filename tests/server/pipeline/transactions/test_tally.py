"""Tallies: of parts they are the same as of the whole, however the rows are parted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.transactions.tally import tally
from tests.server.pipeline.shapes import decode, end, envelope, postgres


def test_a_row_without_a_position_does_not_stand_for_the_first() -> None:
    """An LSN that is missing would sort before all others."""
    rows = decode(
        envelope("c", postgres(None, 7), after={"id": 1}),
        envelope("c", postgres(9, 7), after={"id": 2}),
    )
    [known] = tally(rows, 0.0).values()
    assert known.place == rows[1].place
    assert known.first_arrival is not None
    assert rows[0].place.endswith(known.first_arrival)


@given(st.lists(st.tuples(st.sampled_from("abx"), st.sampled_from("fgh")), max_size=8), st.data())
def test_the_tallies_of_two_parts_add_up_to_that_of_the_whole(
    spots: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Some rows have no key and are quarantined; END comes somewhere between."""
    changes = [
        change
        for number, (table, file) in enumerate(spots)
        for change in decode(
            envelope(
                "c", postgres(number, 7, table), after={"n" if table == "x" else "id": number}
            ),
            file=f"{file}{number}",
        )
    ]
    changes += decode(end("7", len(spots)), file="marks")
    changes = data.draw(st.permutations(changes))
    place = data.draw(st.integers(1, len(changes)))
    [whole] = tally(changes, 0.0).values()
    [one] = tally(changes[:place], 0.0).values()
    others = tally(changes[place:], 0.0).values()
    for other in others:
        one = one.plus(other)
    assert replace(one, first_rows=()) == replace(whole, first_rows=())
    assert sorted(one.first_rows) == sorted(whole.first_rows)
