"""The programs of docs/spark.md run as they are printed, in a folder of their own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace import Operation
from tailrace.cursor import Cursor
from tailrace.log import LogWriter, Mutation
from tailrace_server.pipeline.spark.java import ensure_java
from tests.process.commands import environment
from tests.process.ingest.reading import data, leads
from tests.rules.test_documented_programs import DOCS, blocks
from tests.support.programs import Program

# Each run starts Spark: seconds of processor time, minutes where many others want it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = "spark.md"


async def run(folder: Path, *command: object) -> None:
    """Run a program of the page, which must succeed and say nothing."""
    async with Program(*command, folder=folder, environment=environment()) as program:
        status = await program.process.wait()
    assert (status, program.lines, program.notes) == (0, [], [])


def test_every_program_of_the_page_is_run() -> None:
    assert len(re.findall(r"^```python", (DOCS / PAGE).read_text(), re.M)) == 4


async def test_a_batch_becomes_versions(tmp_path: Path) -> None:
    (batch,) = blocks(PAGE, "A batch", "python")
    (tmp_path / "batch.py").write_text(batch)
    await run(tmp_path, sys.executable, "batch.py")
    found = {
        (each.version, each.primary_key): (each.operation, each.before, each.after, each.changed)
        for each in data(tmp_path / "log" / "shop")
    }
    one, two, paid = (
        f'{{"id":{key},"status":"{status}","at":"2026-11-28T12:40:0{second}.123456Z"}}'.encode()
        for key, status, second in ((1, "placed", 1), (2, "placed", 1), (1, "paid", 2))
    )
    assert found == {
        (1, "1"): (Operation.UPSERT, None, one, None),
        (1, "2"): (Operation.UPSERT, None, two, None),
        (2, "1"): (Operation.UPSERT, one, paid, ["status", "at"]),
        (3, "2"): (Operation.REMOVE, two, None, None),
    }


async def test_the_declarative_pipeline_is_one_that_spark_accepts(log_root: Path) -> None:
    """Spark analyses its flow with the columns of the log. A run needs a table format that is not on PyPI."""
    folder = log_root.parent
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("order", "1", after=b'{"id":1,"status":"placed"}')])
    for file in (DOCS.parent / "examples" / "pipeline").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    programs = Path(sys.executable).parent
    command = (programs / "spark-pipelines", "dry-run")
    java = environment()
    java["PATH"] = f"{programs}{os.pathsep}{java['PATH']}"
    ensure_java(java)
    async with Program(*command, folder=folder, environment=java) as program:
        status = await program.process.wait()
    assert status == 0, (program.lines, program.notes)
    assert any("Run is COMPLETED" in line for line in (*program.lines, *program.notes))


async def test_a_stream_that_is_started_again_publishes_each_file_once(tmp_path: Path) -> None:
    (stream,) = blocks(PAGE, "A stream", "python")
    (feed,) = blocks(PAGE, "A stream", "sh")
    (tmp_path / "stream.py").write_text(stream)
    catalog = tmp_path / "log" / "live"
    await run(tmp_path, "sh", "-c", feed)
    await run(tmp_path, sys.executable, "stream.py")
    assert len(leads(catalog)) == 1
    second = feed.replace("1.json", "2.json").replace("placed", "paid")
    await run(tmp_path, "sh", "-c", second)
    await run(tmp_path, sys.executable, "stream.py")
    first, paid = (
        f'{{"id":1,"status":"{status}","total":12.50,"at":"2026-11-28T12:40:01.123456Z"}}'.encode()
        for status in ("placed", "paid")
    )
    found = [(each.version, each.before, each.after) for each in data(catalog)]
    assert [each for each in found if b'"id":1,' in (each[2] or b"")] == [
        (1, None, first),
        (2, first, paid),
    ]
    assert len(leads(catalog)) == 2


async def test_a_log_is_read_and_merged_into_a_delta_table(tmp_path: Path) -> None:
    (batch,) = blocks(PAGE, "A batch", "python")
    (tmp_path / "batch.py").write_text(batch)
    await run(tmp_path, sys.executable, "batch.py")
    read, merge = blocks(PAGE, "Reading", "python")
    (tmp_path / "read.py").write_text(read)
    (tmp_path / "merge.py").write_text(merge)
    command = (sys.executable, "read.py")
    async with Program(*command, folder=tmp_path, environment=environment()) as program:
        assert await program.process.wait() == 0, program.notes
    printed = "\n".join(program.lines)
    for kind in ("insert", "update_preimage", "update_postimage", "delete"):
        assert kind in printed
    assert Cursor.parse(program.lines[-1]).version == 3
    for _ in range(2):
        await run(tmp_path, sys.executable, "merge.py")
        rows = pa.table(DeltaTable(str(tmp_path / "orders")).scan()).to_pylist()
        assert rows == [{"id": 1, "status": "paid"}]
