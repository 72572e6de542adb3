"""Messages as bytes and as JSON, for any record schema."""

from __future__ import annotations

import contextlib
import math
import pickle
from io import BytesIO
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import Progress, Reader, Update
from tailrace_server.cdcv2 import (
    AvroForm,
    DataMisfit,
    MessageUnreadable,
    Tagged,
    read_line,
    write_line,
)
from tests.server.cdcv2.documented import SCHEMA

FORM = AvroForm.of(SCHEMA)
ONE = [Update((5, 10), 5, 1)]

EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "row",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "null"},
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "y", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
        {"name": "s", "type": "string"},
        {"name": "x", "type": {"type": "fixed", "name": "pair", "size": 2}},
        {"name": "e", "type": {"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]}},
        {"name": "a", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "o", "type": ["null", "string"]},
        {
            "name": "u",
            "type": [
                "null", "boolean", "int", "long", "float", "double", "string", "bytes", "pair",
                "shop.colour", "row", {"type": "map", "values": "row"},
                {"type": "array", "items": "int"},
            ],
        },
    ],
}  # fmt: skip
WIDE = AvroForm.of_data(EVERYTHING)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
PAIRS = st.binary(min_size=2, max_size=2)
COLOURS = st.sampled_from(["RED", "BLUE"])


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.dictionaries(TEXTS, values, max_size=3)
    return pairs.map(lambda found: tuple((key, found[key]) for key in sorted(found)))


def rows_with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": INTS,
        "long": LONGS,
        "float": FLOATS,
        "double": st.floats(),
        "string": TEXTS,
        "bytes": st.binary(max_size=4),
        "shop.pair": PAIRS,
        "shop.colour": COLOURS,
        "shop.row": inner,
        "map": maps(inner),
        "array": st.lists(INTS, max_size=3).map(tuple),
    }
    union = st.one_of(
        [st.builds(Tagged, st.just(name), values) for name, values in branches.items()]
    )
    return st.tuples(
        st.none(),
        st.booleans(),
        INTS,
        LONGS,
        FLOATS,
        st.floats(),
        st.binary(max_size=4),
        TEXTS,
        PAIRS,
        COLOURS,
        st.lists(st.none() | st.floats(), max_size=3).map(tuple),
        maps(LONGS),
        st.none() | TEXTS,
        union,
    )


LEAF = (None, True, 0, 0, 0.0, 0.0, b"", "", b"ab", "RED", (), (), None, Tagged("null", None))
ROWS = st.recursive(st.just(LEAF), rows_with, max_leaves=4)
TIMES = st.integers(0, 2**63 - 1)
STATEMENTS: st.SearchStrategy[Any] = st.one_of(
    st.lists(st.builds(Update, ROWS, TIMES, LONGS), max_size=4),
    st.builds(
        Progress,
        st.lists(TIMES, max_size=2).map(tuple),
        st.lists(TIMES, max_size=2).map(tuple),
        st.lists(st.tuples(TIMES, TIMES), max_size=3).map(tuple),
    ),
)


@settings(max_examples=150)
@given(STATEMENTS)
def test_every_statement_of_every_type_comes_back(statement: Any) -> None:
    """By its text, since NaN is equal to nothing; and equal to itself, which a reader relies on."""
    raw = WIDE.encode(statement)
    decoded = WIDE.decode(raw)
    assert repr(decoded) == repr(statement)
    assert decoded == WIDE.decode(raw)
    assert read_line(WIDE, write_line(WIDE, statement)) == decoded
    if not isinstance(decoded, Progress):
        for update in decoded:
            assert WIDE.row_of_text(WIDE.text_of_row(update.data)) == update.data
            assert hash(update.data) == hash(WIDE.row_of_text(WIDE.text_of_row(update.data)))


@settings(max_examples=100)
@given(STATEMENTS)
def test_the_avro_library_reads_the_same_messages(statement: Any) -> None:
    stream = BytesIO(WIDE.encode(statement))
    read: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(WIDE.schema), None)
    assert stream.read() == b""
    if isinstance(statement, Progress):
        assert tuple(read["lower"]) == statement.lower
    else:
        assert [each["data"]["l"] for each in read] == [each.data[3] for each in statement]


@settings(max_examples=100)
@given(STATEMENTS, st.data())
def test_a_cut_or_changed_message_is_refused_or_another_message(statement: Any, data: Any) -> None:
    raw = WIDE.encode(statement)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(MessageUnreadable):
        WIDE.decode(raw[:cut])
    with pytest.raises(MessageUnreadable):
        WIDE.decode(raw + b"\x00")
    changed = bytearray(raw)
    changed[cut] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(MessageUnreadable):
        WIDE.decode(bytes(changed))


def test_a_record_with_nan_equals_its_duplicate() -> None:
    form = AvroForm.of_data(
        {"type": "record", "name": "data", "fields": [{"name": "x", "type": "double"}]}
    )
    raw, reader = form.encode([Update((math.nan,), 0, 1)]), Reader()
    reader.receive(form.decode(raw))
    reader.receive(form.decode(raw))
    assert reader.statistics().held_updates == 1


