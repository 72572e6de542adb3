"""The saved state of a reader; that a reader goes on from any state is tested in `test_round_trip.py`."""

from __future__ import annotations

import json

import pytest

from tailrace.cdcv2 import INTEGERS, Progress, Reader, StateUnreadable, Update, product
from tailrace.cdcv2.state import ReaderState, data_of_text, data_to_text, decode_state, encode_state


def test_state_takes_data_that_json_has_no_word_for() -> None:
    reader = Reader()
    reader.receive([Update(b"\xff", 0, 1), Update(b"", 0, 1)])
    with pytest.raises(TypeError):
        reader.save()
    saved = reader.save(lambda data: data.hex() if isinstance(data, bytes) else "?")
    again = Reader.restore(saved, INTEGERS, decode=bytes.fromhex)
    [(updates, _)] = again.receive(Progress((0,), (1,), ((0, 2),)))
    assert updates == [Update(b"\xff", 0, 1), Update(b"", 0, 1)]


def test_state_keeps_nested_tuples_and_tells_types_apart() -> None:
    reader = Reader()
    data = [(1, ("x", None, (2.5,))), (True, ()), ("1",)]
    reader.receive([Update(each, 3, 1) for each in data])
    again = Reader.restore(reader.save(), INTEGERS)
    [(updates, _)] = again.receive(Progress((0,), (4,), ((3, 3),)))
    assert repr([each.data for each in updates]) == repr(data)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"lattice": "product(2)"},
        {"finished": [-1]},
        {"times": [[1]]},
        {"intervals": None},
    ],
)
def test_a_state_of_another_kind_is_refused(change: dict[str, object]) -> None:
    document = json.loads(Reader().save())
    with pytest.raises(StateUnreadable):
        Reader.restore(json.dumps(document | change).encode(), INTEGERS)


def test_what_is_no_state_is_refused() -> None:
    for saved in (b"", b"\xff", b"[]", b"{}", b"7"):
        with pytest.raises(StateUnreadable):
            Reader.restore(saved, INTEGERS)


def test_the_document_is_the_one_that_the_module_describes() -> None:
    reader = Reader()
    reader.receive(Progress((0,), (10,), ((5, 2),)), name="p")
    reader.receive([Update((7, None), 5, 1)], name="u")
    document = json.loads(reader.save())
    assert document.pop("figures")["messages"] == 2
    assert document == {
        "format": 1,
        "lattice": "integers",
        "on_conflict": "error",
        "finished": [5],
        "intervals": [[[0], [10], "p"]],
        "times": [[5, [2, "p"], [["[7,null]", 1, "u"]]]],
    }


def test_a_state_of_product_times_comes_back() -> None:
    pairs = product(2)
    state: ReaderState[tuple[int, ...]] = ReaderState(
        on_conflict="first",
        finished=((0, 1), (1, 0)),
        intervals=[(((0, 0),), ((2, 2),), None)],
        held={(1, 1): {("a", 1): (2, "m")}, (3, 3): {}},
        counts={(1, 1): (4, 7)},
        figures={"messages": 3},
    )
    assert decode_state(encode_state(state, pairs, data_to_text), pairs, data_of_text) == state


@pytest.mark.parametrize("text", ['{"a":1}', '[1,{"a":1}]'])
def test_data_that_no_reader_wrote_is_refused(text: str) -> None:
    with pytest.raises(TypeError, match="holds an object"):
        data_of_text(text)
