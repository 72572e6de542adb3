"""Heads of the log for who goes through it: those behind the next one are read in one go with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.log_cache import catalog_reader as reading_module
from tailrace_server.log_cache.batch_cache import BatchCache
from tailrace_server.log_cache.catalog_reader import CatalogReader
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.state.view import LogView

COMMITS = 3


@contextmanager
def reading_of(
    catalog: Path, settings: EngineSettings | None = None
) -> Iterator[tuple[LogView, CatalogReader, BatchCache]]:
    view = CommitLog.open(catalog).view
    with ThreadPoolExecutor(1) as threads, BatchReader(catalog) as reader:
        cache = BatchCache(1 << 30, 1 << 24, 1 << 24, threads)
        yield view, CatalogReader(view, reader, cache, settings or EngineSettings()), cache


@pytest.fixture
def catalog(log_root: Path) -> Path:
    """A log of a batch a commit."""
    with LogWriter.open(log_root, "shop") as writer:
        for commit in range(COMMITS):
            writer.append([upsert(f"{commit}-{number}") for number in range(100)])
            writer.commit()
    return log_root / "shop"


async def test_the_heads_behind_are_read_with_the_next(catalog: Path) -> None:
    with reading_of(catalog) as (view, reading, cache):
        assert len(view) == COMMITS
        found = [await reading.grouped_reading_ahead(view, place) for place in range(COMMITS)]
        assert [each.head.ref for each in found] == [view.batch(place) for place in range(COMMITS)]
        assert cache.statistics().misses == 1


@pytest.mark.parametrize("bound", ["bytes", "share"])
async def test_heads_are_read_in_one_go_up_to_so_many_bytes(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    settings = EngineSettings()
    with reading_of(catalog) as (view, _, _):
        two = view.batch(0).head_length + view.batch(1).head_length
    if bound == "bytes":
        monkeypatch.setattr(reading_module, "_READ_AHEAD_BYTES_MAX", two)
    else:
        settings = EngineSettings(reads_bytes=8 * two)
    with reading_of(catalog, settings) as (view, reading, cache):
        misses = []
        for place in range(COMMITS):
            await reading.grouped_reading_ahead(view, place)
            misses.append(cache.statistics().misses)
        assert misses == [1, 1, 2]


async def test_one_that_is_damaged_fails_in_its_turn(catalog: Path) -> None:
    with reading_of(catalog) as (view, reading, _):
        ref = view.batch(1)
        with (catalog / ref.segment.path).open("r+b") as file:
            file.seek(ref.offset + ref.head_length - 1)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        assert (await reading.grouped_reading_ahead(view, 0)).head.ref == view.batch(0)
        with pytest.raises(LogCorrupted):
            await reading.grouped_reading_ahead(view, 1)
        assert (await reading.grouped_reading_ahead(view, 2)).head.ref == view.batch(2)
