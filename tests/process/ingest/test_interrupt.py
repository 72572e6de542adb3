"""Ctrl-C or SIGTERM: the command ends soon, whatever is under way, and its processes with it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tailrace_server.pipeline.cdcv2.ingest import WRITER
from tailrace_server.wal.log_writer import LogWriter
from tests.process.commands import INTERRUPT, TERMINATE, Command
from tests.server.pipeline.cdcv2.streams import SCHEMA, make_history, statements, write_files
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SIGTERM = pytest.mark.nightly(
    "tests/process/ingest/test_interrupt.py: SIGINT at this moment, and SIGTERM while the JVM starts"
)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (INTERRUPT, "script"),
        (INTERRUPT, "JVM"),
        (INTERRUPT, "context"),
        (TERMINATE, "JVM"),
        pytest.param(TERMINATE, "script", marks=SIGTERM),
        pytest.param(TERMINATE, "context", marks=SIGTERM),
    ],
)
async def test_a_signal_while_spark_starts_ends_the_command_and_its_jvm(
    log_root: Path, tmp_path: Path, number: int, moment: str
) -> None:
    """It ends by it, not after it: no batch has run, and Spark has not made its checkpoint."""
    feed = tmp_path / "feed"
    feed.mkdir()
    (feed / "lines.json").write_text("null\n")
    arguments = ("--input", feed, "--log", log_root, "--catalog", "shop", "--follow")
    async with Command("ingest", "debezium", *arguments) as command:
        await until(lambda: has_come(family_of(command.process.pid), moment))
        family = family_of(command.process.pid)
        command.send(number)
        assert await command.end() == 128 + number, command.notes
        assert not any(is_alive(each) for each in family)
        assert not any("Traceback" in line or "error" in line for line in command.notes)
    assert os.listdir(log_root / "shop" / "ingest" / "debezium") == ["metadata"]


async def test_upkeep_that_hangs_holds_up_no_end(log_root: Path, tmp_path: Path) -> None:
    """Its process is stopped, as one that waits for its storage; a command that waited would not end at all."""
    source, schema = tmp_path / "in", tmp_path / "schema.json"
    source.mkdir()
    schema.write_text(SCHEMA.text)
    with LogWriter.open(log_root, "shop", writer=WRITER):
        pass
    orphans = log_root / "shop" / "segments" / "1"
    orphans.mkdir(parents=True, exist_ok=True)
    (orphans / "left.arrow").write_bytes(
        b"what a killed run left makes the first publication start upkeep"
    )
    write_files(source, statements(make_history(1, 20, 10, 5), 10, 21), 1)
    options = ("--input", source, "--log", log_root, "--catalog", "shop", "--follow")
    stream = ("--schema", schema, "--entity-type", "product", "--key", "id")
    async with Command("ingest", "cdcv2", *options, *stream) as command:
        await until(lambda: bool(upkeep_of(command.process.pid)))
        (upkeep,) = upkeep_of(command.process.pid)
        upkeep.send_signal(signal.SIGSTOP)
        command.send(TERMINATE)
        assert await command.end() == 128 + TERMINATE, command.notes
        assert not is_alive(upkeep)
        await command.note("upkeep of catalog shop was ended")


def upkeep_of(pid: int) -> list[psutil.Process]:
    """Return the process of upkeep that a command has started."""
    family = psutil.Process(pid).children()
    return [each for each in family if "tailrace_server.wal.upkeep.process" in each.cmdline()]


def is_alive(process: psutil.Process) -> bool:
    """Tell a process from one that has ended, and that only init has not taken note of."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family_of(pid: int) -> list[psutil.Process]:
    """Return the descendants of a process."""
    return psutil.Process(pid).children(recursive=True)


def has_come(family: list[psutil.Process], moment: str) -> bool:
    """Tell by its processes how far a start of Spark has come."""
    for each in family:
        try:
            command = each.cmdline()
            if moment == "script" and any("spark-" in word for word in command):
                return True
            if "org.apache.spark.deploy.SparkSubmit" in command:
                return moment == "JVM" or bool(each.net_connections("tcp"))
        except psutil.NoSuchProcess:
            continue
    return False
