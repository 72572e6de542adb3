"""Messages cut by compiled code and by the plain way: the same, on good bytes and on bad."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import Progress, Update
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.cutting import CutMessages, RowCutter
from tailrace_server.pipeline.cdcv2.files import StreamSchema
from tailrace_server.pipeline.cdcv2.updates import (
    distinct,
    joined,
)
from tests.server.pipeline.cdcv2.streams import (
    SCHEMA,
)
from tests.support.compiled_loops import loops_used

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDE = StreamSchema(
    json.dumps(
        documented_schema(
            {
                "type": "record",
                "name": "row",
                "fields": [
                    {"name": "a", "type": "int"},
                    {
                        "name": "b",
                        "type": ["null", "string", {"type": "fixed", "name": "f", "size": 3}],
                    },
                    {"name": "c", "type": "boolean"},
                    {"name": "d", "type": {"type": "enum", "name": "e", "symbols": ["x", "y"]}},
                    {"name": "e", "type": "double"},
                    {"name": "f", "type": "float"},
                    {"name": "g", "type": "bytes"},
                    {
                        "name": "h",
                        "type": {
                            "type": "record",
                            "name": "inner",
                            "fields": [
                                {"name": "z", "type": ["null", "long"]},
                                {"name": "f2", "type": "f"},
                            ],
                        },
                    },
                ],
            }
        )
    )
)
LISTS = StreamSchema(
    json.dumps(
        documented_schema(
            {
                "type": "record",
                "name": "row",
                "fields": [
                    {"name": "tags", "type": {"type": "array", "items": "string"}},
                    {"name": "more", "type": {"type": "map", "values": "int"}},
                ],
            }
        )
    )
)


@pytest.fixture(params=["plain", "compiled"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Take one of the two ways, however much there is to do."""
    with loops_used(request.param == "compiled"):
        yield str(request.param)


def cut(schema: StreamSchema, raw: bytes, messages: int) -> CutMessages:
    out = CutMessages()
    RowCutter(schema.form).cut(raw, messages, 7, out)
    return out


def test_a_block_may_announce_any_number_of_messages(way: str) -> None:
    """What is there is taken, and the first that is not there refused; nothing is made room for."""
    out = cut(WIDE, WIDE.form.encode([]) * 3, 1 << 60)
    assert (out.messages, len(out.refused)) == (4, 1)


def shown(out: CutMessages) -> tuple[Any, ...]:
    rows = joined(out.updates).select(["data", "time", "diff", "message", "hash"])
    return (
        rows.to_pylist(),
        out.progress,
        [(r.message, r.reason) for r in out.refused],
        out.messages,
    )


def both(schema: StreamSchema, raw: bytes, messages: int, patch: pytest.MonkeyPatch) -> CutMessages:
    """Cut both ways, compare, and return one."""
    found = []
    for compiled in (False, True):
        with loops_used(compiled):
            found.append(cut(schema, raw, messages))
    assert shown(found[0]) == shown(found[1])
    return found[0]


FLOATS = st.floats(allow_nan=True, width=32)
ROWS = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.one_of(st.none(), st.text(max_size=5), st.binary(min_size=3, max_size=3)),
    st.booleans(),
    st.sampled_from("xy"),
    FLOATS,
    FLOATS,
    st.binary(max_size=4),
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.binary(min_size=3, max_size=3)
    ),
)
TIMES = st.integers(0, 2**63 - 1)
STATEMENTS = st.one_of(
    st.lists(
        st.tuples(ROWS, TIMES, st.integers(-3, 3).filter(bool)).map(lambda u: Update(*u)),
        max_size=4,
    ),
    st.builds(
        lambda a, b, c: Progress((min(a, b),), (max(a, b),), ((min(a, b), c),) if a != b else ()),
        TIMES,
        TIMES,
        st.integers(0, 2**40),
    ),
)


def encoded(schema: StreamSchema, messages: list[Any]) -> bytes | None:
    """Return the messages in binary; None where the union of text and fixed cannot hold a row."""
    return b"".join(schema.form.encode(message) for message in messages)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(STATEMENTS, max_size=5))
