"""What a log takes up on disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.disk_usage import measured
from tests.server.engine.test_engine import upsert
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


def test_all_files_of_a_folder_count_as_they_occupy_blocks(tmp_path: Path) -> None:
    (tmp_path / "log" / "deep").mkdir(parents=True)
    (tmp_path / "log" / "deep" / "large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "log" / "small").write_bytes(b"x")
    (tmp_path / "log" / "away").symlink_to(tmp_path)  # not followed: it would never end
    found = measured(tmp_path / "log", threading.Event())
    assert found is not None
    assert 1_000_001 <= found.nbytes < 1_100_000
    assert found.free_bytes > 0


def test_a_walk_ends_when_nobody_waits_for_it_and_a_folder_that_has_gone_has_no_size(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    stopping = threading.Event()
    stopping.set()
    assert measured(tmp_path, stopping) is None
    assert measured(tmp_path / "gone", threading.Event()) is None


async def test_the_engine_knows_the_size_of_every_log(log_root: Path, writer: ModelWriter) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        await until(lambda: "shop" in engine.statistics(ANONYMOUS).disks)
        assert engine.statistics(ANONYMOUS).disks["shop"].nbytes > 0
        assert engine.statistics(ANONYMOUS).disks["shop"].files > 0
