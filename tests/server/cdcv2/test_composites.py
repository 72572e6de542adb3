"""Types with parts; whole messages of all types are tested in `test_form.py`."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest

from tailrace_server.cdcv2 import DataMisfit, Tagged
from tailrace_server.cdcv2.composites import skip_blocks
from tailrace_server.cdcv2.scalars import LONG
from tailrace_server.cdcv2.schema import compile_type

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
ROW = (7, ((("a", 1), ("b", 2)), ()), "x")
JSON = {"id": 7, "lines": [{"b": 2, "a": 1}, {}], "note": {"string": "x"}}


def encoded(schema: object, value: object) -> bytes:
    out = bytearray()
    compile_type(schema).encode(value, out)
    return bytes(out)


def test_a_row_has_the_bytes_that_the_avro_library_reads() -> None:
    kind, raw = compile_type(ORDER), encoded(ORDER, ROW)
    decoded = fastavro.schemaless_reader(BytesIO(raw), ORDER, None, return_named_type=True)
    assert kind.row(decoded) == ROW
    assert kind.skip(raw, 0) == len(raw)


def test_a_row_has_a_form_in_json() -> None:
    kind = compile_type(ORDER)
    assert kind.of_json(JSON) == ROW
    assert kind.to_json(ROW) == JSON
    assert kind.of_json({**JSON, "note": None}) == (*ROW[:2], None)


def test_equal_maps_are_equal_rows_whatever_their_order() -> None:
    kind = compile_type({"type": "map", "values": "long"})
    assert kind.row({"b": 1, "a": 2}) == kind.row({"a": 2, "b": 1}) == (("a", 2), ("b", 1))


@pytest.mark.parametrize(
    ("branches", "decoded", "row"),
    [
        (["null", "int"], None, None),
        (["null", "int"], 1, 1),
        (["int", "string"], "1", "1"),
        (["int", "double"], 1, Tagged("int", 1)),
        (["int", "double"], 1.0, Tagged("double", 1.0)),
        (["boolean", "long"], True, Tagged("boolean", True)),
        (["int", "long"], ("long", 1), Tagged("long", 1)),
    ],
)
def test_a_union_is_tagged_if_its_branches_could_give_equal_rows(
    branches: list[str], decoded: object, row: object
) -> None:
    kind = compile_type(branches)
    assert kind.row(decoded) == row
    out = bytearray()
    kind.encode(row, out)
    assert kind.skip(bytes(out), 0) == len(out)
    assert kind.of_json(kind.to_json(row)) == row


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((7, (), None, 1), "is not a tuple of 3 fields"),
        ((7, ((("a", 1), ("b", "2")),), None), r"\.lines\[0\]\['b'\]: '2' is no int"),
        ((7, ((("a",),),), None), r"\.lines\[0\]: \('a',\) is not a pair"),
        ((7, [], None), r"\.lines: \[\] is not a tuple of items"),
        ((7, (), 1), r"\.note: 1 is none of null, string"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_place(row: object, reason: str) -> None:
    with pytest.raises(DataMisfit, match=reason):
        encoded(ORDER, row)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "is not an object"),
        ({"id": 7}, r"\.lines: the field is missing"),
        ({**JSON, "price": 1}, r"\.price: the schema has no such field"),
        ({**JSON, "lines": {}}, r"\.lines: \{\} is no list"),
        ({**JSON, "lines": [[]]}, r"\.lines\[0\]: \[\] is not an object"),
        ({**JSON, "note": "x"}, r"\.note: 'x' is neither null nor an object of one branch"),
        ({**JSON, "note": {"int": 1}}, r"\.note: 'int' is no branch; there are null, string"),
        ({**JSON, "note": {"string": 1}}, r"\.note\.string: 1 is no string"),
    ],
)
def test_json_that_does_not_fit_is_refused_by_its_place(value: object, reason: str) -> None:
    with pytest.raises(DataMisfit, match=reason):
        compile_type(ORDER).of_json(value)


def test_a_tagged_row_names_a_branch() -> None:
    for row in (1, Tagged("string", "x")):
        with pytest.raises(DataMisfit, match="is no Tagged of one of int, double"):
            encoded(["int", "double"], row)


def test_a_union_has_no_branch_beyond_its_last() -> None:
    with pytest.raises(DataMisfit, match="the union at byte 0 has no branch 2"):
        compile_type(["null", "int"]).skip(b"\x04", 0)


def test_blocks_may_have_a_size_and_end_with_an_empty_one() -> None:
    """Two blocks, one of them with its size in bytes: -2, 3 bytes; 1; the end."""
    raw = b"\x03\x06\x02\x80\x01" + b"\x02\x02" + b"\x00"
    assert skip_blocks(raw + b"?", 0, LONG.skip) == len(raw)
