"""Exclusive creation: whole or not at all, once, with files that have no name and where there are none."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogError, LogFull
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.files import new_file
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import armed, finish, python, rows_of, transactions_in, upsert, write

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import os, sys
from pathlib import Path
from tests.support import failpoints
from tailrace_server.wal import transaction_buffer
from tailrace_server.wal.files import new_file
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import upsert
transaction_buffer.ROWS_MAX = 0  # segments as files
new_file.UNNAMED_FILES = sys.argv[2] == "unnamed"
writer = LogWriter.open(Path(sys.argv[1]), "shop")
failpoints.arm(sys.argv[3])
writer.append([upsert("1")])
writer.commit()
writer.publish()
"""


@pytest.fixture(params=["unnamed", "named", "refused"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files without a name; a system that has none; a file system that says that it has none."""
    if request.param == "named":
        monkeypatch.setattr(new_file, "UNNAMED_FILES", False)
    if request.param == "refused":
        # What a kernel does that does not know the flag: it opens the folder for writing, EISDIR.
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    return str(request.param)


def left(catalog: Path) -> list[str]:
    """Return the files of a catalog that are on their way."""
    on_their_way = [*(catalog / "tmp").iterdir(), *(catalog / "segments").rglob("*.tmp")]
    return sorted(path.name for path in on_their_way)


def test_a_name_is_given_once_and_the_loser_leaves_nothing(log_root: Path, way: str) -> None:
    create_catalog(log_root, "shop")
    catalog = log_root / "shop"
    assert LocalFiles(catalog).create("log/x.json", b"first", failpoint="entry")
    assert not LocalFiles(catalog).create("log/x.json", b"second", failpoint="entry")
    assert (catalog / "log" / "x.json").read_bytes() == b"first"
    assert left(catalog) == []


def test_what_fails_before_it_is_linked_leaves_nothing(log_root: Path, way: str) -> None:
    create_catalog(log_root, "shop")
    catalog = log_root / "shop"
    with armed("entry.before_link=enospc"), pytest.raises(LogFull):
        LocalFiles(catalog).create("log/x.json", b"first", failpoint="entry")
    assert list((catalog / "log").iterdir()) == []
    assert left(catalog) == []


def test_a_log_is_written_either_way(log_root: Path, way: str) -> None:
    write(log_root, "shop", 3)
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(4, 70):
            writer.append([upsert(str(number))])
    assert transactions_in(rows_of(log_root / "shop")) == [*map(str, range(1, 70))]
    assert verify(log_root / "shop").sound
    assert left(log_root / "shop") == []


def test_names_come_sorted_after_one_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    store = LocalFiles(tmp_path)
    for name in "bca":
        (tmp_path / "log" / name).touch()
    assert store.names("log") == ["a", "b", "c"]
    assert store.names("log", after="a") == ["b", "c"]
    assert store.names("missing") == []


def test_a_move_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    for name in "ab":
        (tmp_path / name).write_text(name)
    with pytest.raises(LogError):
        store.move("a", "b")
    assert store.move("a", "c")
    assert not store.move("a", "d")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "b", "c": "a"}


def test_another_file_of_a_name_has_another_stamp(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    assert (store.stamp("x"), store.size("x"), store.exists("x")) == (None, None, False)
    (tmp_path / "x").write_bytes(b"first")
    first = store.stamp("x")
    assert (store.stamp("x"), store.size("x"), store.exists("x")) == (first, 5, True)
    (tmp_path / "y").write_bytes(b"first")
    (tmp_path / "y").rename(tmp_path / "x")
    assert store.stamp("x") != first
    assert store.delete("x")
    assert not store.delete("x")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["segment.before_rename", "entry.before_link"])
@pytest.mark.parametrize(("kind", "litter"), [("unnamed", 0), ("named", 1)])
def test_contract_34_a_kill_before_the_link_leaves_nothing_where_files_need_no_name(
    log_root: Path, place: str, kind: str, litter: int
) -> None:
    create_catalog(log_root, "shop")
    status, _, err = finish(python(WRITER, log_root, kind, f"{place}=kill"))
    assert status == -signal.SIGKILL, err
    assert len(left(log_root / "shop")) == litter
    write(log_root, "shop", 1)
    assert transactions_in(rows_of(log_root / "shop")) == ["1"]
    assert verify(log_root / "shop").sound
