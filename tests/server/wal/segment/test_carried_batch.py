"""Messages written without Arrow, read by Arrow. That whole segments are the usual ones: test_carried.py."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from tailrace_server.wal.record.columns import RECORD_SCHEMA
from tailrace_server.wal.segment.arrow_ipc import batch_buffers, outline
from tailrace_server.wal.segment.carried import CarriedBatch, carried_batch

NAMES = ["order", "größe"]


def made(texts: list[Any], *, version: int = 0) -> CarriedBatch:
    """Return rows whose nullable columns are all null in the same rows."""
    count = len(texts)
    images = [None if text is None else text.encode() for text in texts]
    return carried_batch(
        [
            *([version] * count, range(count), [2] * count, [1] * count),
            *([None] * count, texts, [None] * count, images, images, images),
        ],
        [None if text is None else 1 for text in texts],
        [2**64 - 1] * count,
        [None if text is None else [1, 0] for text in texts],
    )


def read(data: bytes) -> pa.RecordBatch:
    """Read a message behind the schema and the dictionaries of a stream that Arrow wrote."""
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), NAMES)
        if pa.types.is_dictionary(field.type)
        else pa.array([[NAMES[0]]], field.type)
        if pa.types.is_list(field.type)
        else pa.array([None], field.type)
        for field in RECORD_SCHEMA
    ]
    changed = RECORD_SCHEMA.get_field_index("changed")
    names = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), NAMES)
    columns[changed] = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORD_SCHEMA) as writer:
        writer.write(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))
        sink.write(data)
    _, batch = pa.ipc.open_stream(sink.getvalue())
    return batch


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_nulls_are_right_at_the_borders_of_a_bitmaps_bytes(count: int) -> None:
    for null in {0, 7, 8, count - 1} & {*range(count)}:
        texts = [None if row == null else f"ключ {row}" for row in range(count)]
        batch = read(made(texts).data)
        batch.validate(full=True)
        assert batch["primary_key"].to_pylist() == texts
        assert batch["entity_type"].to_pylist() == [text and "größe" for text in texts]
        assert batch["changed"].to_pylist() == [text and ["größe", "order"] for text in texts]
        assert batch["after"].to_pylist() == [text and text.encode() for text in texts]
        assert batch["key_hash"].to_pylist() == [2**64 - 1] * count


@pytest.mark.parametrize("texts", [[None], [""], ["a", None, ""], ["x" * 8] * 9])
def test_the_buffers_are_where_the_message_says(texts: list[str | None]) -> None:
    carried = made(texts)
    message = outline(carried.data)
    assert carried.buffers == batch_buffers(carried.data, message)
    assert message.length == len(carried.data)


def test_a_number_that_its_column_cannot_hold_is_refused_and_not_cut() -> None:
    assert read(made(["a"], version=2**63 - 1).data)["version"].to_pylist() == [2**63 - 1]
    with pytest.raises(struct.error):
        made(["a"], version=2**63)
