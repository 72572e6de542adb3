"""Entries on their way: read ahead, taken if and only if they become the next entry."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import ENTRIES, ReadEntry
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.arriving_entry import ArrivingEntry
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.tailer import Tailer
from tests.server.wal.logs import armed, rows_of, transactions_in, upsert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.record.mutation import Mutation


PATIENCE_S = 20.0
NEXT = f"{object_name(3)}.1-ab-0"
"""Behind the OPEN entry and one commit."""


@pytest.fixture
def writer(log_root: Path) -> Iterator[LogWriter]:
    """A catalog of one published transaction."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
        yield writer


@pytest.fixture
def rival(log_root: Path, writer: LogWriter, tmp_path: Path) -> bytes:
    """The bytes of an entry that could come next and never does."""
    return next_entry(log_root, tmp_path / "copy", upsert("rival"))


def on_its_way(catalog: Path, data: bytes, name: str = NEXT) -> Path:
    path = catalog / "tmp" / name
    path.write_bytes(data)
    return path


def published(log_root: Path) -> bytes:
    return (log_root / "shop" / ENTRIES / object_name(2)).read_bytes()


def test_an_entry_is_taken_once_it_has_its_name_and_not_before(
    log_root: Path, writer: LogWriter
) -> None:
    catalog, data = log_root / "shop", published(log_root)
    path = on_its_way(catalog, data, f"{object_name(2)}.1-ab-0")
    found = ArrivingEntry.find(LocalFiles(catalog).arrivals, path.name, 2)
    assert found is not None
    assert found.read.data == data
    assert found.arrived() is None, "another file has the name"
    (catalog / ENTRIES / object_name(2)).unlink()
    assert found.arrived() is None, "no file has the name"
    os.link(path, catalog / ENTRIES / object_name(2))
    arrived = found.arrived() or pytest.fail("it has not arrived")
    assert not arrived.marked
    mark = 1_000 * arrived.entry.timestamp
    os.utime(path, ns=(mark, mark))
    marked = found.arrived() or pytest.fail("it has not arrived")
    assert marked.marked
    path.unlink()
    assert found.arrived() == marked


def test_what_is_not_whole_or_is_not_next_is_not_taken_ahead(
    log_root: Path, writer: LogWriter
) -> None:
    catalog, data = log_root / "shop", published(log_root)
    for torn in (data[:-1], data[: len(data) // 2], b"", b"{}\n", os.urandom(200)):
        path = on_its_way(catalog, torn)
        assert ArrivingEntry.find(LocalFiles(catalog).arrivals, path.name, 3) is None
    path = on_its_way(catalog, data)
    assert ArrivingEntry.find(LocalFiles(catalog).arrivals, path.name, 3) is None, (
        "it says that it is the second"
    )
    assert ArrivingEntry.find(LocalFiles(catalog).arrivals, f"{object_name(3)}.gone", 3) is None
    path.chmod(0)
    if os.geteuid():  # root reads what nobody may
        assert ArrivingEntry.find(LocalFiles(catalog).arrivals, path.name, 3) is None


def test_contract_36_the_entry_that_got_the_name_is_read_and_not_the_one_foreseen(
    log_root: Path, writer: LogWriter, rival: bytes
) -> None:
    log = CommitLog.open(log_root / "shop")
    assert log.read_ahead(on_its_way(log_root / "shop", rival).name) is not None
    assert log.read_ahead(on_its_way(log_root / "shop", rival, f"{object_name(2)}.9").name) is None
    writer.append([upsert("2")])
    writer.commit(publish=True)
    assert log.refresh() is not None
    assert transactions_in(rows_of(log_root / "shop", log.view)) == ["1", "2"]


def test_while_it_is_foreseen_no_other_file_gets_its_inode(
    log_root: Path, writer: LogWriter, rival: bytes
) -> None:
    log = CommitLog.open(log_root / "shop")
    path = on_its_way(log_root / "shop", rival)
    inode = path.stat().st_ino
    assert log.read_ahead(path.name) is not None
    path.unlink()
    others = [on_its_way(log_root / "shop", b"x", str(number)) for number in range(20)]
    assert inode not in [other.stat().st_ino for other in others]


async def test_contract_06_what_is_on_its_way_is_read_and_shown_to_nobody(
    log_root: Path, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog.open(log_root / "shop")
    loop, foreseen = asyncio.get_running_loop(), asyncio.Queue[ReadEntry]()
    read: list[int] = []
    read_entry = documents.read_entry

    def noted(store: ObjectStore, number: int) -> ReadEntry | None:
        found = read_entry(store, number)
        read.extend([number] if found is not None else [])
        return found

    def foresee(read: ReadEntry) -> None:
        loop.call_soon_threadsafe(foreseen.put_nowait, read)

    def commit(key: str) -> None:
        writer.append([upsert(key)])
        writer.commit(publish=True)

    monkeypatch.setattr(documents, "read_entry", noted)
    gate = tmp_path / "gate"
    async with asyncio.timeout(PATIENCE_S), Tailer(log, read_ahead=foresee) as tailer:
        commit("2")
        await anext(tailer)  # it watches the folders by now
        while not foreseen.empty():
            foreseen.get_nowait()
        read.clear()
        with armed(f"entry.before_link=pause:{gate}"):
            committing = asyncio.create_task(asyncio.to_thread(commit, "3"))
            assert (await foreseen.get()).entry.number == 4
            assert (log.view.published, log.state.last_entry) == (2, 3)
            gate.touch()
            await committing
        view = await anext(tailer)
        assert transactions_in(rows_of(log_root / "shop", view)) == ["1", "2", "3"]
        assert read == []


async def test_what_was_foreseen_is_let_go_of_when_the_tailer_ends(
    log_root: Path, writer: LogWriter, rival: bytes
) -> None:
    log = CommitLog.open(log_root / "shop")
    path = on_its_way(log_root / "shop", rival)
    assert log.read_ahead(path.name) is not None
    assert is_open(path)
    async with asyncio.timeout(PATIENCE_S), Tailer(log):
        pass
    assert not is_open(path)


def is_open(path: Path) -> bool:
    """Whether this process has a file open."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.path.samefile(f"/proc/self/fd/{descriptor}", path):
                return True
    return False


def next_entry(log_root: Path, copy: Path, mutation: Mutation) -> bytes:
    """Return the entry of a commit as it would be the third of the log, made in a copy."""
    shutil.copytree(log_root, copy)
    attached = CatalogWriter.attach(copy, "shop", epoch=1, writer="log-writer")
    with LogWriter(attached) as writer:
        writer.append([mutation])
        writer.commit(publish=True)
    return (copy / "shop" / ENTRIES / object_name(3)).read_bytes()
