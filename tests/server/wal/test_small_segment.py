"""Segments of small commits are the files that SegmentWriter makes, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogFull
from tailrace_server.wal.record import RECORD_SCHEMA
from tailrace_server.wal.segment import SegmentWriter
from tailrace_server.wal.small_segment import ROWS_MAX, write_small_segment
from tailrace_server.wal.verify import verify
from tailrace_server.wal.writer import LogWriter
from tests.server.wal.logs import armed, rows_of, transactions_in, update, upsert

if TYPE_CHECKING:
    from tailrace_server.wal.segment import SegmentReceipt

NAMES = [name for name in RECORD_SCHEMA.names if name != "key_hash"]
PLAIN = {"entity_type": pa.utf8(), "changed": pa.list_(pa.utf8())}
LEAD = (3, 3, None, None, None, None, None, b'{"mutation_count":0}')

images = st.none() | st.binary(max_size=40)
names = st.sampled_from(["id", "preis", "größe", "x" * 30])
mutations = st.tuples(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.none() | st.sampled_from(["order", "customer", "", "straße"]),
    st.none() | st.text(max_size=20),
    st.none() | st.lists(names, max_size=3).map(tuple),
    images,
    images,
    images,
)


def both(folder: Path, rows: list[tuple[Any, ...]]) -> tuple[SegmentReceipt, SegmentReceipt]:
    """Write the same rows both ways, under two names."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    kinds = [PLAIN.get(name, RECORD_SCHEMA.field(name).type) for name in NAMES]
    small = write_small_segment(folder / "segments" / "1" / "small.arrow", columns)
    with SegmentWriter(folder / "segments" / "1" / "usual.arrow") as writer:
        arrays = [pa.array(*each) for each in zip(columns, kinds, strict=True)]
        writer.write(pa.RecordBatch.from_arrays(arrays, NAMES))
        return small, writer.close()


@settings(deadline=None)
@given(transactions=st.lists(st.lists(mutations, max_size=6), min_size=1, max_size=6))
def test_the_bytes_and_the_receipt_are_those_of_the_usual_writer(
    transactions: list[list[tuple[Any, ...]]],
) -> None:
    rows = [
        (version, index, *row)
        for version, transaction in enumerate(transactions)
        for index, row in enumerate([LEAD, *transaction])
    ]
    with TemporaryDirectory() as folder:
        small, usual = both(Path(folder), rows)
        files = [(Path(folder) / each.path).read_bytes() for each in (small, usual)]
    assert files[0] == files[1]
    assert replace(small, path=usual.path) == usual


@pytest.mark.parametrize("rows", [ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1])
def test_a_commit_at_the_bound_reads_the_same(log_root: Path, rows: int) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        keys = [str(number) for number in range(rows - 1)]
        writer.append([update(key, 1, 2) for key in keys])
    found = rows_of(log_root / "shop")
    assert [row[7] for row in found] == [None, *keys]
    assert found[1][8] == ["value"]
    assert verify(log_root / "shop").sound


def test_large_images_go_the_usual_way(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        large = b'{"text":"%s"}' % (b"x" * (5 << 20))
        writer.append([replace(upsert("1"), after=large), upsert("2")])
    assert [len(row[11]) for row in rows_of(log_root / "shop")][1] == len(large)
    assert verify(log_root / "shop").sound


def test_a_small_segment_that_finds_no_room_leaves_nothing(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    writer.append([upsert("1")])
    with armed("segment.before_rename=enospc"), pytest.raises(LogFull):
        writer.commit()
    assert list((log_root / "shop" / "segments" / "1").iterdir()) == []
    writer.commit()
    writer.publish()
    writer.close()
    assert transactions_in(rows_of(log_root / "shop")) == ["1"]
