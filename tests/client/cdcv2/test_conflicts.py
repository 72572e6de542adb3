"""Statements that contradict each other, and statements that none may make."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cdcv2 import (
    CdcError,
    Conflict,
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    Finished,
    InvalidStatement,
    Progress,
    Reader,
    Update,
    Waiting,
    product,
)

if TYPE_CHECKING:
    from tailrace.cdcv2 import Statement

ONE = Progress((0,), (5,), ((3, 1),))

CONFLICTS: list[tuple[type[Conflict], list[Statement[int]], tuple[int, int]]] = [
    (DiffsDisagree, [[Update("a", 3, 1)], [Update("a", 3, 2)]], (1, 2)),
    (DiffsDisagree, [[], [Update("a", 3, 1), Update("a", 3, -1)]], (1, -1)),
    (CountExceeded, [ONE, [Update("a", 3, 1), Update("b", 3, 1)]], (1, 2)),
    (CountExceeded, [[Update("a", 3, 1), Update("b", 3, 1)], ONE], (2, 1)),
    (CountExceeded, [Progress((2,), (5,), ()), [Update("a", 3, 1)]], (0, 1)),
    (CountExceeded, [[Update("a", 3, 1)], Progress((2,), (5,), ())], (1, 0)),
    (CountsDisagree, [ONE, Progress((2,), (9,), ((3, 2),))], (1, 2)),
    (CountsDisagree, [ONE, Progress((2,), (9,), ())], (1, 0)),
    (CountsDisagree, [Progress((2,), (4,), ()), Progress((1,), (9,), ((3, 2),))], (0, 2)),
    (CountsDisagree, [Progress((2,), (4,), ((3, 2),)), Progress((0,), (9,), ((2, 2),))], (2, 0)),
]


@pytest.mark.parametrize(("kind", "messages", "values"), CONFLICTS)
def test_contract_40_a_contradiction_names_the_time_both_values_and_both_messages(
    kind: type[Conflict], messages: list[Statement[int]], values: tuple[int, int]
) -> None:
    reader = Reader()
    reader.receive(messages[0], "orders.avro:7")
    with pytest.raises(kind) as caught:
        reader.receive(messages[1])
    error = caught.value
    first_message = 2 if kind is DiffsDisagree and messages[0] == [] else "orders.avro:7"
    assert error.time == 3
    assert (error.first, error.second) == values
    assert (error.first_message, error.second_message) == (first_message, 2)
    for value in (*values, "3", first_message, "message 2"):
        assert str(value) in str(error)
    assert error.figures()["second_message"] == "2"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.figures()) == (str(error), error.figures())


@pytest.mark.parametrize(("kind", "messages", "values"), CONFLICTS)
def test_contract_40_a_reader_stays_stopped_until_told_and_keeps_what_came_first(
    kind: type[Conflict], messages: list[Statement[int]], values: tuple[int, int]
) -> None:
    reader = Reader()
    reader.receive(messages[0])
    with pytest.raises(kind) as caught:
        reader.receive(messages[1])
    for call in (lambda: reader.receive([]), reader.save):
        with pytest.raises(kind) as repeated:
            call()
        assert repeated.value is caught.value
    reader.resume("first")
    reader.receive(messages[1])
    assert reader.statistics().conflicts >= 1
    patient = Reader(on_conflict="first")
    for message in messages:
        patient.receive(message)
    assert patient.why_waiting() == reader.why_waiting()
    assert Reader.restore(patient.save()).on_conflict == "first"


def test_what_came_first_stands_and_finishes() -> None:
    reader = Reader(on_conflict="first")
    reader.receive([Update("a", 3, 1), Update("a", 3, 5), Update("b", 3, 1)])
    assert reader.receive(Progress((0,), (5,), ((3, 1),))) == [
        Finished([Update("a", 3, 1), Update("b", 3, 1)], (5,))
    ]
    reader.receive(Progress((5,), (9,), ((6, 1),)))
    reader.receive(Progress((5,), (9,), ((6, 2), (7, 1))))
    assert reader.why_waiting() == [Waiting(6, 1, 0)]
    [(updates, frontier)] = reader.receive(
        [Update("c", 7, 1), Update("a", 6, 1), Update("b", 6, 1)]
    )
    assert (updates, frontier) == ([Update("a", 6, 1)], (9,))
    assert reader.statistics().conflicts == 6


def test_what_completes_beside_a_conflict_is_not_forgotten() -> None:
    """A message that is refused in its middle completed a time before; it leaves at the next one."""
    reader = Reader()
    reader.receive(Progress((0,), (2,), ((0, 1), (1, 1))))
    message = [Update("a", 0, 1), Update("b", 1, 1), Update("b", 1, 2)]
    with pytest.raises(DiffsDisagree):
        reader.receive(message)
    reader.resume("first")
    restored = Reader.restore(reader.save())
    for each in (reader, restored):
        assert each.receive([])[0].updates == message[:2]


def test_updates_past_a_count_are_taken_away_before_another_error_is_raised() -> None:
    reader = Reader()
    reader.receive(ONE)
    with pytest.raises(DiffsDisagree):
        reader.receive([Update("a", 3, 1), Update("b", 3, 1), Update("a", 3, 2)])
    reader.resume("first")
    assert reader.receive([])[0].updates == [Update("a", 3, 1)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (Progress((0,), (5,), ((1, -1),)), "count -1 of time 1 is outside 0 to"),
        (Progress((0,), (5,), ((1, 2**63),)), "is outside 0 to"),
        (Progress((5,), (3,), ()), r"upper \[3\] is not at or after lower \[5\]"),
        (Progress((), (3,), ()), r"upper \[3\] is not at or after lower \[\]"),
        (Progress((0,), (5,), ((5, 1),)), r"count 1 of time 5 lies outside \[0\] to \[5\]"),
        (Progress((1,), (), ((0, 1),)), r"count 1 of time 0 lies outside \[1\] to \[\]"),
        (Progress((0,), (5,), ((1, 1), (1, 2))), "time 1 has two counts, 1 and 2"),
        (Progress((-1,), (5,), ()), "time -1 is outside 0 to"),
        (Progress((0,), (2**63,), ()), "time 9223372036854775808 is outside 0 to"),
        ([Update("a", 1, 0)], "'a' at time 1: a diff of zero is not a change"),
        ([Update("a", 1, 2**63)], "not a 64-bit integer"),
        ([Update("a", 2**63, 1)], "time 9223372036854775808 is outside"),
        ([Update("a", -1, 1)], "time -1 is outside 0 to"),
        ([("a", "1", 1)], "time '1' is not an integer"),
        ([("a", 1, 1.5)], "not a 64-bit integer"),
    ],
)
def test_a_statement_that_none_may_make_is_refused_with_its_message(
    statement: Any, reason: str
) -> None:
    reader = Reader()
    with pytest.raises(InvalidStatement, match=reason) as caught:
        reader.receive(statement, "line 3")
    assert caught.value.message == "line 3"
    assert str(caught.value).startswith("message line 3: ")
    with pytest.raises(InvalidStatement):
        reader.receive([])
    reader.resume()
    assert reader.receive(Progress((0,), (), ()))[0].frontier == ()


def test_times_of_another_arity_are_refused() -> None:
    for time in [(1,), (1, 2, 3), 1, (1, "2"), (1, -2)]:
        reader: Reader[Any] = Reader(product(2))
        with pytest.raises(InvalidStatement):
            reader.receive([Update("a", time, 1)])
    with pytest.raises(ValueError, match="no times"):
        product(0)


def test_the_errors_are_of_the_clients_tree_and_have_codes() -> None:
    kinds: list[type[CdcError]] = [
        CdcError,
        *CdcError.__subclasses__(),
        *Conflict.__subclasses__(),
    ]
    codes = {kind.code for kind in kinds if kind.__module__.startswith("tailrace.")}
    assert len(codes) == 8
    assert all(code.startswith("CDC") for code in codes)
    assert not any(kind.retriable for kind in kinds)
