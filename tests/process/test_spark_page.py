"""The programs of docs/spark.md run as they are printed, in a folder of their own."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace import Operation
from tests.process.commands import environment
from tests.process.ingest.reading import data, leads
from tests.rules.test_documented_programs import DOCS, blocks
from tests.support.programs import Program

if TYPE_CHECKING:
    from pathlib import Path

# Each run starts Spark: seconds of processor time, minutes where many others want it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = "spark.md"


async def run(folder: Path, *command: object) -> None:
    """Run a program of the page, which must succeed and say nothing."""
    async with Program(*command, folder=folder, environment=environment()) as program:
        status = await program.process.wait()
    assert (status, program.lines, program.notes) == (0, [], [])


def test_every_program_of_the_page_is_run() -> None:
    assert len(re.findall(r"^```python", (DOCS / PAGE).read_text(), re.M)) == 2


async def test_a_batch_becomes_versions(tmp_path: Path) -> None:
    (batch,) = blocks(PAGE, "A batch", "python")
    (tmp_path / "batch.py").write_text(batch)
    await run(tmp_path, sys.executable, "batch.py")
    catalog = tmp_path / "log" / "shop"
    assert [each["transaction_id"] for each in leads(catalog)] == ["tx-1", "tx-2", "tx-3"]
    first, second = (f"1970-01-01T00:00:00.12345{digit}Z" for digit in (6, 7))
    placed, paid = (
        f'{{"id":1,"status":"{status}","at":"{second}"}}'.encode() for status in ("placed", "paid")
    )
    found = [(each.version, each.primary_key, each.operation) for each in data(catalog)]
    assert found == [
        (1, "1", Operation.UPSERT),
        (1, "2", Operation.UPSERT),
        (2, "1", Operation.UPSERT),
        (3, "2", Operation.REMOVE),
    ]
    update = data(catalog)[2]
    assert (update.before, update.after, update.changed) == (placed, paid, ["status"])
    assert data(catalog)[0].after == f'{{"id":1,"status":"placed","at":"{first}"}}'.encode()


@pytest.mark.nightly("tests/process/ingest/test_datasource.py: a frame becomes versions in order")
async def test_a_batch_of_many_transactions_is_in_their_order(tmp_path: Path) -> None:
    (batch,) = blocks(PAGE, "A batch", "python")
    head, tail = batch.split("CHANGES = [", 1)
    changes = "CHANGES = [(n, f'tx-{n}', 'upsert', 1, None, str(n), n) for n in range(1, 13)]"
    (tmp_path / "batch.py").write_text(head + changes + tail.split("\n]", 1)[1])
    await run(tmp_path, sys.executable, "batch.py")
    found = [each["transaction_id"] for each in leads(tmp_path / "log" / "shop")]
    assert found == [f"tx-{n}" for n in range(1, 13)]


async def test_a_stream_that_is_started_again_publishes_each_file_once(tmp_path: Path) -> None:
    (stream,) = blocks(PAGE, "A stream", "python")
    (feed,) = blocks(PAGE, "A stream", "sh")
    (tmp_path / "stream.py").write_text(stream)
    catalog = tmp_path / "log" / "live"
    await run(tmp_path, "sh", "-c", feed)
    await run(tmp_path, sys.executable, "stream.py")
    assert [each["transaction_id"] for each in leads(catalog)] == ["tx-1", "tx-2"]
    second = feed.replace("1.json", "2.json").replace("tx-", "tx-1")
    await run(tmp_path, "sh", "-c", second)
    await run(tmp_path, sys.executable, "stream.py")
    assert [each["transaction_id"] for each in leads(catalog)] == ["tx-1", "tx-2", "tx-11", "tx-12"]
    after = b'{"id":1,"status":"paid","total":12.50,"at":"2026-11-28T12:40:01.123457Z"}'
    assert [each.after for each in data(catalog) if each.version in (2, 4)] == [after, after]
