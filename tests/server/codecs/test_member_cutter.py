"""The compiled cutter leaves the bytes that the parser does, and no byte of what is hidden."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.codecs.column_cut import cut_image
from tailrace_server.codecs.member_cutter import MemberCutter
from tailrace_server.grants.grant import Columns
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.machine_code.loops.codes import MEMBERS_AT_ONCE
from tailrace_server.wal.record.text_columns import Texts
from tests.server.machine_code.test_json_objects import VALUES

CUTTER = MemberCutter(loops_made())
NAMES = st.sampled_from(["a", "b", "ab", "long name 123456", 'q"', "ключ", ""])
OBJECTS = st.dictionaries(NAMES | st.text(max_size=3), VALUES, max_size=5)
SETS = st.builds(Columns, st.frozensets(NAMES, max_size=3), st.booleans())
BODIES = (
    st.builds(
        lambda row, indent, separators: json.dumps(
            row, indent=indent, separators=separators, ensure_ascii=False
        ),
        OBJECTS,
        st.sampled_from([None, 1]),
        st.sampled_from([(",", ":"), (" ,\n", "\t: ")]),
    )
    | st.sampled_from(
        ['{"a":1,"a":2}', '{"a":1,"b":2,"a":3}', "[]", '{"a":}', '{"a":1', "", "{} {}"]
    )
    | st.text(max_size=5)
).map(lambda text: text.encode(errors="replace"))


def cut(
    bodies: list[bytes | None], rules: list[int], sets: list[Columns], first: int = 0
) -> tuple[list[bytes | None], int]:
    """Return what comes of bodies from one on, and how many the parser was asked about."""
    asked = []

    def parse(row: int, image: bytes) -> bytes | None:
        asked.append(row)
        return cut_image(image, sets[rules[row] - 1]) if rules[row] > 0 else b"parsed"

    texts = Texts.of(pa.array(bodies, pa.binary())[first:])
    found = CUTTER.cut(texts, np.array(rules, np.int32), sets, parse).array
    found.validate(full=True)
    return found.to_pylist(), len(asked)


@given(
    bodies=st.lists(st.none() | BODIES, max_size=6), sets=st.lists(SETS, max_size=3), data=st.data()
)
def test_it_leaves_the_bytes_that_the_parser_leaves(
    bodies: list[bytes | None], sets: list[Columns], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(bodies)))
    rules = [data.draw(st.integers(-1, len(sets))) for _ in bodies[first:]]
    expected = [
        None
        if body is None
        else b"parsed"
        if rule < 0
        else body
        if rule == 0
        else cut_image(body, sets[rule - 1])
        for body, rule in zip(bodies[first:], rules, strict=True)
    ]
    assert cut(bodies, rules, sets, first)[0] == expected


@pytest.mark.parametrize("listed", [False, True])
def test_an_ordinary_table_needs_no_parser(listed: bool) -> None:
    row = {f"column_{n}": [n, {"column_1": '}\\"', "x": None}, "é" * n] for n in range(40)}
    hidden = frozenset(f"column_{n}" for n in range(0, 40, 3))
    body = json.dumps(row, ensure_ascii=False).encode()
    kept = {name: value for name, value in row.items() if (name in hidden) == listed}
    [found, none], asked = cut([body, None], [1, 1], [Columns(hidden, listed=listed)])
    assert none is None
    assert found is not None
    assert json.loads(found) == kept
    assert asked == 0


def test_what_the_loop_does_not_look_at_is_left_to_the_parser() -> None:
    wide = json.dumps({f"c{n}": n for n in range(MEMBERS_AT_ONCE + 1)}).encode()
    bodies: list[bytes | None] = [wide, b'{"\\u0061":1,"b":2}', '{"é":1,"a":2}'.encode()]
    found, asked = cut(bodies, [1, 1, 1], [Columns(frozenset({"a", "c0"}))])
    assert asked == 3
    assert [b'"c0"' in (found[0] or b""), *found[1:]] == [False, b'{"b":2}', '{"é":1}'.encode()]
