"""A live table moves from one log to another while it is written to, its exporter killed on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

from examples.move_table import Move, keep_running, move
from tailrace.criteria import Operation
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.server.export.logs import Shop, item
from tests.server.export.round_trip import history, moved_history
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def test_a_live_table_moves_without_a_stop(log_root: Path, tmp_path: Path) -> None:
    shop = Shop(log_root)
    shop.write(20)
    what = Move(
        source=log_root,
        target=tmp_path / "new",
        catalog="shop",
        entity_type="item",
        key="id",
        folder=tmp_path / "move",
    )
    what.target.mkdir()
    moving = asyncio.ensure_future(move(what, until=40))
    try:
        await until(lambda: what.arrived() >= 20)
        shop.write(10)
        exporter = next(
            child for child in psutil.Process().children() if "export" in child.cmdline()
        )
        exporter.kill()
        shop.write(10)
        async with asyncio.timeout(60):
            await moving
    finally:
        moving.cancel()
        await asyncio.wait([moving])
    assert what.arrived() == what.published() == 40
    assert moved_history(what.target) == history(log_root)


@pytest.mark.parametrize(("is_there", "status"), [(True, 1), (False, 2)])
async def test_a_command_that_ends_by_itself_is_not_run_again(
    log_root: Path, tmp_path: Path, is_there: bool, status: int
) -> None:
    if is_there:
        with LogWriter.open(log_root, "shop") as writer:
            writer.append([item(1, None, 1)])
            writer.append([Mutation("item", "1", Operation.REMOVE)])  # without what it removes
    what = Move(log_root, tmp_path / "new", "shop", "item", "id", tmp_path / "move")
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match=f"ended with status {status}"):
            await keep_running(what.export())
