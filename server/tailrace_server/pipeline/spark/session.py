"""Spark sessions for this project: quiet, without a web page, quick to start, and ended by a signal.

Spark starts a JVM through two shell scripts, waits until a file has its port, then builds a context. This takes
three to nine seconds in the main thread, in which an ordinary handler could only note a signal. `interruptible`
ends the processes that were started and raises, so the start ends at once. If the system does not list a
process's descendants, the JVM ends a little later: when its standard input does.
"""

from __future__ import annotations

import locale
import logging
import os
import re
import select
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tailrace.errors import TailraceError
from tailrace_server.child_processes import descendants_of
from tailrace_server.errors import CannotStart
from tailrace_server.pipeline.spark.java import ensure_java, options_to_make, options_to_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_GRACE_S: Final = 0.5
"""How long a JVM may take to remove its temporary folders before it is killed."""


class StartInterrupted(BaseException):
    """A signal ended the start of Spark. The caller's handler has run; no process of the start is left.

    Not an ``Exception``: Spark catches those in several places.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal that has a handler end the start of Spark in the block, with the processes of the start.

    Outside the main thread, where no signals arrive, this does nothing.

    Raises:
        StartInterrupted: A signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # 1. Only signals that had a handler: one that is ignored, or ends the process anyway, keeps its effect. The
    #    processes that exist now are not of the start, and must survive it.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if callable(before[number])]
    others = set(descendants_of(os.getpid()))
    started: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        # 2. Processes first: the caller's handler may raise, and a JVM without its parent would go on. A second
        #    signal does nothing, since the first is being handled.
        handler = before[signal.Signals(number)]
        if started or not callable(handler):
            return
        started.extend(_tell_to_end(others))
        handler(number, frame)
        raise StartInterrupted

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        # 3. Spark may have turned the end of its JVM into an error of its own; what happened is the signal.
        if started or isinstance(error, StartInterrupted):
            _end(started)
            raise StartInterrupted from None
        if not isinstance(error, Exception):
            # Late in its start Spark replaces our handler by its own, and that one was called: nothing was told
            # to end yet.
            _end(_tell_to_end(others))
        raise
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _tell_to_end(others: set[int]) -> list[int]:
    """Send SIGTERM to the descendants of this process that are not in ``others``; return them."""
    pids = [pid for pid in descendants_of(os.getpid()) if pid not in others]
    _signal(pids, signal.SIGTERM)
    return pids


def _end(pids: list[int]) -> None:
    """Wait for processes that got SIGTERM, kill those that take too long, and reap our children."""
    deadline = time.monotonic() + _GRACE_S
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
            finally:
                os.close(descriptor)
    _signal(pids, signal.SIGKILL)
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


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


_TRACEBACK: Final = "Traceback (most recent call last):"
_CLASS: Final = re.compile(r"^(?:\w+\.)+(?=\w+: )")
"""The module that defines the class of an error."""
_UNREAD: Final = "[FAILED_READ_FILE"
"""Head of what Spark says of a file of the input that it cannot read."""


class SparkFailed(TailraceError):
    """Spark gave up: its JVM died, or a task failed too often. Run again: nothing is lost or doubled."""

    code = "SPARK_FAILED"
    retriable = True

    def __init__(self, reason: str) -> None:
        """Keep what Spark said, in one line."""
        put_right = (
            "put that file right, or an empty one in its place, and " if _UNREAD in reason else ""
        )
        super().__init__(
            f"Spark gave up: {reason}; {put_right}run again, and it goes on where it stopped"
        )
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return what Spark said."""
        return {"reason": self.reason}


def reason_of(error: BaseException) -> str:
    """Return the lines of a Spark error that say what went wrong, not where: its own, and its first cause's."""
    texts = []
    java = getattr(error, "java_exception", None)
    with suppress(Py4JError, OSError):
        while java is not None:
            if line := _telling_line(str(java.getMessage() or "")):
                texts.append(line)
            java = java.getCause()
    if not texts:
        return _telling_line(str(error)) or type(error).__name__
    if texts[-1] in texts[0]:
        return texts[0]
    return f"{texts[0]} ({texts[-1]})"


def _telling_line(text: str) -> str:
    """Return the line of a message that says what happened: the first, or of Python's tracebacks the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _TRACEBACK in lines:
        return _CLASS.sub("", lines[-1])[:500]
    return "" if not lines or lines[0].endswith(":") else lines[0][:500]
