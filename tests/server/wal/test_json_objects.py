"""Bodies decoded together, as lines, against bodies decoded one by one."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.json_objects import first_no_object

PIECES = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"', "\\", "\n", " ", '"a"', "1", "null", "{}", '{"a":1}', "ü"]
)
BODIES = st.lists(
    st.none()
    | st.sampled_from(["{}", '{"a":1}', '{"a":"}"}', ' {"a": {}}\n', '{"ü":"\\n"}'])
    | st.lists(PIECES, max_size=8).map("".join)
    | st.lists(PIECES, max_size=6).map(lambda pieces: "{" + "".join(pieces) + "}"),
    max_size=6,
)


def is_object(body: str | None) -> bool:
    if body is None:
        return True
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


@given(BODIES)
def test_the_first_body_that_is_no_object_is_found(bodies: list[str | None]) -> None:
    found = first_no_object(pa.array(["cut off", *bodies], pa.string()).cast(pa.binary())[1:])
    wrong = [row for row, body in enumerate(bodies) if not is_object(body)]
    assert (found and found.row) == (wrong[0] if wrong else None)


@pytest.mark.parametrize(
    "bodies",
    [
        ['{"a":1}\n{"b":2}'],  # two in one
        ['{"a":1}\n{"b":2}', '{"c":', "3}"],  # as many as bodies, where two make one
        ['{"a":{}', '{"b":1}}'],
        ['{"a":"}', '{"}'],  # the line break would lie in a text
        ['{"a":1}', ""],
    ],
)
def test_bodies_are_not_taken_for_one_another(bodies: list[str]) -> None:
    found = first_no_object(pa.array(bodies, pa.string()).cast(pa.binary()))
    assert found is not None
    assert found.row == (1 if bodies[-1] == "" else 0)


def test_every_body_of_a_batch_that_is_decoded_in_parts_counts() -> None:
    bodies = [b'{"text":"%s"}' % (b"t" * 1_000)] * 2_000
    assert first_no_object(pa.array(bodies)) is None
    bodies[1_234] = b'{"text":"\x00"}'
    found = first_no_object(pa.array(bodies))
    assert found is not None
    assert found.row == 1_234
    assert "invalid character" in found.reason


def test_texts_that_are_not_utf_8_are_no_objects() -> None:
    found = first_no_object(pa.array([b"{}", b'{"a":"\xff"}']))
    assert found is not None
    assert found.row == 1
