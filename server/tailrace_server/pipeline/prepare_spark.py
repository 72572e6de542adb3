"""The archive of Spark's classes, for a faster start: the JVM of a small ingest archives what it loaded."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.errors import CannotStart
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.sources.registry import SOURCES
from tailrace_server.pipeline.spark.java import archive_name, can_be_made, ensure_java, kept_folders
from tailrace_server.pipeline.spark.session import StartInterrupted, spark_session
from tailrace_server.pipeline.transactions.ingest import run_ingest
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.sample_shop.topics import FORM, make_feed, write_feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRANSACTIONS: Final = 40
"""Number of transactions in the sample feed; enough to load every class that an ingest needs."""
_WRITES_S: Final = 180
"""Time limit for the JVM to write its archive, in seconds; about ten seconds are usual."""


class ArchiveNotMade(CannotStart):
    """Spark's classes could not be archived, because of the machine. Spark still starts, but more slowly."""

    code = "ARCHIVE_NOT_MADE"


def prepare() -> Path:
    """Archive Spark's classes for the installed Java, and return the path of the archive.

    The new archive replaces an earlier one only when it is complete.

    Raises:
        ArchiveNotMade: This Java cannot make an archive, or no folder can hold it.
        JavaMissing: There is no Java to run Spark on.
        SparkNotStarted: The JVM did not start.
    """
    home = ensure_java()
    if not can_be_made(home):
        raise ArchiveNotMade(
            f"Java at {home.resolve()} has no archive of its own classes "
            "(lib/server/classes.jsa), which an archive of Spark's classes needs"
        )
    refused = []
    for folder in kept_folders(os.environ):
        try:
            # Work in the target folder itself: a rename is atomic only within one file system.
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".tailrace-spark-") as aside:
                made = Path(aside, "classes.jsa")
                _run(Path(aside), made)
                if not made.exists():
                    raise ArchiveNotMade(f"Java at {home.resolve()} wrote no archive")
                return made.rename(folder / archive_name(home))
        except OSError as error:
            refused.append(f"{folder}: {error.strerror}")
    raise ArchiveNotMade(
        f"no folder is usable for an archive of Spark's classes: {'; '.join(refused)}"
    )


def _run(folder: Path, archive: Path) -> None:
    """Ingest the sample feed twice, in the driver and in tasks; at its end the JVM writes the archive.

    Raises:
        KeyboardInterrupt: A signal arrived, and the JVM ended without writing the archive.
    """
    for _ in write_feed(make_feed(0, _TRANSACTIONS), folder / "input", parts=2):
        pass
    jvm = None
    try:
        with spark_session("tailrace prepare", master="local[*]", archive_into=archive) as spark:
            jvm = _process(spark)
            for catalog, small_batch_rows in (("driver", 20_000), ("tasks", 0)):
                settings = IngestSettings(
                    input=folder / "input",
                    log=folder / "log",
                    catalog=catalog,
                    source=SOURCES[FORM](),
                    small_batch_rows=small_batch_rows,
                )
                if run_ingest(settings, ProgressReporter(quiet=True), spark).signal is not None:
                    raise KeyboardInterrupt
        # The JVM writes the archive only if it exits by itself. It does so when its standard input ends.
        assert jvm.stdin is not None
        jvm.stdin.close()
        jvm.wait(_WRITES_S)
    except subprocess.TimeoutExpired:
        pass  # then there is no archive
    except StartInterrupted:
        raise KeyboardInterrupt from None
    finally:
        if jvm is not None:
            jvm.kill()
            jvm.wait()


def _process(spark: SparkSession) -> subprocess.Popen[bytes]:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    return process
