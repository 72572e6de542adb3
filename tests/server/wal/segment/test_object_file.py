"""Objects as files: what Arrow reads through the store is what lies in the file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.schema.records import ObjectFile

if TYPE_CHECKING:
    from pathlib import Path


def digits(tmp_path: Path) -> ObjectFile:
    (tmp_path / "object").write_bytes(bytes(range(10)))
    return ObjectFile(LocalFiles(tmp_path).open("object") or pytest.fail("no object"))


def test_reads_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    file = digits(tmp_path)
    assert file.read(4) == bytes(range(4))
    assert (file.tell(), file.read()) == (4, bytes(range(4, 10)))
    assert file.read(4) == b""


def test_a_seek_counts_from_the_beginning_from_here_or_from_the_end(tmp_path: Path) -> None:
    file = digits(tmp_path)
    assert (file.seek(6), file.read(1)) == (6, b"\x06")
    assert (file.seek(-3, io.SEEK_CUR), file.read(1)) == (4, b"\x04")
    assert (file.seek(-1, io.SEEK_END), file.read()) == (9, b"\x09")


def test_arrow_reads_a_file_through_it(tmp_path: Path) -> None:
    table = pa.table({"number": [1, 2, 3]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    found = LocalFiles(tmp_path).open("a.arrow") or pytest.fail("no object")
    with ObjectFile(found) as file, pa.ipc.open_file(file) as reader:
        assert reader.num_record_batches == 2
        assert reader.read_all() == table