NODE = AvroForm.of_data(
    {
        "type": "record",
        "name": "data",
        "fields": [{"name": "n", "type": "long"}, {"name": "next", "type": ["null", "data"]}],
    }
)


def chain(length: int) -> bytes:
    """Return the message of one update whose row holds a row, and so on."""
    return b"\x00\x02" + b"\x00\x02" * length + b"\x00\x00" + b"\x00\x02" + b"\x00"


@pytest.mark.parametrize("length", [101, 400, 1_000_000])
def test_a_row_that_nests_without_end_is_refused(length: int) -> None:
    """The Avro library would run off the stack, and take the process with it."""
    with pytest.raises(MessageUnreadable, match=r"nest\w+ more than 100 deep"):
        NODE.decode(chain(length))
    text = '{"n":0,"next":{"data":' * length + '{"n":0,"next":null}' + "}}" * length
    with pytest.raises(MessageUnreadable):
        read_line(NODE, f'{{"array":[{{"data":{text},"time":0,"diff":1}}]}}')
    (update,) = cast("list[Update[int]]", NODE.decode(chain(98)))
    assert NODE.decode(NODE.encode([update])) == [update]


def test_a_form_goes_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(WIDE))
    assert again.schema == WIDE.schema
    assert again.decode(WIDE.encode([Update(LEAF, 3, 1)])) == [Update(LEAF, 3, 1)]


def test_rows_and_records() -> None:
    assert FORM.record_of((5, None)) == {"id": 5, "price": None}
    assert FORM.row_of({"price": None, "id": 5}) == (5, None)
    with pytest.raises(DataMisfit, match=r"\.price: the field is missing"):
        FORM.row_of({"id": 5})
    with pytest.raises(DataMisfit, match=r"\.colour: the schema has no such field"):
        FORM.row_of({"id": 5, "price": None, "colour": "red"})


MISFITS: list[tuple[Any, str]] = [
    ([Update(("5", 1), 0, 1)], "[0].data.id: '5' is no long"),
    ([*ONE, Update((5, 2**31), 0, 1)], "[1].data.price: 2147483648 is beyond a int"),
    ([Update((5, "x"), 0, 1)], "[0].data.price: 'x' is none of null, int"),
    ([Update((5, 1.5), 0, 1)], "[0].data.price: 1.5 is no int"),
    ([Update((True, 1), 0, 1)], "[0].data.id: True is no long"),
    ([Update((5,), 0, 1)], "[0].data: (5,) is not a tuple of 2 fields"),
    ([Update(cast("Any", {"id": 5}), 0, 1)], "[0].data: {'id': 5} is not a tuple of 2 fields"),
    ([Update((2**63, 1), 0, 1)], "[0].data.id: 9223372036854775808 is beyond a long"),
    ([Update((5, 1), 2**63, 1)], "[0].time: 9223372036854775808 is beyond a long"),
    ([Update((5, 1), 0, -(2**63) - 1)], "[0].diff: -9223372036854775809 is beyond a long"),
    (Progress((0,), (2**64,), ()), ".upper[0]: 18446744073709551616 is beyond a long"),
    (Progress((0,), (), ((1, cast("Any", "x")),)), ".counts[0].count: 'x' is no long"),
]


@pytest.mark.parametrize(("statement", "place"), MISFITS)
def test_what_does_not_fit_is_refused_by_its_place(statement: Any, place: str) -> None:
    for write in (FORM.encode, lambda each: write_line(FORM, each)):
        with pytest.raises(DataMisfit) as caught:
            write(statement)
        assert str(caught.value) == place


LONG_TOO_LONG = b"\xff" * 9 + b"\x03"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "it is empty"),
        (b"PAR1 and so on", "it begins with 50, neither"),
        (b"\x04", "it begins with 04, neither"),
        (b"\x00", "it ends in the middle"),
        (b"\x00\x02\x0a\x02\x14", "it ends in the middle"),
        (b"\x00\x02\x0a\x08\x14\x0a\x02\x00", "it ends in the middle, or names a branch"),
        (b"\x00\x02\x0a\x02\x14\x0a\x02\x00\x00", "1 bytes behind the message"),
        (b"\x00\x02" + LONG_TOO_LONG + b"\x02\x14\x0a\x02\x00", "byte 2 is beyond a long"),
        (b"\x00\x02\x0a\x02\x14" + LONG_TOO_LONG + b"\x02\x00", "byte 5 is beyond a long"),
        (b"\x02\x02\x00\x00\x02" + LONG_TOO_LONG + b"\x00\x00", "byte 5 is beyond a long"),
        (b"\x02\x02\x00\x00\x02" + b"\xff" * 12 + b"\x01\x00\x00", "byte 5 is beyond a long"),
    ],
)
def test_bytes_that_are_no_message_are_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(MessageUnreadable, match=reason):
        FORM.decode(raw)


def test_the_smallest_and_the_largest_number_are_read() -> None:
    statement = [Update((-(2**63), None), 2**63 - 1, -(2**63))]
    assert FORM.decode(FORM.encode(statement)) == statement
