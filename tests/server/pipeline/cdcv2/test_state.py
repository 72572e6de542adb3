"""What a stream keeps between batches. Ingests cover reading and writing it: `test_ingest`, `test_seeding`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.cdcv2.folding import INDEX
from tailrace_server.pipeline.cdcv2.state import (
    CONTROL_NAME,
    INDEX_KIND,
    UPDATES_KIND,
    Control,
    KeyIndex,
    StateFile,
    merged,
    read_control,
    tiers,
    tiers_to_merge,
)
from tailrace_server.wal.files.documents import PendingSegment

if TYPE_CHECKING:
    from pathlib import Path


def index_rows(**counts: int) -> pa.RecordBatch:
    """Return rows of the index; the hash of a key is its length."""
    rows: dict[str, list[Any]] = {
        "hash": [len(key) for key in counts],
        "key": list(counts),
        "image": [key.encode() if count else None for key, count in counts.items()],
        "count": list(counts.values()),
    }
    return pa.RecordBatch.from_pydict(rows, INDEX)


def index_file(catalog: Path, tier: int, **counts: int) -> StateFile:
    """Write a tier."""
    (catalog / "segments").mkdir(exist_ok=True)
    path = catalog / "segments" / "1" / f"pending-{tier}.arrow"
    return StateFile(INDEX_KIND, write_pending(path, index_rows(**counts)), tier)


def control(*files: StateFile) -> Control:
    """Return a control that knows some files."""
    return Control("product", ["id"], "", files=list(files))


def sized(tier: int, rows: int) -> StateFile:
    """Return a file of which only the size counts."""
    return StateFile(INDEX_KIND, PendingSegment(f"{tier}.arrow", rows, 0, 0), tier)


def test_the_newest_tier_wins_in_whatever_order_the_files_are_listed(tmp_path: Path) -> None:
    older, newer = index_file(tmp_path, 0, a=1, b=2), index_file(tmp_path, 5, a=3)
    for listed in ((older, newer), (newer, older)):
        files = control(*listed, StateFile(UPDATES_KIND, older.file)).of_kind(INDEX_KIND)
        assert files == [older, newer]
        found = KeyIndex(tmp_path).last_rows(files, np.array([1, 1, 1], np.uint64), ["a", "b", "c"])
        assert found == {"a": (b"a", 3), "b": (b"b", 2)}


def test_merged_tiers_keep_the_last_row_of_a_key_and_forget_the_gone_in_the_oldest_only() -> None:
    tables = [index_rows(a=1, b=1), index_rows(b=0, c=2)]
    for oldest, keys in ((True, ["a", "c"]), (False, ["a", "b", "c"])):
        assert sorted(merged(tables, oldest=oldest).column("key").to_pylist()) == keys


def test_a_tier_is_merged_while_it_is_at_most_twice_the_size_and_the_sum_stays_in_bounds() -> None:
    found = tiers([sized(1, 1000), sized(2, 70), sized(3, 20)])
    assert [tiers_to_merge(found, rows, 10_000) for rows in (9, 10, 20, 460)] == [0, 1, 2, 3]
    assert tiers_to_merge(found, 20, 99) == 1


def test_a_control_reads_back_and_another_source_or_a_later_format_is_refused(
    tmp_path: Path,
) -> None:
    given = control(sized(1, 2))
    (tmp_path / "segments").mkdir()
    path = tmp_path / "segments" / "1" / f"pending-{CONTROL_NAME}.arrow"
    assert read_control(tmp_path, [write_pending(path, given.table())]) == given
    assert read_control(tmp_path, []) is None
    given.format += 1
    with pytest.raises(InvalidRequest, match="written by a newer tailrace"):
        read_control(tmp_path, [write_pending(path, given.table())])
    with pytest.raises(InvalidRequest, match="another source"):
        read_control(tmp_path, [sized(1, 2).file])
