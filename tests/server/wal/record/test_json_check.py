"""Bodies looked at together, by a parser as lines and by compiled code, against bodies decoded one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.json_check import first_non_object
from tests.support.compiled_loops import loops_used

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES = st.sampled_from(
    [
        *'{}[],:"\\\n 1ü\t\x1f-0.e',
        *('"a"', "null", "{}", '{"a":1}', "E+", "true", "fals", "false", '"a":', "[1,[]]"),
        *("\\n", "\\u00e4", "\\uD83D\\uDE00", "\\ud8", "12345678901234567890.5e-7"),
        '"a long text, and \\"more\\" of it"',
    ]
)
BODIES = st.lists(
    st.none()
    | st.sampled_from(["{}", '{"a":1}', '{"a":"}"}', ' {"a": {}}\n', '{"ü":"\\n"}'])
    | st.lists(PIECES, max_size=8).map("".join)
    | st.lists(PIECES, max_size=6).map(lambda pieces: "{" + "".join(pieces) + "}")
    | st.lists(PIECES, max_size=6).map(lambda pieces: '{"a":' + "".join(pieces) + "}"),
    max_size=6,
)


@pytest.fixture(params=["parsed", "compiled"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look at bodies in either way."""
    with loops_used(request.param == "compiled"):
        yield


def is_object(body: str | None) -> bool:
    if body is None:
        return True
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


@given(BODIES)
def test_the_first_body_that_is_no_object_is_found(bodies: list[str | None]) -> None:
    found = first_non_object(pa.array(["cut off", *bodies], pa.string()).cast(pa.binary())[1:])
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
    found = first_non_object(pa.array(bodies, pa.string()).cast(pa.binary()))
    assert found is not None
    assert found.row == (1 if bodies[-1] == "" else 0)


def test_every_body_of_a_batch_that_is_decoded_in_parts_counts() -> None:
    bodies = [b'{"text":"%s"}' % (b"t" * 1_000)] * 2_000
    assert first_non_object(pa.array(bodies)) is None
    bodies[1_234] = b'{"text":"\x00"}'
    found = first_non_object(pa.array(bodies))
    assert found is not None
    assert found.row == 1_234
    assert "invalid character" in found.reason


def test_texts_that_are_not_utf_8_are_no_objects() -> None:
    found = first_non_object(pa.array([b"{}", b'{"a":"\xff"}']))
    assert found is not None
    assert found.row == 1


@pytest.mark.parametrize("length", range(26))
def test_a_text_ends_at_its_quote_wherever_in_a_word_it_lies(length: int) -> None:
    text = "t" * length
    good = [
        f'{{"{text}":"{text}"}}',
        f'{{"a":"{text}\\"{text}\\\\"}}',
        f'{{"a":"{text}\\u12aF{text}é"}}',
    ]
    assert first_non_object(pa.array([each.encode() for each in good])) is None
    for bad in (
        f'{{"a":"{text}\x1f{text}"}}',
        f'{{"a":"{text}"{text}"}}',
        f'{{"a":"{text}\\"}}',
        f'{{"a":"{text}\\u12g0"}}',
        f'{{"a":"{text}\\x"}}',
        f'{{"a":"{text}',
        f'{{"{text}" "a"}}',
    ):
        found = first_non_object(pa.array([*(each.encode() for each in good), bad.encode()]))
        assert found is not None, bad
        assert found.row == len(good)


@pytest.mark.parametrize("depth", [1, 60, 61, 62, 63, 64, 200])
def test_objects_and_arrays_may_lie_in_one_another(depth: int) -> None:
    opened, closed = '{"a":[' * depth, "]}" * depth
    bodies = [f"{opened}1{closed}", f"{opened}{closed}", f"{opened}1{closed[:-2]}}}]"]
    found = first_non_object(pa.array([each.encode() for each in bodies]))
    assert found is not None
    assert found.row == 2


@pytest.mark.parametrize(
    "number", ["0", "-0", "10", "1.5", "-1.50e10", "1E-7", "12345678901234567890", "0.10", "1e2"]
)
def test_numbers_are_those_of_json(number: str) -> None:
    assert first_non_object(pa.array([f'{{"a":{number},"b":[{number}]}}'.encode()])) is None
    for wrong in (
        f"0{number}",
        f"+{number}",
        f"{number}.",
        f"{number}e",
        f"{number}x",
        f"-{number}-",
    ):
        if not is_object(f'{{"a":{wrong}}}'):
            assert first_non_object(pa.array([f'{{"a":{wrong}}}'.encode()])) is not None, wrong
