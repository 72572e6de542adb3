"""Spark sessions for this project: quiet, without a web page, quick to start."""

from __future__ import annotations

import locale
import logging
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from tailrace_server.errors import CannotStart
from tailrace_server.pipeline.spark.class_archive import options_to_make, options_to_use
from tailrace_server.pipeline.spark.interruptible_start import interruptible
from tailrace_server.pipeline.spark.java import ensure_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options that save two seconds of a start and slow a long run down."""

CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A checkpoint of local files is renamed into place; Hadoop's other way costs 70 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Partitions are laid out by us, by whole transactions; Spark may not merge them.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # Groups are few; 200 tasks for them, Spark's default, would cost seconds a batch.
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "2g",
}


class SparkNotStarted(CannotStart):
    """The JVM that Spark runs in did not start; the message has its last output. The machine's doing."""

    code = "SPARK_NOT_STARTED"


@contextmanager
def spark_session(
    name: str,
    *,
    master: str = "local[*]",
    quick: bool = True,
    conf: Mapping[str, str] | None = None,
    archive_into: Path | None = None,
) -> Iterator[SparkSession]:
    """Start a session, and stop it at the end.

    The standard error of the JVM goes to a temporary file; the error of a failed start shows its end.

    Args:
        name: The application's name.
        master: Where Spark runs; ``local[*]`` uses this machine's cores.
        quick: Start fast rather than run fast for hours.
        conf: Settings on top of ours.
        archive_into: Where the JVM writes an archive of its classes at its end; None: it uses the one that
            was made.

    Raises:
        JavaMissing: There is no Java to run Spark on.
        SparkNotStarted: The JVM did not start; with its last output.
        StartInterrupted: A signal came meanwhile.
    """
    home = ensure_java()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    hush_gateway()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONSAFEPATH"] = "1"  # workers import nothing from the current folder
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if locale.getencoding().lower() != "utf-8":
        # Java passes over files whose names the locale cannot write, without a word.
        os.environ["LC_ALL"] = "C.UTF-8"
    temporary = tempfile.gettempdir()  # what TMPDIR says, which a JVM does not ask
    options = [
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        f"-Djava.io.tmpdir={quote(temporary)}",
        options_to_make(archive_into) if archive_into else options_to_use(home),
        _QUICK_START if quick else "",
    ]
    builder = (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", temporary)
        .config("spark.driver.extraJavaOptions", " ".join(options))
        .config(map={**CONF, **(conf or {})})
    )
    with tempfile.TemporaryFile(prefix="tailrace-spark-") as said:
        try:
            with _stderr_into(said.fileno()), interruptible():
                session = builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            last = said.read().decode(errors="replace").strip()[-2_000:]
            raise SparkNotStarted(f"Spark did not start: {error}; {last}") from error
        _hush_accumulators(session)
        try:
            yield session
        finally:
            # A JVM that has died cannot be stopped; what ended it is being told already.
            with suppress(Py4JError, OSError):
                session.stop()


def hush_gateway() -> None:
    """Keep py4j's messages about a JVM that died off the screen: the error that we raise says it.

    Some of its classes use the root logger, which then gets a handler that prints the other messages, too.
    """
    gateway = logging.getLogger("py4j")
    gateway.addHandler(logging.NullHandler())
    gateway.propagate = False
    logging.getLogger().addFilter(_not_of_the_gateway)


def _hush_accumulators(session: SparkSession) -> None:
    """Keep the server that receives accumulators from printing a traceback when the JVM dies."""
    server = session.sparkContext._accumulatorServer
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def _not_of_the_gateway(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _stderr_into(target: int) -> Iterator[None]:
    """Give child processes that start in the block another standard error."""
    kept = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
