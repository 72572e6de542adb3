"""Columns of captures and frames in messages."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.codecs.columns import (
    binary_array,
    cut_into_messages,
    encode_name_lists,
    equal_elements,
    join_into_messages,
    lengths,
)
from tailrace_server.wal.record.text_columns import NameLists
from tests.server.codecs.batches import CHANGED, capture, columns

frame_lists = st.lists(st.binary(min_size=1, max_size=20), max_size=12)


@given(frames=frame_lists, message_bytes=st.integers(1, 60), skipped=st.integers(0, 2))
def test_cutting_and_joining_give_the_same_messages_each_as_full_as_it_may_be(
    frames: list[bytes], message_bytes: int, skipped: int
) -> None:
    array = pa.array([b"skipped"] * skipped + frames, pa.binary())[skipped:]
    cut, joined = cut_into_messages(array, message_bytes), join_into_messages(frames, message_bytes)
    assert cut.data == joined.data
    assert cut.offsets.tolist() == joined.offsets.tolist()
    assert b"".join(cut.data) == b"".join(frames)
    if frames:
        assert cut.starts == joined.starts
    for start, stop, message in zip(cut.starts, cut.starts[1:], cut.data, strict=False):
        assert message == b"".join(frames[start:stop])
        assert len(message) <= message_bytes or stop == start + 1
        if stop < len(frames):
            assert len(message) + len(frames[stop]) > message_bytes


@given(lists=st.lists(st.none() | st.lists(st.sampled_from("abc"), max_size=3), min_size=1))
def test_each_list_of_names_is_encoded_and_distinct_ones_once(
    lists: list[list[str] | None],
) -> None:
    calls: list[tuple[str, ...] | None] = []

    def encode(names: tuple[str, ...] | None) -> bytes:
        calls.append(names)
        return msgspec.json.encode(names)

    found = encode_name_lists(NameLists.of(pa.array(lists, CHANGED)), encode)
    assert [msgspec.json.decode(each) for each in found.to_pylist()] == lists
    assert len(calls) == len(set(calls))


def test_gathered_captures_have_the_record_that_each_names() -> None:
    batch = columns(
        [capture(key=str(number), after=b"%d" % number) for number in range(3)],
        by_column=False,
        wanted={"before", "after"},
    )
    assert batch.gathered() is batch
    few = replace(
        batch,
        rows=np.array([2, 0, 2], np.int32),
        versions=np.array([7, 8, 9]),
        indexes=np.zeros(3, np.int32),
    )
    found = few.gathered()
    assert found.rows is None
    assert found.keys.array.to_pylist() == ["2", "0", "2"]
    assert [found.texts[name].array.to_pylist() for name in ("before", "after")] == [
        [None] * 3,
        [b"2", b"0", b"2"],
    ]


@pytest.mark.parametrize("values", [[b"a", b"", b"ccc"], [b"a", None, b"ccc"]])
def test_lengths_of_a_slice_are_those_of_its_elements(values: list[bytes | None]) -> None:
    array = pa.array([b"before", *values], pa.binary())[1:]
    assert lengths(array).tolist() == [len(each or b"") for each in values]


def test_binary_arrays_from_sizes_and_from_equal_items() -> None:
    data = np.frombuffer(b"abbb", np.uint8)
    assert binary_array(data, np.array([1, 0, 3])).to_pylist() == [b"a", b"", b"bbb"]
    rows = np.array([(1, 2), (3, 4)], np.dtype([("one", "u1"), ("two", "<u2")]))
    assert equal_elements(rows).to_pylist() == [b"\x01\x02\x00", b"\x03\x04\x00"]
