"""Small batches that were just published: taken out of the entry that the tailer has read."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.criteria import Area, Content, Criteria, canonical
from tailrace_server.codecs import PROTOBUF
from tailrace_server.log_cache.batch_cache import BatchCache
from tailrace_server.log_cache.catalog_reader import CatalogReader
from tailrace_server.log_cache.small_commits import Bodies, FrameRequest, LoadedBatch, SmallCommits
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.rows.batch_images import NO_IMAGES
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import GroupedHead, group_by_class
from tailrace_server.rows.run import Run
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import SteppingClock, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

REQUEST = FrameRequest(Predicate(canonical([Criteria(area=Area.DATA)])), PROTOBUF, Content.AFTER)


def test_a_batch_in_the_entry_read_last_opens_no_file(log_root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    with (
        LogWriter.open(log_root, "shop") as writer,
        BatchReader(log_root / "shop") as reader,
        BatchReader(elsewhere) as blind,
    ):
        log = CommitLog.open(log_root / "shop")
        small_commits = SmallCommits(log.uuid, blind, EngineSettings())
        small_commits.add(REQUEST)
        small_commits.end_row = log.view.end_row
        writer.append([upsert("1")])
        writer.commit(publish=True)
        view = log.refresh(small_commits.read_published)
        assert view is not None
        ref = view.batch(len(view) - 1)
        batch = small_commits.get(ref)
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


@pytest.mark.parametrize("rows", [1, 1_000])
def test_the_cache_charges_a_batch_about_what_it_takes(log_root: Path, rows: int) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(number)) for number in range(rows)])
        writer.commit(publish=True)
    with BatchReader(log_root / "shop") as reader:
        view = CommitLog.open(log_root / "shop").view
        ref = view.batch(len(view) - 1)

        def load() -> tuple[GroupedHead, Bodies]:
            return group_by_class(reader.head(ref)), Bodies(reader.texts(ref, ["after"]))

        load()
        tracemalloc.start()
        try:
            loaded = [load() for _ in range(20)]
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    charged = sum(each.nbytes for pair in loaded for each in pair)
    assert taken / 2 < charged < 2 * taken


class ArrivingCommit:
    """A log with a subscriber; what another writer of its epoch would commit next is arriving."""

    def __init__(
        self, log_root: Path, copies: Path, reader: BatchReader, request: FrameRequest = REQUEST
    ) -> None:
        self.writer = LogWriter.open(log_root, "shop", clock=SteppingClock(1_000))
        commit(self.writer, "1")
        shutil.copytree(log_root, copies)
        attached = CatalogWriter.attach(
            copies, "shop", epoch=1, writer="log-writer", clock=SteppingClock(2_000)
        )
        commit(LogWriter(attached), "2")
        self.log = CommitLog.open(log_root / "shop")
        self.small_commits = SmallCommits(self.log.uuid, reader, EngineSettings())
        self.small_commits.add(request)
        self.small_commits.end_row = self.log.view.end_row
        self.entry = self.log.path / "log" / object_name(3)
        self.arriving = self.log.path / "tmp" / f"{self.entry.name}.1"
        shutil.copyfile(copies / "shop" / "log" / self.entry.name, self.arriving)
        read = self.log.read_ahead(self.arriving.name)
        assert read is not None
        self.small_commits.read_arriving(read)

    def newest(self) -> tuple[LogView, BatchRef, LoadedBatch]:
        view = self.log.refresh(self.small_commits.read_published)
        assert view is not None
        ref = view.batch(len(view) - 1)
        batch = self.small_commits.get(ref)
        assert batch is not None
        return view, ref, batch


def commit(writer: LogWriter, key: str) -> None:
    writer.append([upsert(key)])
    writer.commit(publish=True)


async def test_frames_made_ahead_are_those_that_would_be_made(
    log_root: Path, tmp_path: Path
) -> None:
    with BatchReader(log_root / "shop") as reader, ThreadPoolExecutor(1) as threads:
        arriving_commit = ArrivingCommit(log_root, tmp_path / "copy", reader)
        os.link(arriving_commit.arriving, arriving_commit.entry)
        view, ref, batch = arriving_commit.newest()
        [ahead] = batch.frames.values()
        cache = BatchCache(1 << 20, 1 << 20, 1 << 20, threads)
        reading = CatalogReader(view, reader, cache, EngineSettings())
        selection = REQUEST.predicate.select(batch.grouped, NO_IMAGES)
        run = Run(ref, selection, ref.first)
        made = await reading.frames(run, view, REQUEST.codec, REQUEST.content)
        assert ahead.messages == made.messages
        assert batch.grouped.head.ref == ref


@pytest.mark.parametrize(
    "criteria",
    [
        Criteria(area=Area.DATA, primary_key=tuple(map(str, range(10_000)))),
        Criteria(area=Area.DATA, container_name=("value",)),
    ],
    ids=["keys", "columns"],
)
def test_no_frames_are_made_ahead_for_criteria_with_keys_or_columns(
    log_root: Path, tmp_path: Path, criteria: Criteria
) -> None:
    with BatchReader(log_root / "shop") as reader:
        request = FrameRequest(Predicate(canonical([criteria])), PROTOBUF, Content.AFTER)
        arriving_commit = ArrivingCommit(log_root, tmp_path / "copy", reader, request)
        os.link(arriving_commit.arriving, arriving_commit.entry)
        _, _, batch = arriving_commit.newest()
        assert batch.frames == {}


def test_contract_06_frames_of_an_entry_that_never_came_are_given_to_nobody(
    log_root: Path, tmp_path: Path
) -> None:
    with BatchReader(log_root / "shop") as reader:
        arriving_commit = ArrivingCommit(log_root, tmp_path / "copy", reader)
        commit(arriving_commit.writer, "2")  # byte for byte the same records, at another time
        view, ref, batch = arriving_commit.newest()
        assert view.timestamp_of(ref.last.version) != 2_000
        assert batch.frames == {}
        assert not arriving_commit.small_commits.get(view.batch(0)), "what is old is not read"
