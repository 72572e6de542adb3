"""Effects as a segment. What it holds: `test_ingest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from tailrace.criteria import Operation
from tailrace_server.pipeline.cdcv2.folding import EFFECTS, write_segment
from tailrace_server.pipeline.input.change import batch_of

if TYPE_CHECKING:
    from pathlib import Path


def test_each_time_is_a_version_and_product_times_are_told_by_their_place(tmp_path: Path) -> None:
    upsert = int(Operation.UPSERT)
    effects = batch_of(
        [(time, key, upsert, None, None, None, b"{}") for time, key in ((1, "b"), (0, "a"))],
        EFFECTS,
    )
    (tmp_path / "segments").mkdir()
    path = tmp_path / "segments" / "1" / "a.arrow"
    [receipt], versions = write_segment(path, effects, "product", [(0, 5), (2, 4)])
    assert (receipt.rows, receipt.transactions, versions) == (4, 2, 2)
    rows = pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
    leads = [orjson.loads(row["after"]) for row in rows if row["index"] == 0]
    assert [lead["time"] for lead in leads] == [[0, 5], [2, 4]]
    assert [row["primary_key"] for row in rows if row["index"]] == ["a", "b"]
