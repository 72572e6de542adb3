"""A Delta table that somebody else has touched, or that cannot be written."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.clock import SystemClock
from tailrace_server.export.delta.export import GATE, DeltaExport
from tailrace_server.export.errors import FolderTaken, LakeTableChanged, LakeUnwritable
from tailrace_server.wal.gate import put_up_gate
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.export.delta.lakes import (
    export,
    hows,
    item,
    lake_rows,
    open_shop,
    put,
    settings,
    state_rows,
)
from tests.server.wal.logs import armed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace_server.wal.log_writer import LogWriter


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def shop(log_root: Path) -> Iterator[LogWriter]:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        yield writer


def test_a_table_that_somebody_else_has_written_to_is_refused(
    log_root: Path, lake: Path, shop: LogWriter
) -> None:
    """Whether between two runs, or while one is under way."""
    with DeltaExport.begin(settings(log_root, lake)) as exporting:
        exporting.advance()
        DeltaTable(str(lake / "item")).delete("id = 2")
        put(shop, item(3, 3))
        with pytest.raises(LakeTableChanged, match=r"commit 1 is DELETE by .* left version 1 of"):
            exporting.advance()
    with pytest.raises(LakeTableChanged, match="move the folder away"):
        export(log_root, lake)
    shutil.rmtree(lake / "item")
    assert hows(export(log_root, lake)) == {"item": "written"}
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_two_runs_of_one_export_are_told_apart(log_root: Path, lake: Path, shop: LogWriter) -> None:
    export(log_root, lake)
    with (
        DeltaExport.begin(settings(log_root, lake)) as first,
        DeltaExport.begin(settings(log_root, lake)) as second,
    ):
        put(shop, item(3, 3))
        first.advance()
        with pytest.raises(LakeTableChanged, match="another run of this export"):
            second.advance()
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_two_runs_that_begin_a_table_at_once_make_one(
    log_root: Path, lake: Path, shop: LogWriter
) -> None:
    with (
        DeltaExport.begin(settings(log_root, lake)) as first,
        DeltaExport.begin(settings(log_root, lake)) as second,
    ):
        first.advance()
        with pytest.raises(LakeTableChanged, match="another program has created"):
            second.advance()


def test_a_table_that_is_deleted_meanwhile_is_named(
    log_root: Path, lake: Path, shop: LogWriter
) -> None:
    with DeltaExport.begin(settings(log_root, lake)) as exporting:
        exporting.advance()
        shutil.rmtree(lake / "item")
        put(shop, item(3, 3))
        with pytest.raises(LakeTableChanged, match="it was deleted"):
            exporting.advance()


def test_a_folder_of_something_else_is_left_alone(
    log_root: Path, lake: Path, shop: LogWriter, tmp_path: Path
) -> None:
    folder = lake / "item"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FolderTaken, match=r"holds notes\.txt, and is not a Delta table"):
        export(log_root, lake)
    shutil.rmtree(folder)
    write_deltalake(str(folder), pa.table({"a": [1]}))
    with pytest.raises(FolderTaken, match="a Delta table without a commit of this entity type"):
        export(log_root, lake)
    assert DeltaTable(str(folder)).version() == 0
    # A file where the folder is to be, which is what a user without permission meets too.
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(LakeUnwritable, match="Not a directory"):
        export(log_root, taken)


@pytest.mark.parametrize("place", ["delta.before_commit", "delta.after_commit"])
def test_a_disk_that_is_full_ends_the_export_and_the_next_run_goes_on(
    log_root: Path, lake: Path, shop: LogWriter, place: str
) -> None:
    with armed(f"{place}=enospc"), pytest.raises((LakeUnwritable, OSError)):
        export(log_root, lake)
    export(log_root, lake)
    put(shop, item(1, 5))
    with armed(f"{place}=enospc"), pytest.raises((LakeUnwritable, OSError)):
        export(log_root, lake)
    export(log_root, lake)
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_small_files_are_joined_and_old_ones_deleted(
    log_root: Path, lake: Path, shop: LogWriter
) -> None:
    """Readers of an old version are given the time that they were promised, here none."""
    with DeltaExport.begin(settings(log_root, lake, tidy_every=4, keep_hours=0)) as exporting:
        for number in range(3, 12):
            put(shop, item(number, number))
            exporting.advance()
    table = DeltaTable(str(lake / "item"))
    operations = [each["operation"] for each in table.history()]
    assert "VACUUM END" in operations
    parts = {path.name for path in (lake / "item").glob("*.parquet")}
    assert len(parts) <= 8
    assert lake_rows(lake / "item") == state_rows(log_root)
    # It goes on behind them, although they have other numbers than a merge.
    put(shop, item(1, 7))
    export(log_root, lake)
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_a_table_that_nothing_concerns_is_told_of_a_version_now_and_then(
    log_root: Path, lake: Path, shop: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace_server.export.delta import tables

    monkeypatch.setattr(tables, "_IDLE_VERSIONS", 2)
    export(log_root, lake)
    for _ in range(2):
        shop.append([])
        shop.commit(publish=True)
        export(log_root, lake)
    table = DeltaTable(str(lake / "item"))
    assert table.transaction_version(f"tailrace/{shop.uuid}/1") == 3
    assert lake_rows(lake / "item") == state_rows(log_root)


def deleted(table: Path) -> None:
    shutil.rmtree(table)


def written_to(table: Path) -> None:
    DeltaTable(str(table)).delete("id = 2")


def made_anew(table: Path) -> None:
    """Put another table there, whose newest commit has the same number."""
    shutil.copytree(table, table.parent / "copy")
    shutil.rmtree(table)
    (table.parent / "copy").rename(table)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (deleted, "it was deleted"),
        (written_to, "is DELETE by"),
        (made_anew, "another table was created"),
    ],
)
def test_contract_07_no_gated_table_is_another_when_a_version_is_published(
    log_root: Path, lake: Path, shop: LogWriter, change: Callable[[Path], None], why: str
) -> None:
    """Nor one that the version does not concern: who is told of the version reads that one too."""
    put(shop, Mutation("note", "1", after=b'{"id":1}'))
    put_up_gate(CommitLog.open(log_root / "shop"), GATE, str(lake), (), SystemClock())
    with DeltaExport.begin(settings(log_root, lake, gate=True)) as exporting:
        put(shop, item(3, 3))
        published = exporting.advance().version
        change(lake / "item")
        put(shop, Mutation("note", "2", after=b'{"id":2}'))
        with pytest.raises(LakeTableChanged, match=why) as raised:
            exporting.advance()
        assert raised.value.folder == str(lake / "item")
    assert CommitLog.open(log_root / "shop").view.published == published
