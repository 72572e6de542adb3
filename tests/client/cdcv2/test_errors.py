"""What errors of a change stream say; when a reader raises them is tested in `test_conflicts.py`."""

from __future__ import annotations

import pickle

import pytest

from tailrace.cdcv2 import (
    Conflict,
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    InvalidStatement,
)

CONFLICTS: dict[str, Conflict] = {
    "'a' at time 3 changes by 1 in message 2 and by -1 in message late": DiffsDisagree(
        "a", 3, (1, 2), (-1, "late")
    ),
    "time 3 has 1 updates according to message 1, but 2 were received, 'a' in message 2": CountExceeded(
        3, (1, 1), (2, 2), "a"
    ),
    (
        "time 3 has 1 updates according to message 2, but 2 were received, 'a' in an earlier message"
    ): CountExceeded(3, (2, None), (1, 2), "a"),
    "time (0, 1) has 0 updates according to message 1, and 4 according to message 5": CountsDisagree(
        (0, 1), (0, 1), (4, 5)
    ),
}


@pytest.mark.parametrize("text", CONFLICTS)
def test_a_conflict_says_the_time_and_both_sides(text: str) -> None:
    error = CONFLICTS[text]
    assert str(error) == text
    assert error.figures() == {
        "time": str(error.time),
        "first": str(error.first),
        "second": str(error.second),
        "first_message": "" if error.first_message is None else str(error.first_message),
        "second_message": str(error.second_message),
    }


@pytest.mark.parametrize("text", CONFLICTS)
def test_a_conflict_goes_to_another_process(text: str) -> None:
    again = pickle.loads(pickle.dumps(CONFLICTS[text]))
    assert (type(again), str(again)) == (type(CONFLICTS[text]), text)
    assert again.figures() == CONFLICTS[text].figures()


def test_an_invalid_statement_names_its_message_if_it_has_one() -> None:
    assert str(InvalidStatement("a diff of zero")) == "a diff of zero"
    named = InvalidStatement("a diff of zero", 7)
    assert str(named) == "message 7: a diff of zero"
    assert named.figures() == {"reason": "a diff of zero", "message": "7"}
