"""Spark sessions for this project: quiet, without a web page, quick to start, interruptible at the start.

Spark starts a JVM through two shell scripts, waits until a file has the JVM's port, then builds a context. This
takes three to nine seconds in the main thread, during which an ordinary signal handler could only set a flag.
`interruptible` kills the started processes and raises, so that the start ends at once. On a system that does
not list the descendants of a process, the JVM exits a little later, when its standard input is closed.
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
from typing import IO, TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tailrace.errors import TailraceError
from tailrace_server.child_processes import descendants_of
from tailrace_server.errors import CannotStart
from tailrace_server.pipeline.spark.cluster import (
    advice_on,
    check_cluster,
    check_master,
    warnings_in,
)
from tailrace_server.pipeline.spark.java import ensure_java, options_to_make, options_to_use
from tailrace_server.pipeline.spark.start_settings import is_local, stated_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import FrameType

    from pyspark.sql import SparkSession

    from tailrace_server.pipeline.spark.start_settings import SparkOptions

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_GRACE_S: Final = 0.5
"""Time, in seconds, in which a JVM may remove its temporary folders before it is killed."""


class StartInterrupted(BaseException):
    """A signal ended the start of Spark. The caller's handler has run, and no process of the start is left.

    This is not an ``Exception``, since Spark catches those in several places.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal that has a handler end the start of Spark in the block, and kill the processes of the start.

    Outside the main thread, where no signals arrive, this does nothing.

    Raises:
        StartInterrupted: A signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # 1. Handle only signals that have a handler: an ignored or fatal signal keeps its effect. Remember the
    #    processes that exist now: they do not belong to the start, and must survive it.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if callable(before[number])]
    others = set(descendants_of(os.getpid()))
    started: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        # 2. End the processes first: the caller's handler may raise, and a JVM without its parent would
        #    continue. A second signal does nothing, since the first one is being handled.
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
        # 3. Spark may have turned the end of its JVM into an error of its own. The cause is the signal: raise
        # that.
        if started or isinstance(error, StartInterrupted):
            _end(started)
            raise StartInterrupted from None
        if not isinstance(error, Exception):
            # Late in its start Spark replaces our handler by its own. That handler was called, so no process
            # has got a SIGTERM yet.
            _end(_tell_to_end(others))
        raise
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _tell_to_end(others: set[int]) -> list[int]:
    """Send SIGTERM to the descendants of this process that are not in ``others``; return their ids."""
    pids = [pid for pid in descendants_of(os.getpid()) if pid not in others]
    _signal(pids, signal.SIGTERM)
    return pids


def _end(pids: list[int]) -> None:
    """Wait for processes that got SIGTERM, kill the slow ones, and reap our children."""
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
_SAID_BYTES: Final = 64 << 10
_QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options that save two seconds at the start, and make a long run slower."""

_OURS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Write checkpoints of local files by rename; Hadoop's other way costs 70 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
}
"""Settings of each session that we start, unless the operator states them."""
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # We give numbers of partitions: Spark need not decide again between the stages.
    "spark.sql.adaptive.enabled": "false",
    # There are few groups: 200 tasks, Spark's default, would cost seconds a batch.
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Further settings where Spark runs in its driver alone."""


