"""The folder of a stream by itself; exports into one are tested in `test_cdcv2.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tailrace.schema import Column
from tailrace_server.export.errors import FolderTaken
from tailrace_server.export.folder import IDENTITY, SCHEMA, StreamFolder, StreamIdentity
from tailrace_server.wal.files.schema_documents import ColumnDocument

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = (Column("id", id=1, sql_type="BIGINT"), Column("name", id=4, sql_type="VARCHAR"))
STREAM = StreamIdentity(
    catalog_uuid="8b1e",
    entity_type="item",
    entity_id=1,
    since=0,
    columns=[ColumnDocument.of(column) for column in COLUMNS],
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_claimed_once_and_keeps_its_identity(tmp_path: Path) -> None:
    folder = StreamFolder(tmp_path / "deep" / "out")
    assert folder.identity() is None
    assert folder.begin(STREAM, b"schema\n") == STREAM
    assert names(folder.path) == [IDENTITY, SCHEMA]
    assert (folder.path / SCHEMA).read_bytes() == b"schema\n"
    assert tuple(STREAM.stream_columns()) == COLUMNS
    other = structs.replace(STREAM, columns=STREAM.columns[:1])
    assert folder.begin(other, b"other\n") == STREAM, "columns of the first one stay"
    assert (folder.path / SCHEMA).read_bytes() == b"schema\n"


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(STREAM, catalog_uuid="9c2f"),
        structs.replace(STREAM, entity_id=2),
        structs.replace(STREAM, since=3),
    ],
)
def test_a_folder_is_refused_to_another_stream(tmp_path: Path, other: StreamIdentity) -> None:
    folder = StreamFolder(tmp_path)
    folder.begin(STREAM, b"")
    with pytest.raises(FolderTaken, match="holds 'item' of catalog 8b1e from the log's beginning"):
        folder.begin(other, b"")


def test_a_renamed_entity_type_is_the_same_stream(tmp_path: Path) -> None:
    folder = StreamFolder(tmp_path)
    folder.begin(STREAM, b"")
    assert folder.begin(structs.replace(STREAM, entity_type="product"), b"") == STREAM
    unknown = structs.replace(STREAM, entity_id=0)
    assert not unknown.same_start(structs.replace(unknown, entity_type="product"))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("notes.txt", "", "holds notes.txt, which is not a file of an export"),
        (IDENTITY, "{}", "has a damaged _export.json"),
        (IDENTITY, "", "has a damaged _export.json"),
    ],
)
def test_what_no_export_wrote_is_left_alone(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FolderTaken, match=reason):
        StreamFolder(tmp_path).begin(STREAM, b"")
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_text() == text


def test_a_folder_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = StreamFolder(tmp_path)
    folder.begin(structs.replace(STREAM, format_version=1), b"")
    newer = (tmp_path / IDENTITY).read_text().replace('"format_version": 1', '"format_version": 2')
    (tmp_path / IDENTITY).write_text(newer)
    with pytest.raises(FolderTaken, match="written in format 2, but this tailrace writes format 1"):
        folder.identity()


def test_names_that_spark_skips_do_not_take_a_folder(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".crc").touch()
    assert StreamFolder(tmp_path).begin(STREAM, b"") == STREAM


@pytest.mark.parametrize(
    ("intervals", "frontier"),
    [
        ([], 0),
        ([(1, 5)], 0),
        ([(0, 5)], 5),
        ([(0, 5), (5, 9)], 9),
        ([(5, 9), (0, 5), (0, 3)], 9),
        ([(0, 5), (6, 9)], 5),
        ([(0, 9), (2, 4), (9, 10)], 10),
    ],
)
def test_the_frontier_is_the_end_of_what_is_covered_without_a_hole(
    tmp_path: Path, intervals: list[tuple[int, int]], frontier: int
) -> None:
    folder = StreamFolder(tmp_path)
    for lower, upper in intervals:
        assert folder.publish(lower, upper, lambda file: file.write(b"x"))
    (tmp_path / "00000000000000000000-77.avro").touch()
    assert folder.frontier() == frontier
    assert sorted(folder.intervals()) == sorted(intervals)


def test_a_file_is_never_replaced_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = StreamFolder(tmp_path)
    assert folder.publish(0, 3, lambda file: file.write(b"first"))
    assert not folder.publish(0, 3, lambda file: file.write(b"second"))
    (only,) = tmp_path.iterdir()
    assert only.name == "00000000000000000000-00000000000000000003.avro"
    assert only.read_bytes() == b"first"


def test_a_file_that_cannot_be_written_to_its_end_does_not_appear(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise ValueError("a misfit halfway")

    with pytest.raises(ValueError, match="halfway"):
        StreamFolder(tmp_path).publish(0, 3, fail)
    assert not list(tmp_path.iterdir())