def test_both_ways_find_the_same_and_the_rows_read_back(
    monkeypatch: pytest.MonkeyPatch, messages: list[Any]
) -> None:
    raw = encoded(WIDE, messages)
    assert raw is not None
    out = both(WIDE, raw, len(messages), monkeypatch)
    assert not out.refused
    rows = [
        update for message in messages if not isinstance(message, Progress) for update in message
    ]
    found = joined(out.updates).select(["data", "time", "diff"]).to_pydict()
    assert list(zip(found["time"], found["diff"], strict=True)) == [(t, d) for _, t, d in rows]
    for data, (row, _, _) in zip(found["data"], rows, strict=True):
        image, _ = WIDE.image(data)
        values = json.loads(image)
        assert (values["a"], values["c"], values["d"]) == (row[0], row[2], row[3])
        assert values["h"]["z"] == row[7][0]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(STATEMENTS, min_size=1, max_size=3), st.data())
def test_both_ways_agree_on_damaged_bytes(
    monkeypatch: pytest.MonkeyPatch, messages: list[Any], data: st.DataObject
) -> None:
    raw = bytearray(encoded(WIDE, messages) or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(raw)))
    both(WIDE, bytes(raw[:stop]), len(messages), monkeypatch)


def test_a_block_of_which_the_size_is_wrong_is_read_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its items are walked; numbers of nine bytes, which are looked at twice, made it an error of ours."""
    time = b"\x80" * 9 + b"\x01"
    counts = b"\x1b\x80\x01" + bytes(26) + time + b"\x02\x00"  # 14 items, said to take 64 bytes
    raw = b"\x02\x02\x80\x01\x00\x02\x80\x80\x01\x00" + counts
    assert both(WIDE, raw, 1, monkeypatch).messages == 1


def test_equal_rows_have_equal_bytes_however_they_were_written(way: str) -> None:
    """Overlong numbers are refused; minus zero, other NaNs and blocks of arrays are made canonical."""
    row = (1, None, True, "x", 0.0, math.nan, b"", (None, b"abc"))
    minus = (1, None, True, "x", -0.0, math.nan, b"", (None, b"abc"))
    raw = WIDE.form.encode([Update(row, 1, 1), Update(minus, 1, 1)])
    out = cut(WIDE, raw, 1)
    assert distinct(joined(out.updates)).updates.num_rows == 1
    one = LISTS.form.encode([Update((("a", "b"), (("k", 1), ("l", 2))), 1, 1)])
    text = b"\x02a\x02b"
    split = one.replace(b"\x04" + text + b"\x00", b"\x02\x02a\x03\x04\x02b\x00")
    assert split != one
    found = joined([*cut(LISTS, one, 1).updates, *cut(LISTS, split, 1).updates])
    assert distinct(found).updates.num_rows == 1


def test_a_bad_message_among_good_ones_is_the_only_one_lost(way: str) -> None:
    good = [Update((n, "a", None), n, 1) for n in range(1, 4)]
    zero = SCHEMA.form.encode([Update((9, "z", None), 5, 0)])
    raw = b"".join(SCHEMA.form.encode([each]) for each in good[:2]) + zero
    out = cut(SCHEMA, raw + SCHEMA.form.encode([good[2]]), 4)
    assert joined(out.updates).column("time").to_pylist() == [1, 2, 3]
    [refused] = out.refused
    assert "zero" in refused.reason
    assert refused.raw == zero
    assert out.messages == 4


def test_text_that_is_not_utf8_is_refused(way: str) -> None:
    for text in (b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        raw = bytes(SCHEMA.form.encode([Update((1, "x" * len(text), None), 1, 1)]))
        out = cut(SCHEMA, raw.replace(b"x" * len(text), text), 1)
        assert len(out.refused) == 1, text
    raw = bytes(SCHEMA.form.encode([Update((1, "ä€𝄞", None), 1, 1)]))
    assert not cut(SCHEMA, raw, 1).refused
