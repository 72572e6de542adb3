"""docs/wal-format.md is enough to read a log: this reader uses pyarrow, json and that page, no code of ours.

Only the logs to be read are written by ours, in fixtures.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import rows_of, update, upsert, write

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]


def crc32c(data: bytes, crc: int = 0) -> int:
    """Castagnoli, bit by bit: slow and plain."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def small_object(path: Path) -> tuple[list[Document], int]:
    """Section 1."""
    data = path.read_bytes()
    text, check = data[:-16], data[-16:]
    assert check == b"crc32c %08x\n" % crc32c(text)
    documents = [json.loads(line) for line in text.splitlines()]
    assert all(each.get("format_version", 1) == 1 for each in documents)
    return documents, crc32c(text)


def entry_object(path: Path) -> tuple[list[Document], int]:
    """Section 4: the line is what stands between the last line feed before it and the checksum's line."""
    data = path.read_bytes()
    text, check = data[:-17].rpartition(b"\n")[2] + b"\n", data[-16:]
    assert check == b"crc32c %08x\n" % crc32c(text)
    return [json.loads(text)], crc32c(text)


def numbered(
    folder: Path, after: int, read: Callable[[Path], tuple[list[Document], int]] = small_object
) -> list[tuple[list[Document], int]]:
    found: list[tuple[list[Document], int]] = []
    while (path := folder / f"{after + len(found) + 1:020d}.json").exists():
        found.append(read(path))
    return found


class PageReader:
    """A reader of a log as the page describes it."""

    def __init__(self, catalog: Path) -> None:
        self.catalog = catalog
        self.uuid = small_object(catalog / "catalog.json")[0][0]["uuid"]
        self.segments: list[Document] = []
        self.commits: list[tuple[int, int]] = []
        self.schemas: list[tuple[int, int]] = []
        self.oldest = [1, 0]
        self.publication: Document | None = None
        self.entry, self.entry_crc, self.publication_crc = 0, 0, 0
        self.epoch = 0
        self.committed, self.published_by_entry = 0, 0
        checkpoints = sorted((catalog / "checkpoints").iterdir())
        if checkpoints:
            self.load_checkpoint(checkpoints[-1])
        self.follow()

    def load_checkpoint(self, path: Path) -> None:
        """Section 6."""
        (header, body), _ = small_object(path)
        assert header["uuid"] == self.uuid
        self.oldest = header["oldest"]
        self.entry, self.entry_crc = header["last_entry"], body["last_entry_crc32c"]
        self.publication = body["publication"]
        self.publication_crc = body["publication_crc32c"]
        self.epoch = body["epoch"]
        self.committed = body["last_version"]
        self.published_by_entry = body["published_by_entry"]
        self.schemas = body["schemas"]
        self.commits = list(
            zip(body["commits"]["first_version"], body["commits"]["timestamp"], strict=True)
        )
        place = 0
        table = body["segments"]
        for number, count in enumerate(table["batches"]):
            segment = {name: column[number] for name, column in table.items()}
            segment["batches"] = {
                name: column[place : place + count] for name, column in body["batches"].items()
            }
            self.segments.append(segment)
            place += count

    def follow(self) -> None:
        """Sections 4 and 5: publications first, then entries."""
        before = 0 if self.publication is None else self.publication["number"]
        for (publication,), crc in numbered(self.catalog / "published", before):
            assert publication["previous_crc32c"] == self.publication_crc
            self.publication, self.publication_crc = publication, crc
        for (entry,), crc in numbered(self.catalog / "log", self.entry, entry_object):
            assert entry["uuid"] == self.uuid
            assert entry["number"] == self.entry + 1
            assert entry["previous_crc32c"] == self.entry_crc
            assert entry["epoch"] == self.epoch + (entry["kind"] == "open")
            self.entry, self.entry_crc, self.epoch = entry["number"], crc, entry["epoch"]
            if entry["kind"] == "commit" and entry["first_version"] is not None:
                self.segments += entry["segments"]
                self.commits.append((entry["first_version"], entry["timestamp"]))
                self.schemas += entry["schemas"]
                self.committed = entry["last_version"]
            if entry["kind"] == "commit" and entry["published"]:
                self.published_by_entry = self.committed

    def records(self) -> list[Document]:
        """Return all that may be seen."""
        released = 0 if self.publication is None else self.publication["version"]
        published = max(released, self.published_by_entry)
        found: list[Document] = []
        for segment in self.segments:
            for number in range(len(segment["batches"]["rows"])):
                batch = {name: column[number] for name, column in segment["batches"].items()}
                if batch["first_version"] <= published:
                    found += self.batch(segment, batch)
        return [each for each in found if [each["version"], each["index"]] >= self.oldest]

    def batch(self, segment: Document, batch: Document) -> list[Document]:
        """Section 3."""
        data = (self.catalog / segment["path"]).read_bytes()
        if segment["path"].startswith("log/"):
            assert data[segment["bytes"] : segment["bytes"] + 2] == b"\n{"
        else:
            assert len(data) == segment["bytes"]
        stream = b""
        for offset, length, crc in segment["prefix"]:
            assert crc32c(data[offset : offset + length]) == crc
            stream += data[offset : offset + length]
        message = data[batch["offset"] : batch["offset"] + batch["length"]]
        start = batch["head_length"]
        assert crc32c(message[:start]) == batch["head_crc32c"]
        for name in ("change", "before", "after"):
            body = message[start : start + batch[f"{name}_length"]]
            assert crc32c(body) == batch[f"{name}_crc32c"]
            start += batch[f"{name}_length"]
        assert start == batch["length"]
        rows = pa.ipc.open_stream(stream + message + b"\xff\xff\xff\xff\0\0\0\0").read_all()
        assert rows.num_rows == batch["rows"]
        records: list[Document] = rows.to_pylist()
        for number, record in enumerate(records):
            record["version"] += segment["base_version"]
            record["row"] = batch["first_row"] + number
            place = bisect_right([first for first, _ in self.commits], record["version"]) - 1
            record["timestamp"] = self.commits[place][1]
        ends = [(each["version"], each["index"]) for each in (records[0], records[-1])]
        assert ends == [
            (batch["first_version"], batch["first_index"]),
            (batch["last_version"], batch["last_index"]),
        ]
        return records

    def columns(self, version: int, entity_type: str) -> list[str]:
        """Section 8."""
        id = max(id for first, id in self.schemas if first <= version)
        (schema,), _ = small_object(self.catalog / "schemas" / f"{id}.json")
        return [column["name"] for column in schema["entity_types"][entity_type]]


