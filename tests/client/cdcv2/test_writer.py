"""The writer, case by case."""

from __future__ import annotations

import pytest

import tailrace.cdcv2
from tailrace.cdcv2 import InvalidStatement, InvalidWrite, Progress, Update, Writer, product


def test_contract_41_sums_are_written_once_their_time_is_final() -> None:
    writer = Writer(batch_size=2)
    writer.write([Update("a", 3, 1), Update("b", 3, 1), Update("a", 3, 1)])
    writer.write([Update("c", 1, 1), Update("d", 3, 1), Update("e", 7, 1), Update("b", 3, -1)])
    assert writer.advance((5,)) == [
        [Update("c", 1, 1), Update("a", 3, 2)],
        [Update("d", 3, 1)],
        Progress((0,), (5,), ((1, 1), (3, 2))),
    ]
    assert writer.advance((5,)) == []
    assert writer.advance((6,)) == [Progress((5,), (6,), ())]
    assert writer.close() == [[Update("e", 7, 1)], Progress((6,), (), ((7, 1),))]
    assert writer.close() == []


def test_a_writer_of_partial_orders_writes_what_is_before_no_element() -> None:
    writer = Writer(product(2))
    writer.write([Update("a", (0, 5), 1), Update("b", (5, 0), 1), Update("c", (3, 3), 1)])
    assert writer.advance([(1, 0), (1, 1)]) == [
        [Update("a", (0, 5), 1)],
        Progress(((0, 0),), ((1, 0),), (((0, 5), 1),)),
    ]
    assert writer.advance([(1, 3), (4, 0)])[-1] == Progress(((1, 0),), ((1, 3), (4, 0)), ())


def test_a_writer_refuses_what_would_make_it_untrue() -> None:
    writer = Writer(start=(2,))
    with pytest.raises(InvalidWrite, match=r"time 1 is before the frontier \[2\]"):
        writer.write([Update("a", 1, 1)])
    with pytest.raises(InvalidWrite, match=r"frontier \[2\] cannot move back to \[1\]"):
        writer.advance((1,))
    writer.write([Update("a", 2, 2**62), Update("a", 2, 2**62)])
    with pytest.raises(InvalidWrite, match="exceeds 64 bits"):
        writer.advance((3,))
    writer.write([Update("a", 2, -1)])
    assert writer.advance((3,))[0] == [Update("a", 2, 2**63 - 1)]
    writer.close()
    with pytest.raises(InvalidWrite, match="time 9"):
        writer.write([Update("a", 9, 1)])
    with pytest.raises(InvalidWrite, match="cannot move back"):
        writer.advance((9,))


def test_a_writer_takes_times_of_its_kind_only() -> None:
    writer = Writer()
    with pytest.raises(InvalidStatement):
        writer.write([Update("a", -1, 1)])
    with pytest.raises(InvalidStatement):
        writer.advance((2**63,))
    with pytest.raises(ValueError, match="batch_size 0"):
        Writer(batch_size=0)


def test_the_public_names_are_sorted_and_documented() -> None:
    names = tailrace.cdcv2.__all__
    assert (
        sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)) == names
    )
    exposed = {name for name, value in vars(tailrace.cdcv2).items() if isinstance(value, type)}
    assert exposed <= set(names)
    assert all(getattr(tailrace.cdcv2, name).__doc__ for name in exposed)
