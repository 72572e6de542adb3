"""Statements as values; how a reader's reasons read is tested in `test_reader.py`."""

from __future__ import annotations

import pickle

from tailrace.cdcv2 import Finished, Progress, Reader, Update, Waiting


def test_a_plain_tuple_serves_as_an_update() -> None:
    reader = Reader()
    reader.receive([("a", 0, 1)])  # type: ignore[list-item]
    reader.receive([Update("a", 0, 1)])
    assert reader.receive(Progress((0,), (1,), ((0, 1),))) == [Finished([Update("a", 0, 1)], (1,))]


def test_statements_are_equal_by_value_and_go_to_another_process() -> None:
    progress = Progress((0,), (3,), ((1, 2),))
    assert pickle.loads(pickle.dumps(progress)) == progress == Progress((0,), (3,), ((1, 2),))
    assert len({progress, Progress((0,), (3,), ((1, 2),)), Progress((0,), (3,))}) == 2


def test_what_is_missing_of_a_time_is_known_once_it_is_announced() -> None:
    assert Waiting(3, 5, 2).missing == 3
    assert Waiting(3, None, 2).missing is None
    assert Waiting((0, 1), None, 0, hole_until=((1, 1), (2, 0))).missing is None
    assert str(Waiting((0, 1), None, 0, hole_until=((1, 1), (2, 0)))) == (
        "no progress statement covers time (0, 1) up to (1, 1), (2, 0)"
    )
