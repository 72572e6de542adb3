"""The table of segments: what goes in comes out, and takes little room."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.refs import SegmentRef
from tailrace_server.wal.state.batch_table import SegmentTable
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tests.server.wal.logs import upsert, write, write_files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COMMITS = 400
TABLE_BYTES_MAX = 256
"""Bytes of a log's tables for each commit of one file with one batch."""
HELD_BYTES_MAX = 450
"""The same with the room that tables keep for what is to come, and all else that a reader holds."""

numbers = st.integers(0, (1 << 63) - 1)
shapes = st.sampled_from(
    [
        (((8, 760, 1), (768, 192, 2)), {"order": 3}),
        (((8, 760, 1), (768, 192, 2)), {"order": 3, "line \u00fc": 70_000}),
        (((0, 640, 4_294_967_295),), None),
        ((), {}),
    ]
)
segments = st.lists(
    st.builds(
        lambda path, base, shape, rows, size: SegmentRef(
            path, base, shape[0], rows, size, shape[1]
        ),
        st.text(st.characters(codec="utf-8"), max_size=40),
        numbers,
        shapes,
        numbers,
        numbers,
    ),
    max_size=12,
)


def _table(listed: list[SegmentRef]) -> SegmentTable:
    table = SegmentTable()
    for each in listed:
        table.add([each])
    return table


@given(segments, segments)
def test_segments_come_out_as_they_went_in(first: list[SegmentRef], more: list[SegmentRef]) -> None:
    table = _table(first)
    table.add(more)
    listed = first + more
    assert list(table) == listed
    assert table.paths() == [each.path for each in listed]
    assert table.rows.tolist() == [each.rows for each in listed]
    assert table.sizes.tolist() == [each.bytes for each in listed]


@given(segments, st.integers(0, 12), st.integers(0, 12), segments)
def test_a_slice_holds_its_part_and_grows_like_any_other(
    listed: list[SegmentRef], start: int, stop: int, more: list[SegmentRef]
) -> None:
    part = _table(listed).slice(start, stop)
    assert list(part) == listed[start:stop]
    part.add(more)
    assert list(part) == listed[start:stop] + more
    part.extend(_table(listed))
    assert list(part) == listed[start:stop] + more + listed
    part.add(listed[-1:])
    assert list(part) == listed[start:stop] + more + listed + listed[-1:]


def test_a_reader_does_not_keep_the_names_of_files_that_wait_to_be_deleted(log_root: Path) -> None:
    """A maker of checkpoints does: the next one has to name them."""
    write(log_root, "shop", 12)
    reader, maker = open_catalog(log_root, "shop"), CommitLog.open(log_root / "shop")
    assert compact(log_root / "shop", 5) is not None
    reader.refresh()
    maker.refresh()
    assert (len(reader.state.batches), reader.state.removed) == (1, {})
    assert len(maker.state.removed) == 12


def test_a_commit_costs_a_reader_a_bounded_number_of_bytes(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What must grow with the log is numbers; at 100 commits a second it is 90 MB an hour before compaction."""
    write_files(monkeypatch)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("0")])
        writer.commit()
        writer.publish()
        log = open_catalog(log_root, "shop")
        for number in range(COMMITS):
            writer.append([upsert(str(number))])
            writer.commit()
        writer.publish()
    tables = log.state.batches.nbytes + log.state.commits.nbytes
    tracemalloc.start()
    try:
        log.refresh()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.view) == COMMITS + 1
    grown = log.state.batches.nbytes + log.state.commits.nbytes - tables
    assert grown <= COMMITS * TABLE_BYTES_MAX
    assert held <= COMMITS * HELD_BYTES_MAX
