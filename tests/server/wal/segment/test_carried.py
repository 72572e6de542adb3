"""Small commits: their entries carry the messages that SegmentWriter makes, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LogCorrupted
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.documents import carries_records
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.columns import RECORD_SCHEMA
from tailrace_server.wal.segment.arrow_ipc import MAGIC
from tailrace_server.wal.segment.carried import BYTES_MAX, ROWS_MAX, carried_segment
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.segment.writer import SegmentWriter
from tailrace_server.wal.state.checkpoint import DELETE_GRACE_S, write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import rows_of, segment_path, transactions_in, update, upsert, write

if TYPE_CHECKING:
    from tailrace_server.wal.segment.writer import SegmentReceipt

NAMES = [name for name in RECORD_SCHEMA.names if name != "key_hash"]
PLAIN = {"entity_type": pa.utf8(), "changed": pa.list_(pa.utf8())}
LEAD = (3, 3, None, None, None, None, None, b'{"mutation_count":0,"counts":{}}')

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


def usual(folder: Path, columns: list[list[Any]]) -> tuple[SegmentReceipt, bytes]:
    """Write rows the usual way; return the receipt and the file."""
    kinds = [PLAIN.get(name, RECORD_SCHEMA.field(name).type) for name in NAMES]
    path = segment_path(folder, "usual.arrow")
    with SegmentWriter(path) as writer:
        arrays = [pa.array(*each) for each in zip(columns, kinds, strict=True)]
        writer.write(pa.RecordBatch.from_arrays(arrays, NAMES))
        return writer.close(), path.read_bytes()


@given(
    transactions=st.lists(st.lists(mutations, max_size=6), min_size=1, max_size=6)
    | st.lists(mutations, min_size=ROWS_MAX - 1, max_size=ROWS_MAX - 1).map(lambda all_: [all_])
)
def test_the_messages_and_the_receipt_are_those_of_the_usual_writer(
    transactions: list[list[tuple[Any, ...]]],
) -> None:
    rows = [
        (version, index, *row)
        for version, transaction in enumerate(transactions)
        for index, row in enumerate([LEAD, *transaction])
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    inline = carried_segment(columns)
    with TemporaryDirectory() as folder:
        receipt, file = usual(Path(folder), columns)
    magic = len(MAGIC)
    assert inline.data == file[magic : magic + len(inline.data)]
    ((offset, *batch),) = receipt.batches
    assert inline.receipt == replace(
        receipt,
        path="",
        bytes=offset - magic + batch[0],
        batches=((offset - magic, *batch),),
        prefix=tuple((at - magic, length, crc) for at, length, crc in receipt.prefix),
    )


@pytest.mark.parametrize("rows", [ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1])
def test_a_commit_at_the_bound_reads_the_same(log_root: Path, rows: int) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        keys = [str(number) for number in range(rows - 2)]
        writer.append([update(key, 1, 2) for key in keys])
    found = rows_of(log_root / "shop")
    assert [row[7] for row in found] == [None, None, *keys]  # the lead, the record of the schema
    assert found[2][8] == ["value"]
    assert verify(log_root / "shop").sound


@pytest.mark.parametrize(
    ("size", "carried"), [(100, True), (BYTES_MAX + 1, False), (5 << 20, False)]
)
def test_what_is_small_goes_into_the_entry_and_what_is_large_into_a_file(
    log_root: Path, size: int, carried: bool
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        image = b'{"text":"%s"}' % (b"x" * size)
        writer.append([replace(upsert("1"), after=image), upsert("2")])
    assert rows_of(log_root / "shop")[2][11] == image
    files = [path.name for path in (log_root / "shop" / "segments").rglob("*.arrow")]
    assert (files == []) is carried
    assert verify(log_root / "shop").sound


def entries_with_records(catalog: Path) -> list[int]:
    """Return the numbers of the entries that carry records."""
    return [
        int(path.stem)
        for path in sorted((catalog / "log").iterdir())
        if carries_records(LocalFiles(catalog), f"log/{path.name}")
    ]


def test_an_entry_loses_the_records_that_nothing_names_and_keeps_its_lines(log_root: Path) -> None:
    """The chain goes through its lines; old views learn that their segment is gone."""
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    log = CommitLog.open(catalog)
    old, before = log.view, rows_of(catalog)
    trim(catalog, 2, 5)
    assert len(delete_unnamed(catalog, 10, grace_s=0)) == 1
    assert entries_with_records(catalog) == [3, 4, 5]
    compact(catalog, 5)
    # The newest checkpoint but one covers all entries, whose last one stays and loses its records alone.
    entries = [f"log/{number:020}.json" for number in range(1, 5)]
    gone = delete_unnamed(catalog, 10, grace_s=0)
    assert gone == [*entries, f"log/{5:020}.json"]
    assert [path.name for path in (catalog / "log").iterdir()] == [f"{5:020}.json"]
    assert delete_unnamed(catalog, 10, grace_s=0) == []
    assert entries_with_records(catalog) == []
    assert rows_of(catalog) == before[5:]
    with BatchReader(catalog) as reader, pytest.raises(SegmentMissing):
        reader.head(old.batch(0))
    assert verify(catalog).sound
    write(log_root, "shop", 1)
    log = CommitLog.open(catalog)
    assert write_checkpoint(log, log.state, int(DELETE_GRACE_S * 1e6) + 11)
    assert log.state.removed == {}
    assert transactions_in(rows_of(catalog)) == ["2", "3", "4", "5"]


def test_a_damaged_entry_keeps_its_records(log_root: Path) -> None:
    write(log_root, "shop", 2)
    catalog = log_root / "shop"
    trim(catalog, 3, 5)
    entry = catalog / "log" / f"{2:020d}.json"
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-30] + b"\n" + whole[-29:])
    with pytest.raises(LogCorrupted):
        delete_unnamed(catalog, 10, grace_s=0)
    assert len(entry.read_bytes()) == len(whole)


def test_a_lost_race_takes_the_records_to_the_next_entry(log_root: Path) -> None:
    """Two processes of one writer: who loses the number carries the same records under the next one."""
    first = open_writer(log_root, "shop", writer="w")
    second = CatalogWriter.attach(log_root, "shop", epoch=first.epoch, writer="w")
    segment = carried_segment([[0], [0], *([value] for value in LEAD)])
    first.commit(batch_id=0, segments=[segment])
    receipt = second.commit(batch_id=1, segments=[segment])
    assert (receipt.entry, receipt.first_version) == (3, 2)
    assert second.commit(batch_id=1, segments=[segment]).already_committed
    second.publish()
    assert entries_with_records(log_root / "shop") == [2, 3]
    assert verify(log_root / "shop").sound
    first.close()
    second.close()
