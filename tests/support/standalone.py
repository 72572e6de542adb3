"""A standalone cluster of Spark: a master and workers as processes of their own, on an address of their own."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

from tailrace_server.pipeline.spark.java import ensure_java
from tests.process.ingest.killable import end
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

HOST: Final = "127.0.0.2"
"""The address of master and workers."""
DRIVER_HOST: Final = "127.0.0.3"
_PATIENCE_S: Final = 60


class StandaloneCluster:
    """A context manager; all of its processes are ended with it."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Prepare a cluster of workers with one core each, in a folder of its own."""
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        """URL of the master."""
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            said = self._start("master", "master.Master", "--port", "0")
            self.url = self._found(said, r"Starting Spark master at (spark://\S+)")
            for number in range(self._count):
                work = self._folder / f"work-{number}"
                given = ("--cores", "1", "--memory", "1g", "--work-dir", work, self.url)
                log = self._start(f"worker-{number}", "worker.Worker", *given)
                self.workers.append(self._processes[-1])
                self._found(log, r"(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            end(process)

    def _start(self, name: str, main: str, *arguments: object) -> Path:
        """Start a process; return the file of its log."""
        log = self._folder / f"{name}.log"
        command = os.path.join(_find_spark_home(), "bin", "spark-class")
        given = ("--host", HOST, "--webui-port", "0", *map(str, arguments))
        with log.open("wb") as said:
            process = subprocess.Popen(
                [command, f"org.apache.spark.deploy.{main}", *given],
                env=os.environ | {"JAVA_HOME": str(ensure_java()), "SPARK_DAEMON_MEMORY": "256m"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _found(self, log: Path, pattern: str) -> str:
        process = self._processes[-1]
        wait_until(
            lambda: process.poll() is not None or re.search(pattern, log.read_text()) is not None,
            _PATIENCE_S,
        )
        found = re.search(pattern, log.read_text())
        assert found is not None, log.read_text()
        return found[1]
