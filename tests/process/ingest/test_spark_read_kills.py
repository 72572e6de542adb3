"""Streams from a log that are killed between and inside batches: each change arrives once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailrace.log
from tests.process.ingest.killable import Killable
from tests.process.ingest.source_program import run
from tests.process.ingest.test_spark_reads import HISTORY, append, inserted, updated

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MORE = [
    [inserted(each) for each in range(100, 120)],
    [updated(each, "cup", "can") for each in range(100, 110)],
]


def by_position(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["_position"], row["_change_type"], row["id"], row["name"]) for row in rows)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        (
            "parquet",
            [
                ("pipeline.read_batch=kill@2", 1),  # a worker, inside a batch
                ("pipeline.read_batch=kill:driver", -signal.SIGKILL),
                ("pipeline.read_offset=kill:jvm@3", 1),  # between batches
            ],
        ),
        (
            "delta",
            [
                ("program.before_merge=kill", -signal.SIGKILL),
                ("program.after_merge=kill@2", -signal.SIGKILL),  # Spark does not know of the merge
            ],
        ),
    ],
)
def test_a_stream_that_is_killed_delivers_each_change_once(
    tmp_path: Path, log_root: Path, spark: SparkSession, kind: str, kills: list[tuple[str, int]]
) -> None:
    append(log_root, *HISTORY, *MORE)
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    if kind == "delta":
        fields = [("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2))]
        write_deltalake(str(target), pa.table([[]] * 3, schema=pa.schema(fields)))
    given = (kind, log_root / "shop", target, checkpoint)
    program = Killable(tmp_path, "tests.process.ingest.source_program", *given)
    for failpoints, status in kills:
        assert program.run(failpoints) == status, program.said()
    run(spark, *given)
    if kind == "parquet":
        found = [row.asDict() for row in spark.read.parquet(str(target)).collect()]
        every = tailrace.log.read(log_root, "shop", "product").read_all().to_pylist()
        assert by_position(found) == by_position(every)
        return
    state = tailrace.log.read(log_root, "shop", "product", shape="state").read_all()
    expected = state.select(["id", "name", "price"]).sort_by("id").to_pylist()
    assert (
        sorted(pa.table(DeltaTable(str(target)).scan()).to_pylist(), key=lambda row: row["id"])
        == expected
    )
