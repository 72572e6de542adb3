"""Scans for keys with key files: the same matches as without, and heads of few batches are read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tailrace.criteria import Area, ContainerType, Criteria, Operation, Since
from tailrace.position import FIRST
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.base import key_files
from tailrace_server.wal.base.key_files import key_file_path, make_key_files
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tests.server.wal.logs import upsert
from tests.support.inprocess import coordinates, objects, receive

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tailrace_server.wal.segment.refs import BatchRef

CRITERIA = (
    Criteria(entity_type=("order",), primary_key=("none",)),
    Criteria(entity_type=("order",), primary_key=("7",)),
    Criteria(primary_key=("7", "none")),
    Criteria(entity_type=("item", "order"), primary_key=("3", "44"), operation=(Operation.UPSERT,)),
    Criteria(
        entity_type=("order",), primary_key=("12",), container_type=(ContainerType.ATTRIBUTE,)
    ),
)


def write(root: Path) -> None:
    """Write 150 commits of two types, with removals and a truncate."""
    choose = random.Random(4)
    with LogWriter.open(root, "shop") as writer:
        for commit in range(150):
            keys = choose.sample(range(60), 2)
            mutations = [
                upsert(str(key), commit, choose.choice(["order", "order", "item"])) for key in keys
            ]
            if commit == 70:
                mutations = [Mutation("order", None, Operation.REMOVE)]
            writer.append(mutations)
            writer.commit(publish=True)


async def read(engine: Engine, criteria: list[Criteria], **more: Any) -> list[object]:
    """Return what history gives."""
    history = await engine.history(ANONYMOUS, "shop", criteria, codec=JSON, **more)
    return [coordinates(each) for one in [_ async for _ in history] for each in objects(one)]


async def test_history_of_keys_is_the_same_with_key_files_without_and_with_damaged_ones(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "_ROW_BITS", 6)
    monkeypatch.setattr(key_files, "_BLOCK_BITS", 3)
    write(log_root)
    settings = EngineSettings(scan_batches=4)
    heads: list[BatchRef] = []
    read_head = BatchReader.head

    def noted(reader: BatchReader, ref: BatchRef) -> object:
        heads.append(ref)
        return read_head(reader, ref)

    monkeypatch.setattr(BatchReader, "head", noted)

    async def answers() -> tuple[list[list[object]], int]:
        heads.clear()
        async with Engine(log_root, settings) as engine:
            found = [await read(engine, [CRITERIA[0]])]
            looked_at = len(heads)
            for each in CRITERIA[1:]:
                found += [await read(engine, [each], reverse=way) for way in (False, True)]
            bounds = HistoryBounds(anchor=90)
            found.append(await read(engine, list(CRITERIA[1:4]), reverse=True, bounds=bounds))
            # One that matches records without a key is not looked up.
            both = [CRITERIA[1], Criteria(area=Area.SCHEMA)]
            found.append(await read(engine, both))
            # Who catches up is given the same as who reads history.
            start = Since(FIRST)
            subscription = await engine.subscribe(
                ANONYMOUS, "shop", [CRITERIA[1]], start=start, codec=JSON
            )
            caught_up = await receive(subscription, len(found[1]))
            assert [coordinates(each) for each in caught_up] == found[1]
            subscription.cancel()
        return found, looked_at

    expected, without = await answers()
    assert all(expected)
    make_key_files(log_root / "shop")
    found, looked_at = await answers()
    assert found == expected
    # Those of the truncate's block, and those behind the last file.
    assert looked_at < 12 < 150 <= without
    target = log_root / "shop" / key_file_path(2)
    data = bytearray(target.read_bytes())
    data[-3] ^= 4
    target.unlink()
    target.write_bytes(data)
    (log_root / "shop" / key_file_path(3)).unlink()
    assert (await answers())[0] == expected
