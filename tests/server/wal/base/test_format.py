"""The page of the format is enough to read a base: with pyarrow, json and the rules of docs/wal-format.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from tailrace_server.wal.base import base_files
from tailrace_server.wal.base.making import delete_unnamed_rows, make_base
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.base.tables import naive, rename, row_files
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    import pytest

_MODULUS = 1 << 64


def lines_of(path: Path) -> Any:
    """Read an object of section 1."""
    data = path.read_bytes()
    text, check = data[:-16], data[-16:]
    assert check == b"crc32c %08x\n" % google_crc32c.value(text)
    return json.loads(text)


def word_hash(value: int, data: bytes) -> int:
    """Hash by section 7."""
    for place in range(0, len(data), 8):
        word = int.from_bytes(data[place : place + 8], "little")
        value = (value ^ word) * 0x9E3779B97F4A7C15 % _MODULUS
        value ^= value >> 32
    value = (value ^ len(data)) * 0xD6E8FEB86659FD93 % _MODULUS
    return value ^ value >> 32


def rows_in(catalog: Path, table: dict[str, Any]) -> dict[str, tuple[tuple[int, int], int, bytes]]:
    """Read a table batch by batch, by section 10."""
    rows = {}
    hashes = []
    for file in table["files"]:
        data = (catalog / file["path"]).read_bytes()
        assert len(data) == file["bytes"]
        ((start, length, crc),) = file["prefix"]
        schema = data[start : start + length]
        assert google_crc32c.value(schema) == crc
        names = ("offset", "length", "batch_rows", "crc32c", "first_hash", "last_hash")
        for offset, size, count, crc, first, last in zip(*map(file.get, names), strict=True):
            message = data[offset : offset + size]
            assert google_crc32c.value(message) == crc
            stream = schema + message + b"\xff\xff\xff\xff\0\0\0\0"
            (batch,) = pa.ipc.open_stream(stream)
            assert batch.num_rows == count
            found = batch.to_pylist()
            assert (found[0]["key_hash"], found[-1]["key_hash"]) == (first, last)
            for row in found:
                seed = word_hash(0, table["hashed_as"].encode())
                assert row["key_hash"] == word_hash(seed, row["primary_key"].encode())
                hashes.append(row["key_hash"])
                at = row["version"], row["index"]
                rows[row["primary_key"]] = at, row["count"], row["after"]
        assert pa.ipc.open_file(data).read_all().num_rows == file["rows"]
    assert hashes == sorted(hashes)
    assert len(rows) == table["rows"]
    return rows


def test_a_base_is_read_by_what_the_page_says(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_files, "_BATCH_ROWS", 2)
    monkeypatch.setattr(base_files, "_FILE_BYTES", 1_500)
    catalog = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(9)])
    make_base(catalog, 5)
    rename(log_root, "order", "sale", [upsert("2", 5, "sale")])
    make_base(catalog, 6)
    first, second = (lines_of(path) for path in sorted((catalog / "bases").glob("*.json")))
    assert second["number"] == 2
    assert second["previous_crc32c"] == google_crc32c.value(
        (catalog / "bases" / f"{1:020d}.json").read_bytes()[:-16]
    )
    (base,) = second["bases"]
    (table,) = base["tables"]
    assert (base["version"], table["entity_type"], table["hashed_as"]) == (2, "sale", "order")
    assert rows_in(catalog, table) == naive(catalog, 2, "order", "sale")
    gone = {file["path"] for file in first["bases"][0]["tables"][0]["files"]}
    assert {path for path, _ in second["removed"]} == gone
    assert set(delete_unnamed_rows(catalog, 10**15)) == gone
    assert len(row_files(log_root)) == len(table["files"]) > 1