class SparkNotStarted(CannotStart):
    """The JVM for Spark did not start; the message has its last output. The cause is on this machine."""

    code = "SPARK_NOT_STARTED"


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    quick: bool = True,
    conf: Mapping[str, str] | None = None,
    submit_args: str = "",
    shared: Path | None = None,
    archive_into: Path | None = None,
) -> Iterator[SparkSession]:
    """Use the session of this process if there is one; else start one, and stop it at the end of the block.

    In a program that ``spark-submit`` started, only the settings in ``conf`` are added. Elsewhere our settings
    are added where the operator states none (`start_settings`). Conveniences are for local masters only.

    The standard error of the JVM goes to a temporary file. If the start fails, the error has the end of that
    file.

    Args:
        name: The name of the application.
        master: Where Spark runs; ``local[*]`` uses the cores of this machine. None: the operator's master, or
            else ``local[*]``.
        quick: True to start fast, False to run fast for hours; for local masters.
        conf: Settings that have precedence.
        submit_args: Further arguments of ``spark-submit``.
        shared: A folder that all machines of a cluster must share; None: none.
        archive_into: The file into which the JVM writes an archive of its classes when it exits. None: the JVM
            uses the existing archive.

    Raises:
        JavaMissing: There is no Java to run Spark on.
        SparkNotStarted: The JVM did not start; the message has its last output.
        ClusterUnusable: The cluster cannot run tasks; `check_cluster` says when.
        SparkFailed: A worker lacks a package, or has another Python.
        StartInterrupted: A signal came during the start.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    settings = dict(conf or {})
    if master is not None:
        settings["spark.master"] = master
    hush_gateway()
    if _is_submitted():
        master = None
    else:
        home = ensure_java()
        stated = stated_settings(submit_args, settings)
        master = stated.get("spark.master")
        archive = options_to_make(archive_into) if archive_into else options_to_use(home)
        ours = (
            _of_local(stated, archive, quick=quick)
            if is_local(master)
            else _of_cluster(stated, archive)
        )
        settings = {**{key: ours[key] for key in ours if key not in stated}, **settings}
        settings.setdefault("spark.app.name", stated.get("spark.app.name", name))
        if master is not None:
            check_master(master)
    builder = SparkSession.builder.config(map={**settings})
    with tempfile.TemporaryFile(prefix="tailrace-spark-") as said:
        try:
            with _stderr_into(said.fileno()), _submitting(submit_args), interruptible():
                session = builder.getOrCreate()
        except Exception as error:
            last = _read(said).strip()[-2_000:]
            # The text of a Java error has its stack trace.
            raise SparkNotStarted(f"Spark did not start: {reason_of(error)}; {last}") from error
        _hush_accumulators(session)
        try:
            if not is_local(session.sparkContext.master):
                _check(session, shared, said)
            yield session
        finally:
            # A JVM that has died cannot be stopped. The error of its end is already being raised.
            with suppress(Py4JError, OSError):
                session.stop()


def ensure_startable() -> None:
    """Check that Spark runs already, or that there is a Java to start it.

    Raises:
        JavaMissing: There is no Java to run Spark on.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None and not _is_submitted():
        ensure_java()


