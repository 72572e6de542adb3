"""One Spark session for all tests of the folder, and ingests that run in it."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.spark.checkpoint import Checkpoint
from tailrace_server.pipeline.spark.session import spark_session
from tailrace_server.pipeline.transactions import ingest as ingest_module
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tests.server.pipeline.shapes import BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tailrace_server.pipeline.run.summary import IngestSummary

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the session that all tests share; its start is most of what they cost."""
    with pytest.MonkeyPatch.context() as patch:
        # Workers import nothing from the current folder, and a source of the tests is a module of theirs.
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        with spark_session("tests", master="local[2]") as session:
            yield session


class Source:
    """A folder that files appear in, and a catalog that they are ingested into."""

    def __init__(self, folder: Path, log_root: Path, spark: SparkSession) -> None:
        self.input = folder
        self.spark = spark
        self.settings = IngestSettings(
            input=folder, log=log_root, catalog="shop", source=Debezium(keys=BY_ID)
        )
        self.files = 0

    @property
    def catalog(self) -> Path:
        return self.settings.log / self.settings.catalog

    def add(self, *lines: bytes, name: str | None = None) -> Path:
        """Let a file appear, whole."""
        self.files += 1
        final = self.input / (name or f"{self.files:05}.json")
        aside = final.with_name(f".{final.name}")
        aside.write_bytes(b"".join(line + b"\n" for line in lines))
        aside.rename(final)
        return final

    def ingest(self, **changes: Any) -> IngestSummary:
        """Take what is there, and end."""
        settings = replace(self.settings, **changes)
        return ingest_module.run_ingest(settings, ProgressReporter(quiet=True), self.spark)

    @contextmanager
    def following(self, **changes: Any) -> Iterator[Driver]:
        """Follow the folder until the block ends."""
        settings = replace(self.settings, follow=True, **changes)
        checkpoint = Checkpoint(ingest_module.checkpoint_folder(settings))
        stopping = Stopping()
        with ingest_module.open_writer(settings, checkpoint) as writer:
            driver = Driver(writer, settings)
            ingest = ingest_module.Ingest(
                self.spark, driver, checkpoint, settings, ProgressReporter(quiet=True)
            )
            failures: list[BaseException] = []

            def run() -> None:
                try:
                    ingest.run(stopping)
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=run, name="ingest")
            thread.start()
            try:
                yield driver
            finally:
                stopping.set()
                thread.join()
            if failures:
                raise failures[0]


@pytest.fixture
def source(tmp_path: Path, log_root: Path, spark: SparkSession) -> Source:
    """Return an empty source."""
    folder = tmp_path / "input"
    folder.mkdir()
    return Source(folder, log_root, spark)


@pytest.fixture
def make_source(tmp_path: Path, spark: SparkSession) -> Callable[[str], Source]:
    """Return what makes more sources, each with a log of its own."""

    def make(name: str) -> Source:
        folder, log = tmp_path / name / "input", tmp_path / name / "log"
        folder.mkdir(parents=True)
        log.mkdir()
        return Source(folder, log, spark)

    return make
