"""Small batches that were just published: taken out of the entry that the tailer has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.capture.fresh import FreshBatches
from tailrace_server.wal.batch import BatchReader
from tailrace_server.wal.commit_log import CommitLog
from tailrace_server.wal.writer import LogWriter
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path


def test_a_batch_in_the_entry_read_last_opens_no_file(log_root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    with (
        LogWriter.open(log_root, "shop") as writer,
        BatchReader(log_root / "shop") as reader,
        BatchReader(elsewhere) as blind,
    ):
        log = CommitLog.open(log_root / "shop")
        fresh = FreshBatches(blind)
        fresh.wanted, fresh.end_row = True, log.view.end_row
        writer.append([upsert("1")])
        writer.commit(publish=True)
        view = log.refresh(fresh.prepare)
        assert view is not None
        ref = view.batch(len(view) - 1)
        batch = fresh.get(ref)
        assert batch is not None
        assert batch.bodies.columns == reader.body(ref, batch.bodies.columns)
        assert batch.grouped.head.primary_keys == reader.head(ref).primary_keys