def word_hash(value: int, text: str) -> int:
    """Section 7."""
    data = text.encode()
    for place in range(0, len(data), 8):
        word = int.from_bytes(data[place : place + 8], "little")
        value = (value ^ word) * 0x9E3779B97F4A7C15 % 2**64
        value ^= value >> 32
    value = (value ^ len(data)) * 0xD6E8FEB86659FD93 % 2**64
    return value ^ (value >> 32)


def check(catalog: Path) -> list[Document]:
    """Hold the page's reader against ours."""
    records = PageReader(catalog).records()
    expected = rows_of(catalog)
    names = ["row", "version", "index", "area", "operation", "entity_type", "key_hash"]
    names += ["primary_key", "changed", "change", "before", "after", "timestamp"]
    oldest = tuple(PageReader(catalog).oldest)
    assert [tuple(record[name] for name in names) for record in records] == [
        row for row in expected if row[1:3] >= oldest
    ]
    for record in records:
        if record["primary_key"] is not None:
            seed = word_hash(0, record["entity_type"])
            assert record["key_hash"] == word_hash(seed, record["primary_key"])
    return records


@pytest.mark.slow
def test_a_log_is_read_by_nothing_but_the_page(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    for number in range(6):
        key = f"key-{number}-ключ"
        writer.append([upsert(key), update("1", 1, number)])
        writer.append([upsert(key, entity_type=f"type-{number}")])
        writer.commit()
        if number == 3:
            writer.publish()
    # Of each round two leads, three changes and what the new type's columns are; of the first, also `order`'s.
    assert len(check(log_root / "shop")) == 1 + 4 * 6
    writer.publish()
    assert len(check(log_root / "shop")) == 1 + 6 * 6
    assert PageReader(log_root / "shop").columns(1, "order") == ["id", "value"]
    writer.compact()
    assert len(check(log_root / "shop")) == 1 + 6 * 6
    writer.append([upsert("after")])
    writer.commit()
    writer.append([upsert(f"many-{number}") for number in range(99)])
    writer.commit()
    writer.publish()
    assert len(check(log_root / "shop")) == 1 + 6 * 6 + 2 + 100
    writer.trim(before=4)
    assert check(log_root / "shop")[0]["version"] == 4
    writer.append([upsert("waiting")])
    writer.commit()
    assert check(log_root / "shop")[-1]["version"] == 14
    writer.append([upsert("at once")])
    writer.commit(publish=True)
    assert check(log_root / "shop")[-1]["version"] == 16
    writer.trim(before=5)  # makes a checkpoint that knows it
    assert check(log_root / "shop")[-1]["version"] == 16
    writer.append([upsert("waiting")])
    writer.commit()
    assert check(log_root / "shop")[-1]["version"] == 16
    writer.publish()
    assert check(log_root / "shop")[-1]["version"] == 17
    writer.close()
    write(log_root, "shop", 1)
    assert check(log_root / "shop")[-1]["version"] == 18
    assert len(check(log_root / "system")) == 2


def test_the_numbers_of_the_page_are_right() -> None:
    page = (Path(__file__).parents[3] / "docs" / "wal-format.md").read_text()
    seed = word_hash(0, "order")
    assert f"{seed:016x}" in page
    assert f"{word_hash(seed, '17'):016x}" in page
    assert crc32c(b"123456789") == 0xE3069283