def _is_submitted() -> bool:
    """Return True if ``spark-submit`` has started this process; its JVM runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def started(
    options: SparkOptions, name: str, catalog: Path, *, quick: bool = True
) -> AbstractContextManager[SparkSession]:
    """Return the `spark_session` of a command, which writes to a catalog's folder.

    Raises:
        InvalidRequest: An option is malformed.
    """
    return spark_session(
        name,
        master=options.master,
        quick=quick,
        conf=options.settings(),
        submit_args=options.submit_args or "",
        shared=catalog,
    )


def _of_local(stated: Mapping[str, str], archive: str, *, quick: bool) -> dict[str, str]:
    """Return our settings for a local master; set the variables that its JVM and workers need."""
    # Workers are processes of this machine: they have this Python, and import nothing from the current folder.
    python = stated.get("spark.pyspark.python", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    temporary = tempfile.gettempdir()  # this follows TMPDIR, which a JVM ignores
    options = [
        *_java_options(archive, "error"),
        f"-Djava.io.tmpdir={quote(temporary)}",
        _QUICK_START if quick else "",
    ]
    java = {"spark.driver.extraJavaOptions": " ".join(options), "spark.local.dir": temporary}
    return {**_OURS, **_LOCAL, **java}


def _of_cluster(stated: Mapping[str, str], archive: str) -> dict[str, str]:
    """Return our settings for a driver of a cluster."""
    if "spark.pyspark.python" in stated:
        # Only spark-submit passes this setting on to a Python driver's tasks.
        os.environ["PYSPARK_PYTHON"] = stated["spark.pyspark.python"]
    return {
        **_OURS,
        "spark.driver.extraJavaOptions": " ".join(_java_options(archive, "warn")),
        "spark.ui.showConsoleProgress": "false",
    }


def _java_options(archive: str, scheduler: str) -> list[str]:
    """Return options of the JVM: the levels of its log, and its archive of classes."""
    if locale.getencoding().lower() != "utf-8":
        # Java silently skips files whose names the locale cannot encode.
        os.environ["LC_ALL"] = "C.UTF-8"
    return [
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        f"-Dtailrace.scheduler={scheduler}",
        archive,
    ]


@contextmanager
def _submitting(submit_args: str) -> Iterator[None]:
    """Add arguments of spark-submit to those of the environment, for the start of a JVM."""
    name = "PYSPARK_SUBMIT_ARGS"
    before = os.environ.get(name)
    if not submit_args:
        yield
        return
    # The last word names the program: a shell, which leaves the work to this process.
    os.environ[name] = f"{(before or '').removesuffix('pyspark-shell')} {submit_args} pyspark-shell"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check(session: SparkSession, shared: Path | None, said: IO[bytes]) -> None:
    try:
        # A signal must end the wait for executors. The JVM is stopped with the session.
        with interruptible():
            check_cluster(
                session.sparkContext, shared, lambda: warnings_in(_read(said).splitlines())
            )
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(reason_of(error)) from error


def _read(said: IO[bytes]) -> str:
    """Return the end of a file that the JVM writes, without moving the offset that both share."""
    size = os.fstat(said.fileno()).st_size
    return os.pread(said.fileno(), _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace")


def hush_gateway() -> None:
    """Suppress py4j's messages about a JVM that died: the error that we raise reports it.

    Some of py4j's classes log on the root logger. That gives the root logger a handler, which would print the
    messages of the logger ``py4j`` too. So both loggers are silenced for py4j.
    """
    gateway = logging.getLogger("py4j")
    gateway.addHandler(logging.NullHandler())
    gateway.propagate = False
    logging.getLogger().addFilter(_not_of_the_gateway)


def _hush_accumulators(session: SparkSession) -> None:
    """Prevent the server that receives accumulators from printing a traceback when the JVM dies."""
    server = session.sparkContext._accumulatorServer
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def _not_of_the_gateway(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _stderr_into(target: int) -> Iterator[None]:
    """Redirect the standard error of this process, and so of new child processes, to a descriptor."""
    kept = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


_TRACEBACK: Final = "Traceback (most recent call last):"
_CLASS: Final = re.compile(r"^(?:\w+\.)+(?=\w+: )")
"""The module path before the class name in an error."""
_UNREAD: Final = "[FAILED_READ_FILE"
"""Start of Spark's message about an input file that it cannot read."""


class SparkFailed(TailraceError):
    """Spark gave up: its JVM died, or a task failed too often. Run again: nothing is lost or duplicated."""

    code = "SPARK_FAILED"
    retriable = True

    def __init__(self, reason: str) -> None:
        """Store Spark's message, as one line."""
        put_right = advice_on(reason)
        if _UNREAD in reason:
            put_right = "restore that file, or create an empty file in its place, and "
        super().__init__(
            f"Spark gave up: {reason}; {put_right}run again to continue where it stopped"
        )
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return Spark's message."""
        return {"reason": self.reason}


def reason_of(error: BaseException) -> str:
    """Return the message of a Spark error and of its root cause, without the lines that say where."""
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
    """Return the line of a message that says what happened: the first, or the last of a Python traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _TRACEBACK in lines:
        return _CLASS.sub("", lines[-1])[:500]
    return "" if not lines or lines[0].endswith(":") else lines[0][:500]
