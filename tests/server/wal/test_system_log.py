"""The records of the system log, column by column. Which events are recorded when: test_catalog.py."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import orjson

from tailrace.criteria import Area, Operation
from tailrace_server.wal.catalog import create_catalog, drop_catalog
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.system_log import ENTITY_TYPE, record_changes
from tests.server.wal.logs import INDEX, SteppingClock, rows_of

if TYPE_CHECKING:
    from pathlib import Path


def test_records_say_what_a_catalog_was_and_is(log_root: Path) -> None:
    clock = SteppingClock(5_000)
    first = {"name": "shop", "uuid": str(create_catalog(log_root, "shop", clock=clock))}
    clock.time = 6_000
    elsewhere = log_root / "elsewhere"
    elsewhere.mkdir()
    second = {"name": "shop", "uuid": str(create_catalog(elsewhere, "shop", clock=clock))}
    shutil.rmtree(log_root / "shop")
    (elsewhere / "shop").rename(log_root / "shop")
    record_changes(log_root, clock=clock)
    drop_catalog(log_root, "shop", clock=clock)
    old, new = {**first, "created": 5_000}, {**second, "created": 6_000}
    rows = [row for row in rows_of(log_root / "system") if row[INDEX]]
    assert [(*row[3:6], row[7], row[8], *map(orjson.loads, row[9:10])) for row in rows] == [
        (Area.SCHEMA, operation, ENTITY_TYPE, "shop", changed, {"event": event})
        for operation, changed, event in (
            (Operation.UPSERT, None, "created"),
            (Operation.UPSERT, ["uuid", "created"], "replaced"),
            (Operation.REMOVE, None, "dropped"),
        )
    ]
    images = [[image and orjson.loads(image) for image in row[10:12]] for row in rows]
    assert images == [[None, old], [old, new], [new, None]]


def test_nothing_new_writes_nothing_and_opens_no_epoch(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    before = CommitLog.open(log_root / "system").state.last_entry
    record_changes(log_root)
    assert CommitLog.open(log_root / "system").state.last_entry == before


def test_a_copy_of_a_catalog_is_no_new_one(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    shutil.copytree(log_root / "shop", log_root / "copy")
    create_catalog(log_root, "bank")
    keys = [row[7] for row in rows_of(log_root / "system") if row[INDEX]]
    assert keys == ["shop", "bank"]
