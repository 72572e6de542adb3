"""Segments: what is written is what is read, by our reader and by Arrow's."""

from __future__ import annotations

import os
import pickle
import resource
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogFull
from tailrace_server.wal.record.columns import BATCH_BYTES_MAX, BODY_COLUMNS, NAME_TYPE
from tailrace_server.wal.segment import writer as segment_writer
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tailrace_server.wal.state.batch_table import BATCH_FIELDS, BatchTable, batch_ref
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import armed, batch_rows, rows_of, segment_path, write, write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BASE_VERSION = 17
names = st.text(max_size=6)
images = st.none() | st.binary(max_size=30)


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "area": draw(st.sampled_from([1, 2])),
        "operation": draw(st.sampled_from([1, 2, 4])),
        "entity_type": draw(names),
        "primary_key": draw(st.none() | st.text(max_size=20)),
        "changed": draw(st.none() | st.lists(names, max_size=4)),
        "change": draw(images),
        "before": draw(images),
        "after": draw(images),
    }


LEAD = dict.fromkeys(("entity_type", "primary_key", "changed", "change", "before")) | {
    "area": 3,
    "operation": 3,
    "after": b"{}",
}


def numbered(transactions: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the records of transactions, a lead before each."""
    return [
        {"version": version, "index": index, **record}
        for version, mutations in enumerate(transactions)
        for index, record in enumerate([LEAD, *mutations])
    ]


def table_of(rows: Sequence[dict[str, Any]], name_type: pa.DataType) -> pa.Table:
    schema = pa.schema(
        {
            "version": pa.int64(),
            "index": pa.int32(),
            "area": pa.uint8(),
            "operation": pa.uint8(),
            "entity_type": name_type,
            "primary_key": pa.utf8(),
            "changed": pa.list_(name_type),
            "change": pa.binary(),
            "before": pa.binary(),
            "after": pa.binary(),
        }
    )
    return pa.Table.from_pylist(list(rows), schema=schema)


def refs_of(receipt: SegmentReceipt) -> list[BatchRef]:
    """Return the batches of a receipt as a log that begins with it would name them."""
    columns = np.array(receipt.batches, np.int64).reshape(-1, len(BATCH_FIELDS) - 1).T
    first_rows = np.cumsum(columns[3]) - columns[3]
    table = BatchTable()
    segment = SegmentRef(receipt.path, BASE_VERSION, receipt.prefix)
    table.append_segment(segment, np.concatenate([columns, first_rows[None, :]]))
    return [batch_ref(table.segments, table.columns, place) for place in range(len(table))]


def read_back(catalog: Path, receipt: SegmentReceipt) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with BatchReader(catalog) as reader:
        for ref in refs_of(receipt):
            head, body = reader.head(ref), reader.body(ref, BODY_COLUMNS)
            head.changed.validate(full=True)
            head.primary_keys.validate(full=True)
            columns = {
                "version": (head.versions - BASE_VERSION).tolist(),
                "index": head.indexes.tolist(),
                "area": head.areas.tolist(),
                "operation": head.operations.tolist(),
                "entity_type": [
                    head.entity_types[code] if code >= 0 else None
                    for code in head.type_codes.tolist()
                ],
                "primary_key": head.primary_keys.to_pylist(),
                "changed": head.changed.to_pylist(),
                **{name: column.to_pylist() for name, column in body.items()},
            }
            rows += [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
    return rows


@settings(max_examples=60)
@given(
    transactions=st.lists(st.lists(mutations(), max_size=5), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    encoded=st.booleans(),
)
def test_what_is_written_is_what_is_read(
    transactions: list[list[dict[str, Any]]], cuts: list[int], encoded: bool
) -> None:
    rows = numbered(transactions)
    table = table_of(rows, NAME_TYPE if encoded else pa.utf8())
    with TemporaryDirectory() as folder:
        path = segment_path(Path(folder), "w-0-a.arrow")
        writer = SegmentWriter(path, fsync=False)
        borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for start, stop in pairwise(borders):
            writer.write(table.slice(start, stop - start))
        receipt = writer.close()
        assert pickle.loads(pickle.dumps(receipt)) == receipt
        assert read_back(Path(folder), receipt) == rows
        whole = pa.ipc.open_file(path.read_bytes()).read_all()
        assert whole.drop(["key_hash"]).to_pylist() == rows
        assert receipt.rows == len(rows)
        assert receipt.transactions == len(transactions)
        assert receipt.bytes == path.stat().st_size
        mutated = [row["entity_type"] for row in rows if row["index"]]
        assert {name: count for name, count in receipt.counts.items() if count} == {
            name: mutated.count(name) for name in set(mutated)
        }


def simple_rows(count: int, after: bytes = b"{}", per_version: int = 3) -> pa.Table:
    places = np.arange(count)
    return pa.table(
        {
            "version": places // per_version,
            "index": (places % per_version).astype(np.int32),
            "area": np.full(count, 2, np.uint8),
            "operation": np.full(count, 1, np.uint8),
            "entity_type": pa.array(["t"] * count),
            "primary_key": pa.array([str(place) for place in places]),
            "after": pa.array([after] * count, pa.binary()),
        }
    )


def test_batches_close_at_16384_rows_also_over_several_writes(tmp_path: Path) -> None:
    with SegmentWriter(segment_path(tmp_path, "a.arrow")) as writer:
        table = simple_rows(50_000)
        for start in range(0, 50_000, 20_000):
            writer.write(table.slice(start, 20_000))
        receipt = writer.close()
    rows = [ref.rows for ref in refs_of(receipt)]
    assert rows == [16_384] * 3 + [50_000 - 3 * 16_384]
    read = read_back(tmp_path, receipt)
    assert [row["primary_key"] for row in read] == [str(place) for place in range(50_000)]


@pytest.mark.parametrize("name", ["a", ""])
def test_names_may_come_after_batches_without_any(tmp_path: Path, name: str) -> None:
    leads = simple_rows(10_000, per_version=1)
    leads = leads.set_column(4, "entity_type", pa.nulls(10_000, pa.string()))
    others = simple_rows(20_000, per_version=1).slice(10_000)
    others = others.append_column("changed", pa.array([[name]] * 10_000, pa.list_(pa.string())))
    with SegmentWriter(segment_path(tmp_path, "a.arrow")) as writer:
        writer.write(leads)
        writer.write(others)
        receipt = writer.close()
    assert receipt.counts == {"t": 10_000}
    read = read_back(tmp_path, receipt)
    assert [row["entity_type"] for row in read] == [None] * 10_000 + ["t"] * 10_000
    assert [row["changed"] for row in read] == [None] * 10_000 + [[name]] * 10_000


def test_batches_close_at_4_mebibytes_and_a_larger_record_is_alone(tmp_path: Path) -> None:
    table = simple_rows(10, after=bytes(1 << 20))
    large = simple_rows(13, after=b"")
    with SegmentWriter(segment_path(tmp_path, "a.arrow")) as writer:
        writer.write(table)
        row = large.slice(10, 1).set_column(6, "after", [pa.array([bytes(5 << 20)], pa.binary())])
        writer.write(row)
        writer.write(large.slice(11))
        receipt = writer.close()
    refs = refs_of(receipt)
    assert [ref.rows for ref in refs] == [3, 3, 3, 1, 1, 2]
    assert all(ref.length <= BATCH_BYTES_MAX + 4096 for ref in refs if ref.rows > 1)
    assert [len(row["after"]) for row in read_back(tmp_path, receipt)] == [1 << 20] * 10 + [
        5 << 20,
        0,
        0,
    ]


@given(
    count=st.integers(2, 600),
    batch_bytes=st.integers(100, 20_000),
    nulls=st.integers(2, 5),
)
def test_contract_33_bodies_with_nulls_are_read_right_wherever_a_batch_is_cut(
    count: int, batch_bytes: int, nulls: int
) -> None:
    """Arrow writes the bitmap of more rows than a batch has where the batch is the beginning of them."""
    bodies = [None if place % nulls == 0 else b"%d" % place for place in range(count)]
    table = simple_rows(count).append_column("before", [pa.array(bodies, pa.binary())])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_writer, "BATCH_BYTES_MAX", batch_bytes)
        path = segment_path(Path(folder), "a.arrow")
        with SegmentWriter(path, fsync=False) as writer:
            writer.write(table)
            receipt = writer.close()
        read = read_back(Path(folder), receipt)
        assert [row["before"] for row in read] == bodies


def test_rows_that_are_not_dense_and_in_order_are_refused(tmp_path: Path) -> None:
    table = simple_rows(9)
    for place, wrong in enumerate(
        [
            table.take([0, 2]),
            table.take([1, 0]),
            table.take([0, 1, 2, 6]),
            table.take([0, 1, 1]),
            table.slice(3),
        ]
    ):
        with (
            SegmentWriter(segment_path(tmp_path, f"{place}.arrow")) as writer,
            pytest.raises(ValueError, match="records must be consecutive"),
        ):
            writer.write(wrong)


def test_a_segment_may_continue_the_transaction_of_the_one_before(tmp_path: Path) -> None:
    rows = simple_rows(9)
    with SegmentWriter(segment_path(tmp_path, "a.arrow")) as writer:
        writer.write(rows.slice(1))
        receipt = writer.close()
    assert receipt.continues
    assert receipt.transactions == 3


def test_an_abandoned_segment_leaves_nothing(tmp_path: Path) -> None:
    with SegmentWriter(segment_path(tmp_path, "a.arrow")) as writer:
        writer.write(simple_rows(3))
    assert list((tmp_path / "segments" / "1").iterdir()) == []


def test_a_segment_without_room_is_log_full_and_can_be_abandoned(tmp_path: Path) -> None:
    with armed("segment.before_rename=enospc"):
        writer = SegmentWriter(segment_path(tmp_path, "a.arrow"))
        writer.write(simple_rows(3))
        with pytest.raises(LogFull):
            writer.close()
        writer.abandon()
    assert list((tmp_path / "segments" / "1").iterdir()) == []


def test_a_reader_without_descriptors_gives_up_a_file_that_it_keeps_for_later(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 3)
    view = CommitLog.open(log_root / "shop").view
    wanted = rows_of(log_root / "shop", view)
    with BatchReader(log_root / "shop") as reader, no_more_descriptors() as fill:
        found = batch_rows(reader, view, 0) + batch_rows(reader, view, 1)
        fill()
        found += batch_rows(reader, view, 2)
    assert found == wanted


@contextmanager
def no_more_descriptors() -> Iterator[Callable[[], None]]:
    """Give a function after which this process can open nothing, until it closes something."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def another() -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        return descriptor

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (another() + 1, limits[1]))
        with suppress(OSError):
            while True:
                another()

    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        yield fill
