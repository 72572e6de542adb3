"""The record's columns. Where bodies lie is also tested with whole segments, in `wal/segment`."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace_server.wal.record.columns import (
    BODY_COLUMNS,
    BUFFERS_OF_BODY,
    BUFFERS_OF_HEAD,
    HEAD_COLUMNS,
    RECORD_SCHEMA,
    body_places,
    count_fault,
    lead_text,
    misplaced_body,
    multiplicity_of,
)
from tailrace_server.wal.segment.arrow_ipc import batch_buffers, outline


def test_head_and_body_are_the_columns_of_the_schema_in_order() -> None:
    assert (*HEAD_COLUMNS, *BODY_COLUMNS) == tuple(RECORD_SCHEMA.names)
    batch = pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)
    message = memoryview(batch.serialize())
    buffers = len(batch_buffers(message, outline(message)))
    assert buffers == BUFFERS_OF_HEAD + BUFFERS_OF_BODY * len(BODY_COLUMNS)


@given(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=200))
def test_bodies_lie_where_arrow_writes_them(bodies: list[bytes | None]) -> None:
    batch = pa.record_batch({"after": pa.array(bodies, pa.binary())})
    message = memoryview(batch.serialize())
    bitmap, *others = (at for at, _ in batch_buffers(message, outline(message)))
    nullable = batch.column(0).null_count > 0
    assert tuple(at - bitmap for at in others) == body_places(len(bodies), nullable=nullable)


def test_the_first_body_that_lies_elsewhere_is_named() -> None:
    rows, starts, nullable = 100, [1_000, 3_000, 9_000], 0b101
    buffers = [(0, 0)] * BUFFERS_OF_HEAD
    for place, start in enumerate(starts):
        offsets, values = body_places(rows, nullable=bool(nullable >> place & 1))
        buffers += [(start, offsets), (start + offsets, 404), (start + values, 50)]
    assert misplaced_body(buffers, rows, starts, nullable) is None
    assert misplaced_body(buffers, rows, starts, 0b111) == "before"
    assert misplaced_body(buffers, rows, [1_000, 3_000, 9_008], nullable) == "after"
    moved = [*buffers[:BUFFERS_OF_HEAD], (1_000, 16), (1_024, 404), *buffers[BUFFERS_OF_HEAD + 2 :]]
    assert misplaced_body(moved, rows, starts, nullable) == "change"


@pytest.mark.parametrize(
    ("change", "diff"),
    [
        (b'{"diff":2}', 2),
        (b'{"diff":-1}', -1),
        (b'{"diff": 7 } ', 7),
        (b'{"diff":18446744073709551616}', 2**64),
        (b'{"diff":1e400}', None),
        (b'{"diff":true}', None),
        (b'{"diff":1.0}', None),
        (b'{"diff":1,"price":2}', None),
        (b'{"price":1,"diff":1}', None),
        (b'{"different":1}', None),
        (b"{}", None),
    ],
)
def test_only_a_lone_whole_diff_is_a_multiplicity(change: bytes, diff: int | None) -> None:
    """A row with keys may have a column of that name."""
    assert multiplicity_of(change) == diff


@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,21})(\.[0-9]{1,3})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
)
@example("9223372036854775807")
@example("-9223372036854775809")
def test_a_count_is_a_whole_number_of_64_bits(number: str) -> None:
    """Every number is one, or is refused when it is written; none counts as nothing."""
    change = b'{"diff":%b}' % number.encode()
    is_count = number.lstrip("-").isdigit() and -(2**63) <= int(number) < 2**63
    assert (count_fault(change) is None) == is_count
    if is_count:
        assert multiplicity_of(change) == int(number)


@pytest.mark.parametrize("change", [b'{"diff":"x"}', b'{"diff":1.5,"a":2}', b'{"a":1e400}', b"{"])
def test_what_has_not_the_form_of_a_count_is_none(change: bytes) -> None:
    assert count_fault(change) is None


def test_a_lead_counts_its_records_and_leaves_out_what_is_not_known() -> None:
    assert orjson.loads(lead_text(transaction_id=None, counts={"order": 2, "item": 1})) == {
        "transaction_id": None,
        "mutation_count": 3,
        "counts": {"order": 2, "item": 1},
        "source_count": 3,
    }
    text = lead_text(
        transaction_id="7", counts={}, source_count=4, source={"lsn": 1}, late=True, of=None
    )
    assert orjson.loads(text) == {
        "transaction_id": "7",
        "mutation_count": 0,
        "counts": {},
        "source_count": 4,
        "source": {"lsn": 1},
        "late": True,
    }
