"""A Delta table with a change feed, beside a log."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import tailrace.log

if TYPE_CHECKING:
    from pathlib import Path

FEED = {"delta.enableChangeDataFeed": "true"}


class Lake:
    """A Delta table, and a log whose catalog ``shop`` has its rows."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.log = folder, folder / "log"
        self.table = str(folder / "orders")
        self.random = random.Random(7)

    def move(self, name: str) -> None:
        """Go on with another table."""
        self.table = str(self._folder / name)

    def copy_of(self, name: str) -> None:
        """Make the table a copy of another one."""
        shutil.copytree(self._folder / name, self.table)

    def append(self, *rows: tuple[int, str]) -> None:
        ids, names = zip(*rows, strict=True)
        given = pa.table({"id": ids, "name": names})
        write_deltalake(self.table, given, mode="append", configuration=FEED)

    def change(self) -> None:
        """Do one of the things that make a version, also such that change no row."""
        table = DeltaTable(self.table)
        row = f"id = {self.random.randrange(6)}"
        match self.random.randrange(5):
            case 0:
                table.update(updates={"name": f"'{self.random.random()}'"}, predicate=row)
            case 1:
                table.delete(row)
            case 2:
                table.optimize.compact()
            case 3:
                write_deltalake(
                    self.table, pa.table({"id": [1], "name": ["one"]}), mode="overwrite"
                )
            case 4:
                source = pa.table({"id": [2, 3], "name": [str(self.random.random())] * 2})
                merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def rows(self, version: int | None = None) -> list[tuple[int, str]]:
        found = DeltaTable(self.table, version=version).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["name"]) for row in found)

    def state(self, version: int | None = None) -> list[tuple[int, str]]:
        read = tailrace.log.read(self.log, "shop", "order", shape="state", at=version)
        return sorted((row["id"], row["name"]) for row in read.read_all().to_pylist())

    def versions(self) -> list[int]:
        read = tailrace.log.read(self.log, "shop", "order").read_all()
        return sorted(set(read["_commit_version"].to_pylist()))
