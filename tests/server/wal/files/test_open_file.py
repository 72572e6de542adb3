"""Ranges of an open file: as many bytes as there are, also after its name is gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace_server.wal.files.local_files import OpenFile, open_file, read_open

if TYPE_CHECKING:
    from pathlib import Path


def test_ranges_end_where_the_file_ends_and_need_no_name(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(range(10)))
    file = OpenFile(open_file(str(path)) or -1)
    path.unlink()
    data = bytearray(6)
    assert file.read_into(memoryview(data), 2) == 6
    assert bytes(data) == bytes(range(2, 8))
    assert file.read_into(memoryview(data), 8) == 2
    assert bytes(data[:2]) == b"\x08\x09"
    assert (file.read_into(memoryview(b"").cast("B"), 0), file.size()) == (0, 10)


def test_what_is_not_there_is_none_and_a_limit_is_kept(tmp_path: Path) -> None:
    assert open_file(str(tmp_path / "missing")) is None
    (tmp_path / "object").write_bytes(b"whole")
    assert open_file(str(tmp_path / "object" / "below")) is None
    for limit, expected in ((None, b"whole"), (3, b"who"), (99, b"whole")):
        descriptor = os.open(tmp_path / "object", os.O_RDONLY)
        try:
            assert read_open(descriptor, "object", limit)[0] == expected
        finally:
            os.close(descriptor)
