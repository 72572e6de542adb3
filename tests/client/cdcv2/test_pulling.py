"""The reader as an iterator; that it ends with any drawn stream is tested in `test_round_trip.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.cdcv2 import Conflict, Finished, Progress, Reader, Update, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.cdcv2 import Statement


def test_pulling_stops_at_the_end_of_the_stream() -> None:
    def messages() -> Iterator[Statement[int]]:
        yield Progress((0,), (), ())
        raise AssertionError("pulled on after the end")

    assert list(read(messages())) == [Finished([], ())]


def test_pulling_ends_with_the_messages_and_the_reader_says_why() -> None:
    reader = Reader()
    assert list(read([[Update("a", 5, 1)], Progress((0,), (3,))], reader=reader)) == [
        Finished([], (3,))
    ]
    assert not reader.closed
    assert len(reader.why_waiting()) == 1


def test_pulling_goes_on_with_a_reader_that_has_been_told_what_to_do() -> None:
    """After an error the messages go on behind the one at fault."""
    reader = Reader()
    messages: Iterator[Statement[int]] = iter(
        [[Update("a", 0, 1)], [Update("a", 0, 2)], Progress((0,), (1,), ((0, 1),))]
    )
    with pytest.raises(Conflict):
        list(read(messages, reader=reader))
    reader.resume("first")
    assert list(read(messages, reader=reader)) == [Finished([Update("a", 0, 1)], (1,))]


def test_pulling_begins_where_it_is_told() -> None:
    messages: list[Statement[int]] = [
        [Update("early", 1, 1), Update("a", 2, 1)],
        Progress((0,), (3,), ((1, 1), (2, 1))),
    ]
    assert list(read(messages, start=(2,))) == [Finished([Update("a", 2, 1)], (3,))]
