"""What ``log verify`` says of bases: every byte is checked, and every row against the log where it reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.base import base_files, checking, making
from tailrace_server.wal.base.bases import newest_bases, table_in
from tailrace_server.wal.base.making import delete_unnamed_rows, make_base
from tailrace_server.wal.base.reading import TableState, state_over, table_state
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.inspect import summarize
from tailrace_server.wal.upkeep.retention import trim
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.base.tables import as_table, row_files, state
from tests.server.wal.logs import remove, upsert

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def catalog(log_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with a base of version 1, of two tables in several files, and a version behind it."""
    monkeypatch.setattr(base_files, "_BATCH_ROWS", 2)
    monkeypatch.setattr(base_files, "_FILE_BYTES", 1_500)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key), entity_type=name) for key in range(9) for name in "ab"])
        writer.append([upsert("9", entity_type="a")])
    make_base(log_root / "shop", 5, 1)
    return log_root / "shop"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_sound_base_is_counted_and_compared_with_the_log(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    first_difference = checking._first_difference

    def counting(mine: Any, theirs: Any) -> int | None:
        compared.append(len(mine))
        return first_difference(mine, theirs)

    monkeypatch.setattr(checking, "_first_difference", counting)
    result = verify(catalog)
    assert result.sound
    assert (result.bases, result.base_rows) == (1, 18)
    assert sum(compared) == 18
    summary = summarize(catalog)
    (base,) = summary.bases
    assert (base.version, base.rows, base.files) == (
        1,
        {"a": 9, "b": 9},
        len(row_files(catalog.parent)),
    )
    assert summary.state_from == 0
    # Of a large table a part is compared, unless all is asked for.
    monkeypatch.setattr(checking, "_SMALL_ROWS", 1)
    compared.clear()
    assert verify(catalog).sound
    assert sum(compared) < 18
    compared.clear()
    assert verify(catalog, whole_bases=True).sound
    assert sum(compared) == 18


def test_every_flipped_byte_that_is_read_is_named(catalog: Path) -> None:
    path = row_files(catalog.parent)[0]
    data = path.read_bytes()
    end = data.rindex(
        b"\xff\xff\xff\xff\0\0\0\0"
    )  # behind it stands the footer, which nothing reads
    for offset in range(8, end, 97):
        flip(path, offset)
        (fault,) = verify(catalog).faults
        assert fault.path == f"bases/rows/{path.name}"
        assert fault.offset <= offset
        assert "log rebase --anew" in fault.reason
        path.write_bytes(data)
    assert verify(catalog).sound


@pytest.mark.parametrize("how", ["deleted", "shortened", "lengthened"])
def test_a_file_that_is_not_whole_is_named_and_made_again_from_the_log(
    catalog: Path, how: str
) -> None:
    wanted = state(catalog.parent, "a"), state(catalog.parent, "b")
    for path in row_files(catalog.parent):
        if how == "deleted":
            path.unlink()
        else:
            data = path.read_bytes()
            path.write_bytes(data + b"x" if how == "lengthened" else data[:600])
    faults = verify(catalog).faults
    assert faults
    assert all(fault.path.startswith("bases/rows/") for fault in faults)
    if how != "lengthened":
        with pytest.raises(LogCorrupted, match="bases/rows/"):
            state(catalog.parent, "a")
    assert make_base(catalog, 6, anew=True) is not None
    assert verify(catalog).sound
    assert (state(catalog.parent, "a"), state(catalog.parent, "b")) == wanted
    delete_unnamed_rows(catalog, 10**15)
    assert verify(catalog).sound


def test_a_damaged_list_of_bases_is_named(catalog: Path) -> None:
    flip(catalog / "bases" / f"{1:020d}.json", 40)
    (fault,) = verify(catalog).faults
    assert fault.path == f"bases/{1:020d}.json"
    with pytest.raises(LogCorrupted, match="bases/"):
        state(catalog.parent, "a")


def test_a_base_that_is_not_the_fold_of_the_log_is_named_by_the_row(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_version_1(view: Any, reader: Any, names: Any, name: str, *_: Any) -> TableState:
        return state_over(view, reader, names, name, 1, None)

    with LogWriter.open(catalog.parent, "shop") as writer:
        writer.append([upsert("5", 7, "b"), remove("1")])
    with monkeypatch.context() as patched:
        patched.setattr(making, "state_over", of_version_1)
        assert make_base(catalog, 6, anew=True) is not None
    faults = verify(catalog).faults
    # Of a a row is missing, and of b one is an older one.
    assert [fault.path.startswith("bases/rows/") for fault in faults] == [True, True]
    assert "of a " in faults[0].reason
    assert "the row of b '5' differs from the row" in faults[1].reason


def test_a_trimmed_log_is_compared_from_its_first_base_on(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim(catalog, 2, 6)
    assert verify(catalog).sound
    make_base(catalog, 7)
    assert [base.version for base in summarize(catalog).bases] == [1, 2]
    result = verify(catalog)
    assert result.sound
    assert result.bases == 2


def test_a_copy_of_a_log_has_its_bases(catalog: Path, tmp_path: Path) -> None:
    trim(catalog, 2, 6)
    copy_log(catalog, tmp_path / "copies")
    wanted = state(catalog.parent, "a")
    assert state(tmp_path / "copies", "a") == wanted
    assert verify(tmp_path / "copies" / "shop").bases == 1


@pytest.mark.parametrize("how", ["flipped", "deleted", "list"])
def test_a_damaged_base_is_read_around_where_somebody_is_told(catalog: Path, how: str) -> None:
    root = catalog.parent
    wanted = state(root, "a")
    log = open_catalog(root, "shop")
    (base,) = newest_bases(log.store, log.uuid).bases
    table = table_in(base, "a")
    assert table is not None
    file = table.files[-1]
    victim = catalog / file.path
    # In the last batch, so that rows have been given before it is met.
    if how == "flipped":
        flip(victim, file.offset[-1] + file.length[-1] // 2)
    elif how == "deleted":
        victim.unlink()
    else:
        victim = catalog / "bases" / f"{1:020d}.json"
        flip(victim, 40)
    with pytest.raises(LogCorrupted, match=victim.name):
        state(root, "a")
    told: list[LogCorrupted] = []
    assert state(root, "a", on_damage=told.append) == wanted
    assert {victim.name} == {each.path.rpartition("/")[2] for each in told}
    with BatchReader(catalog) as reader:
        found = table_state(log.view, reader, "a", 2, told.append).rows_of(list(wanted))
        assert as_table([found]) == wanted


def test_an_older_base_stands_in_for_a_damaged_one_of_a_trimmed_log(catalog: Path) -> None:
    root = catalog.parent
    with LogWriter.open(root, "shop") as writer:
        writer.append([upsert("5", 7, "a"), upsert("5", 7, "b")])
        writer.append([upsert("6", 8, "a")])
    trim(catalog, 2, 8)
    assert make_base(catalog, 9, 3) is not None
    wanted = state(root, "a")
    told: list[LogCorrupted] = []
    for path in row_files(root):
        if not path.name.startswith(f"{1:020d}-"):
            path.unlink()
    assert state(root, "a", on_damage=told.append) == wanted
    assert told
    # Nothing else says what the rows were before the log begins.
    for path in row_files(root):
        path.unlink()
    with pytest.raises(LogCorrupted):
        state(root, "a", on_damage=told.append)
