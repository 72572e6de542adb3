"""Small batches that were just published: taken out of the entry that the tailer has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.criteria import Content
from tailrace_server.capture.codecs import PROTOBUF
from tailrace_server.capture.fresh import FreshBatches, Taker
from tailrace_server.capture.predicate import Predicate
from tailrace_server.capture.settings import EngineSettings
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
        fresh = FreshBatches(log.uuid, blind, EngineSettings())
        fresh.add(Taker(Predicate(()), PROTOBUF, Content.AFTER))
        fresh.end_row = log.view.end_row
        writer.append([upsert("1")])
        writer.commit(publish=True)
        view = log.refresh(fresh.prepare)
        assert view is not None
        ref = view.batch(len(view) - 1)
        batch = fresh.get(ref)
        assert batch is not None
        found = {name: texts.array for name, texts in batch.bodies.columns.items()}
        assert found == reader.body(ref, found)
        assert batch.grouped.head.primary_keys == reader.head(ref).primary_keys


def test_a_batch_out_of_an_entry_keeps_nothing_of_the_entry(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer, BatchReader(log_root / "shop") as reader:
        log = CommitLog.open(log_root / "shop")
        writer.append([upsert("1")])
        writer.commit(publish=True)
        read = log.advance()
        assert read is not None
        assert log.advance() is None
        entry = np.frombuffer(read.data, np.uint8)
        view = CommitLog.open(log_root / "shop").view
        ref = view.batch(len(view) - 1)
        assert ref.segment.path == read.path
        head = reader.head(ref, read.data)
        body = reader.texts(ref, ["after"], read.data)["after"]
        parts = (
            head.indexes,
            head.key_hashes,
            body.array.buffers()[2],
            head.primary_keys.buffers()[2],
        )
        assert not any(np.shares_memory(np.frombuffer(part, np.uint8), entry) for part in parts)
