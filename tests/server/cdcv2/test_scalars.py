"""Types without parts; whole messages of all types are tested in `test_form.py`."""

from __future__ import annotations

import json
import math
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.cdcv2.errors import DataMisfit
from tailrace_server.cdcv2.scalars import LONG, NAN, PRIMITIVES, AvroType, EnumType, Fixed

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(st.characters(codec="utf-8"), max_size=100),
}


def encoded(kind: AvroType, value: object) -> bytes:
    out = bytearray()
    kind.encode(value, out)
    return bytes(out)


@pytest.mark.parametrize("name", VALUES)
def test_values_are_encoded_as_the_avro_library_does_and_skipped_whole(name: str) -> None:
    @given(VALUES[name])
    def holds(value: Any) -> None:
        kind, theirs = PRIMITIVES[name], BytesIO()
        fastavro.schemaless_writer(theirs, {"type": name}, value)
        raw = encoded(kind, value)
        assert raw == theirs.getvalue()
        assert kind.skip(b"?" + raw + b"?", 1) == 1 + len(raw)
        assert repr(kind.of_json(json.loads(json.dumps(kind.to_json(value))))) == repr(value)

    holds()


def test_every_nan_is_one_object_so_that_rows_are_equal() -> None:
    double = PRIMITIVES["double"]
    other = float("nan")
    assert (double.row(other), 1) == (double.of_json("NaN"), 1) == (NAN, 1)
    assert double.to_json(other) == "NaN"
    assert [double.to_json(double.of_json(text)) for text in ("Infinity", "-Infinity")] == [
        "Infinity",
        "-Infinity",
    ]
    assert math.copysign(1, double.row(-0.0)) == -1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("null", 0),
        ("boolean", 1),
        ("int", 2**31),
        ("int", True),
        ("long", -(2**63) - 1),
        ("long", 1.0),
        ("float", 1e39),
        ("float", "1"),
        ("double", True),
        ("bytes", "text"),
        ("string", b"bytes"),
        ("string", "\ud800"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(DataMisfit):
        encoded(PRIMITIVES[name], value)


@pytest.mark.parametrize("number", [0, 63, 64, -64, -65, 2**63 - 1, -(2**63)])
def test_a_number_is_read_with_the_place_behind_it(number: int) -> None:
    raw = encoded(LONG, number)
    assert LONG.read(b"??" + raw + b"?", 2) == (number, 2 + len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 9 + b"\x03",  # 65 bits
        b"\x80" * 10 + b"\x01",
        b"\x80" * 12,
    ],
)
def test_a_number_beyond_64_bits_is_refused_by_its_place(raw: bytes) -> None:
    with pytest.raises(DataMisfit, match="number at byte 1 is beyond a long"):
        LONG.skip(b"?" + raw, 1)


def test_a_number_that_is_cut_off_is_no_number() -> None:
    with pytest.raises(IndexError):
        LONG.skip(b"\x80", 0)


def test_the_bytes_of_a_text_are_its_characters() -> None:
    raw = bytes(range(256))
    kind = PRIMITIVES["bytes"]
    assert kind.of_json(kind.to_json(raw)) == raw
    with pytest.raises(DataMisfit, match="stand for no byte"):
        kind.of_json("Ā")


def test_a_length_is_not_negative_and_its_bytes_are_there() -> None:
    for name in ("bytes", "string"):
        with pytest.raises(DataMisfit, match="length -1 at byte 1 is negative"):
            PRIMITIVES[name].skip(b"\x01", 0)
        with pytest.raises(IndexError):
            PRIMITIVES[name].skip(b"\x04a", 0)


def test_fixed_and_enum_take_what_their_schema_says() -> None:
    pair, colour = Fixed("shop.pair", 2), EnumType("shop.colour", ["RED", "BLUE"])
    assert encoded(pair, b"ab") == b"ab"
    assert encoded(colour, "BLUE") == b"\x02"
    assert (pair.skip(b"abc", 0), colour.skip(b"\x02", 0)) == (2, 1)
    with pytest.raises(DataMisfit, match="is not 2 bytes"):
        pair.of_json("abc")
    with pytest.raises(DataMisfit, match=r"'GREEN' is not a symbol of shop\.colour"):
        encoded(colour, "GREEN")
    with pytest.raises(DataMisfit, match=r"shop\.colour has no symbol 2"):
        colour.skip(b"\x04", 0)
    with pytest.raises(DataMisfit, match="2 is no boolean"):
        PRIMITIVES["boolean"].skip(b"\x02", 0)
