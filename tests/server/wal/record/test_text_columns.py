"""Columns of texts in their three forms: each says what the others say."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.columns import NAME_TYPE
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from tailrace_server.wal.record.text_columns import Addresses

texts = st.lists(st.none() | st.text(max_size=5), max_size=20)
lists = st.lists(
    st.none() | st.lists(st.sampled_from(["id", "größe", ""]), max_size=3), max_size=20
)
cuts = st.tuples(st.integers(0, 20), st.integers(0, 20))


def at(addresses: Addresses, row: int, width: int) -> bytes | None:
    """Return what lies at a record's place, ``width`` bytes for each step of its offsets; None for null."""
    if addresses.validity:
        bits = ctypes.string_at(addresses.validity + row // 8, 1)[0]
        if not bits >> row % 8 & 1:
            return None
    start, stop = struct.unpack("<ii", ctypes.string_at(addresses.offsets + 4 * row, 8))
    return ctypes.string_at(addresses.values + width * start, width * (stop - start))


@given(values=texts, cut=cuts, kind=st.sampled_from([pa.utf8(), pa.binary()]))
def test_texts_are_the_same_in_all_forms(
    values: list[str | None], cut: tuple[int, int], kind: pa.DataType
) -> None:
    array = pa.array(values, kind)[slice(*cut)]
    column = Texts.of(array)
    wanted = [None if value is None else value.encode() for value in values[slice(*cut)]]
    assert column.array.equals(array)
    column.array.validate(full=True)
    assert column.values(range(len(wanted))) == wanted
    assert column.values(range(len(wanted) - 1, -1, -2)) == wanted[::-2]
    assert column.all_null == (set(wanted) <= {None})
    addresses = column.addresses
    assert [at(addresses, row, 1) for row in range(len(wanted))] == wanted


@given(values=lists, cut=cuts)
def test_lists_of_names_are_the_same_in_all_forms(
    values: list[list[str] | None], cut: tuple[int, int]
) -> None:
    array = pa.array(values, pa.list_(NAME_TYPE))[slice(*cut)]
    column = NameLists.of(array)
    wanted = values[slice(*cut)]
    assert column.array.to_pylist() == wanted
    column.array.validate(full=True)
    assert column.values(range(len(wanted))) == wanted
    assert column.all_null == all(value is None for value in wanted)
    addresses = column.addresses
    for row, value in enumerate(wanted):
        codes = at(addresses, row, 4)
        found = (
            None
            if codes is None
            else [column.names[code] for (code,) in struct.iter_unpack("<i", codes)]
        )
        assert found == value
