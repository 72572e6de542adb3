"""Outlines of messages, compared with what Arrow itself says of them. Damaged files: ../test_damage.py."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.wal.segment.arrow_ipc import (
    PREFIX_LENGTH,
    MessageKind,
    batch_buffers,
    batch_rows,
    metadata_length,
    number_places,
    outline,
)

rows = st.lists(
    st.tuples(st.none() | st.integers(0, 99), st.none() | st.text(max_size=9)), max_size=12
)


def message_of(values: list[tuple[int | None, str | None]]) -> bytes:
    numbers, texts = [number for number, _ in values], [text for _, text in values]
    arrays = [pa.array(numbers, pa.int64()), pa.array(texts, pa.utf8())]
    data: bytes = pa.RecordBatch.from_arrays(arrays, ["number", "text"]).serialize().to_pybytes()
    return data


@given(rows)
@settings(max_examples=10)
def test_a_batch_is_outlined_as_arrow_reads_it(values: list[tuple[int | None, str | None]]) -> None:
    data = message_of(values)
    message = outline(data)
    known = pa.ipc.read_message(data)
    assert message.kind is MessageKind.BATCH
    assert (message.length, message.body_start) == (len(data), len(data) - known.body.size)
    assert batch_rows(data, message) == len(values)
    buffers = batch_buffers(data, message)
    assert len(buffers) == 5  # validity and numbers; validity, offsets and bytes
    assert all(at % 8 == 0 and at + length <= len(data) for at, length in buffers)
    texts = b"".join((text or "").encode() for _, text in values)
    at, length = buffers[-1]
    assert data[at : at + length] == texts


def test_schema_and_dictionary_are_told_apart_and_only_the_head_is_needed() -> None:
    column = pa.array(["a"], pa.dictionary(pa.int32(), pa.utf8()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("name", column.type)])) as writer:
        writer.write(pa.record_batch([column], ["name"]))
    data, kinds = sink.getvalue().to_pybytes(), []
    while struct.unpack_from("<i", data, 4)[0]:  # a stream ends with a length of 0
        head = data[: metadata_length(data)]
        message = outline(head)
        assert message == outline(data)
        kinds.append(message.kind)
        data = data[message.length :]
    assert kinds == [MessageKind.SCHEMA, MessageKind.DICTIONARY, MessageKind.BATCH]


def test_the_numbers_stand_where_they_are_said_to_be() -> None:
    data = message_of([(1, "one"), (None, None), (3, "three")])
    places = number_places(data)

    def numbers(place: int, count: int) -> list[int]:
        return [*struct.unpack_from(f"<{count}q", data, place)]

    message = outline(data)
    assert numbers(places.body_length, 1) == [message.length - message.body_start]
    assert numbers(places.rows, 1) == [3]
    assert numbers(places.nodes, 4) == [3, 1, 3, 1]
    start = message.body_start
    flat = [
        number for at, length in batch_buffers(data, message) for number in (at - start, length)
    ]
    assert numbers(places.buffers, 10) == flat


@pytest.mark.parametrize(
    "head",
    [struct.pack("<Ii", 0xFFFFFFFF, size) for size in (0, -8)] + [struct.pack("<Ii", 0, 16)],
)
def test_what_is_no_message_is_refused(head: bytes) -> None:
    assert metadata_length(struct.pack("<Ii", 0xFFFFFFFF, 16)) == PREFIX_LENGTH + 16
    with pytest.raises(ValueError, match="not an Arrow IPC message"):
        metadata_length(head)
