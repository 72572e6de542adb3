"""What an ingest keeps of its Spark checkpoint."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

from tailrace_server.pipeline.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_ingests_that_start_at_once_take_one_name(tmp_path: Path) -> None:
    """Else the log would know one of them by a name that the checkpoint does not have any more."""
    together = Barrier(4)

    def query_id(folder: Path) -> str:
        together.wait()
        return Checkpoint(folder).query_id()

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            folder = tmp_path / str(number)
            names = set(threads.map(query_id, [folder] * 4))
            assert names == {Checkpoint(folder).query_id()}
            assert [each.name for each in folder.iterdir()] == ["metadata"]


def test_a_packed_file_counts_as_what_it_may_hold(tmp_path: Path) -> None:
    """Unpacked into the driver it would fill the memory of Java."""
    entries = []
    for name in ("a.json", "b.json.gz"):
        (tmp_path / name).write_bytes(b"x" * 10)
        entries.append(json.dumps({"path": f"file://{tmp_path}/{name}", "batchId": 3}))
    sources = tmp_path / "checkpoint/sources/0"
    sources.mkdir(parents=True)
    (sources / "3").write_text("\n".join(["v1", *entries]))
    assert Checkpoint(tmp_path / "checkpoint").batch_bytes(3) == 10 + 100 * 10
