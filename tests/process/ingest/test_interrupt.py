"""Ctrl-C while Spark starts: the command ends there and then, and its JVM with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.process.commands import INTERRUPT, TERMINATE, Command
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("moment", ["script", "JVM", "context"])
@pytest.mark.parametrize("number", [INTERRUPT, TERMINATE], ids=["ctrl-c", "sigterm"])
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
