"""Key files: what they leave out has no record of the key, whatever was compacted, trimmed or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.criteria import Area
from tailrace_server.wal.base import key_files
from tailrace_server.wal.base.key_files import (
    KEY_FILES,
    check_key_files,
    key_file_is_due,
    key_file_path,
    make_key_files,
    numbers_of,
)
from tailrace_server.wal.base.winners import LogTable, Wanted
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.segment.reader import BatchHead, BatchReader
from tailrace_server.wal.state.entity_names import EntityNames
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.base.tables import rename
from tests.server.wal.logs import KEY, VERSION, rows_of, upsert, write_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file be about 64 records, in blocks of 8."""
    monkeypatch.setattr(key_files, "_ROW_BITS", 6)
    monkeypatch.setattr(key_files, "_BLOCK_BITS", 3)


def write(root: Path) -> None:
    """Write 200 commits of one to three records: their batches lie across the borders of files."""
    with LogWriter.open(root, "shop") as writer:
        for number in range(200):
            keys = {number, number % 7 + 1_000, number // 50 + 2_000}
            writer.append([upsert(str(key)) for key in sorted(keys)[: 1 + number % 3]])
            writer.commit(publish=True)


def found(root: Path, key: str, after: int = 0, version: int = 10**6) -> tuple[set[int], int]:
    """Return the versions of a key's records, and how many batches were looked at."""
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        names = EntityNames(log.view.schema_of(log.view.published), "order")
        table = LogTable(log.view, reader, names, names.first_name(log.view), counted=False)
        chosen = np.array([key_hash(type_seed("order"), key)], np.uint64)
        refs = [ref for _, ref in table.batches_of(after, version, Wanted(chosen=chosen))]
        heads = [reader.head(ref) for ref in refs]
        assert [ref.first for ref in refs] == sorted({ref.first for ref in refs})
    versions: set[int] = set()
    for head in heads:
        mine = np.array([each == key for each in head.primary_keys.to_pylist()])
        versions |= set(head.versions[mine].tolist())
    return {each for each in versions if after < each <= version}, len(refs)


def wanted(root: Path, key: str, after: int = 0, version: int = 10**6) -> set[int]:
    return {
        row[VERSION]
        for row in rows_of(root / "shop")
        if row[KEY] == key and after < row[VERSION] <= version
    }


def test_all_records_of_a_key_are_found_and_little_else_is_looked_at(log_root: Path) -> None:
    write(log_root)
    path = log_root / "shop"
    assert make_key_files(path) == len(numbers_of(open_catalog(log_root, "shop").store)) >= 5
    assert make_key_files(path) == 0
    for compacted in (False, True):
        if compacted:
            with LogWriter.open(log_root, "shop") as writer:
                assert writer.compact() is not None
        for key in ("0", "77", "199", "1003", "2001", "none"):
            for after, version in ((0, 10**6), (60, 140), (0, 3), (199, 200)):
                versions, _ = found(log_root, key, after, version)
                assert versions == wanted(log_root, key, after, version), (key, after)
        if not compacted:
            # In a file eight batches or so are of one block; behind the last file each is looked at.
            assert found(log_root, "77", 0, 150)[1] < 12
    assert verify(path).sound


def test_files_of_what_was_trimmed_go(log_root: Path) -> None:
    write(log_root)
    path = log_root / "shop"
    made = make_key_files(path)
    trim(path, 120, 10**15)
    delete_unnamed(path, 10**18)
    log = open_catalog(log_root, "shop")
    left = numbers_of(log.store)
    assert 0 < len(left) < made
    assert found(log_root, "150")[0] == wanted(log_root, "150") == {151}
    assert make_key_files(path) == 0
    assert verify(path).sound


def test_files_are_made_in_the_newest_view_when_segments_go_meanwhile(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root)
    catalog = log_root / "shop"
    for each in (catalog / "keys").glob("*"):
        each.unlink()
    head = BatchReader.head

    def overtaken(*arguments: Any) -> BatchHead:
        monkeypatch.undo()
        monkeypatch.setattr(key_files, "_ROW_BITS", 6)
        monkeypatch.setattr(key_files, "_BLOCK_BITS", 3)
        compact(catalog, 5)
        delete_unnamed(catalog, 10**15)
        return head(*arguments)

    monkeypatch.setattr(BatchReader, "head", overtaken)
    assert make_key_files(catalog) > 0
    assert verify(catalog).sound


def test_a_damaged_file_is_named_and_read_around(
    log_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(log_root)
    path = log_root / "shop"
    make_key_files(path)
    target = path / key_file_path(1)
    whole = target.read_bytes()
    for damaged in (
        whole[:-1],
        b"x" + whole[1:],
        whole[:40],
        whole + b"x",
    ):
        target.unlink()
        target.write_bytes(damaged)
        assert {each.path for each in verify(path).faults} == {key_file_path(1)}
        for key in ("30", "77", "1003"):
            assert found(log_root, key)[0] == wanted(log_root, key)
    assert "delete the file, and it is made again" in caplog.text


def test_no_flipped_bit_hides_a_record(log_root: Path) -> None:
    write(log_root)
    path = log_root / "shop"
    make_key_files(path)
    log = open_catalog(log_root, "shop")
    target = path / key_file_path(1)
    whole = target.read_bytes()
    choose = np.random.default_rng(5)
    with BatchReader(path) as reader:
        held: dict[int, int] = {}
        for place in range(log.view.find_row(64), log.view.find_row(127) + 1):
            head = reader.head(log.view.batch(place))
            held |= dict.fromkeys(head.key_hashes[head.areas == Area.DATA].tolist(), place)
        # The lines, and the entries behind them.
        entries = len(whole) - 4 * 64
        for offset in choose.integers([0] * 3 + [entries] * 7, len(whole)).tolist():
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << int(choose.integers(8))
            target.unlink()
            target.write_bytes(damaged)
            assert len(list(check_key_files(log.view, reader))) == 1
            for each, place in held.items():
                asked = np.array([each], np.uint64)
                every = range(len(log.view))
                seen = KEY_FILES.places(log.view, reader, every, asked, lambda _, __: True)
                assert place in {number for number, _ in seen}, (offset, each)


def test_a_copy_has_all_that_its_log_can_have(log_root: Path, tmp_path: Path) -> None:
    write(log_root)
    path = log_root / "shop"
    missing = verify(path)
    assert (missing.key_files, missing.sound) == (0, True)
    make_key_files(path)
    wanted_names = numbers_of(open_catalog(log_root, "shop").store)
    # One is missing in the log, one is damaged.
    data = {each: (path / key_file_path(each)).read_bytes() for each in wanted_names}
    (path / key_file_path(0)).unlink()
    target = path / key_file_path(1)
    target.unlink()
    target.write_bytes(b"damaged")
    copied = copy_log(path, tmp_path / "copy")
    assert {each: (copied.path / key_file_path(each)).read_bytes() for each in wanted_names} == data
    found_in = verify(copied.path)
    assert (found_in.sound, found_in.key_files) == (True, missing.key_files_missing)
    assert found(tmp_path / "copy", "77")[0] == wanted(log_root, "77")
    assert copied.files == sum(1 for each in copied.path.rglob("*") if each.is_file()) - 1


def test_a_file_of_another_log_is_not_believed(log_root: Path, tmp_path: Path) -> None:
    """One that came with a copy of an older state, whose log went on with other records."""
    write(log_root)
    other = tmp_path / "other"
    other.mkdir()
    write(other)
    for root in (log_root, other):
        make_key_files(root / "shop")
    (log_root / "shop" / key_file_path(1)).write_bytes(
        (other / "shop" / key_file_path(1)).read_bytes()
    )
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        assert [each.path for each in check_key_files(log.view, reader)] == [key_file_path(1)]
        every = range(len(log.view))
        seen = list(
            KEY_FILES.places(log.view, reader, every, np.zeros(0, np.uint64), lambda _, __: True)
        )
    assert sum(1 for _, is_named in seen if not is_named) >= 20


def test_records_of_another_name_are_found(log_root: Path) -> None:
    write(log_root)
    rename(
        log_root,
        "order",
        "sale",
        [upsert("77", 5, "sale"), *(upsert(f"s{key}", 5, "sale") for key in range(69))],
    )
    log = open_catalog(log_root, "shop")
    assert make_key_files(log.path)
    assert not key_file_is_due(log)
    with BatchReader(log.path) as reader:
        names = EntityNames(log.view.schema_of(log.view.published), "sale")
        table = LogTable(log.view, reader, names, names.first_name(log.view), counted=False)
        chosen = np.array([key_hash(type_seed("order"), "77")], np.uint64)
        last = [ref for _, ref in table.batches_of(0, 10**6, Wanted(chosen=chosen))][-1]
    assert last.last.version == log.view.published
