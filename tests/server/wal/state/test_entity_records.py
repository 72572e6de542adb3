"""The records of one entity type. What an export makes of them: ../../export/test_diffs.py, test_cdcv2.py."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest, LogCorrupted, PositionCompacted
from tailrace_server.wal.catalog import create_catalog, open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.columns import BATCH_BYTES_MAX
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.entity_records import EntityRecords
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tests.server.wal.logs import remove, update, upsert, write, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RENAMED = SchemaMapping.parse('[entity_types.sale]\nrenamed_from = "order"')


@contextmanager
def records_of(root: Path, entity_type: str) -> Iterator[EntityRecords]:
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        yield EntityRecords(log, reader, entity_type)


def test_an_entity_type_that_does_not_exist_is_refused_with_those_that_do(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    with pytest.raises(InvalidRequest, match="no entity type 'order'; none is known yet"):
        records_of(log_root, "order").__enter__()
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1", entity_type="b"), upsert("1", entity_type="a")])
    with pytest.raises(InvalidRequest, match="no entity type 'order'; known: a, b"):
        records_of(log_root, "order").__enter__()


def test_versions_are_those_with_its_records_under_whatever_name(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("9", entity_type="user")])
        writer.append([upsert("8", entity_type="user")])
        writer.append([update("1", 1, 2), remove("0")])
    with LogWriter.open(log_root, "shop", mapping=RENAMED) as writer:
        writer.append([upsert("2", entity_type="sale")])
    with records_of(log_root, "sale") as records:
        found = {version.number: version for version in records.versions(1, 9)}
        assert {number: [row.key for row in each.records] for number, each in found.items()} == {
            1: ["1"],
            3: ["1", "0"],
            4: ["2"],
        }
        assert [row.updated for row in found[3].records] == [True, False]
        assert [column.name for column in found[1].columns] == ["id", "value"]
        assert [version.number for version in records.versions(2, 4)] == [3]
        assert [*records.versions(4, 4)] == []


def test_a_version_of_several_batches_is_one(log_root: Path) -> None:
    large = b'{"id":"1","value":"%s"}' % (b"x" * (BATCH_BYTES_MAX * 2 // 3))
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([replace(upsert(str(key)), after=large) for key in range(2)])
        writer.append([upsert("2")])
    with records_of(log_root, "order") as records:
        assert records.view.batch(0).last.version == records.view.batch(1).first.version == 1
        keys = [[row.key for row in version.records] for version in records.versions(1, 9)]
    assert keys == [["0", "1"], ["2"]]


def test_files_that_are_replaced_meanwhile_are_found_in_the_newest_view(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 4)
    with records_of(log_root, "order") as records:
        versions = records.versions(1, 9)
        numbers = [next(versions).number]
        compact(log_root / "shop", 5)
        assert delete_unnamed(log_root / "shop", 10, grace_s=0)
        numbers += [version.number for version in versions]
    assert numbers == [1, 2, 3, 4]


def test_a_lost_file_is_damage_and_a_trimmed_version_is_compacted(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 3)
    with records_of(log_root, "order") as records:
        lost = records.view.batch(2).segment.path
    trim(log_root / "shop", 2, 5)
    (log_root / "shop" / lost).unlink()
    with records_of(log_root, "order") as records:
        records.require(2)
        with pytest.raises(
            PositionCompacted, match="ingest the lost rows again, into another catalog"
        ):
            next(records.versions(1, 9))
        versions = records.versions(2, 9)
        with pytest.raises(LogCorrupted, match="the segment is missing"):
            list(versions)
