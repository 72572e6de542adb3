"""Checks of a cluster before an ingest relies on it: a master, executors, packages, a shared folder.

Spark itself waits without end for a cluster that offers no executor, and reports the other faults only in the
middle of a batch.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import InheritableThread

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark import SparkContext

EXECUTORS_WITHIN_S: Final = 30.0
"""Time in which a cluster has to begin the first task, in seconds."""
_CONNECT_S: Final = 5.0
_POLL_S: Final = 0.05


class ClusterUnusable(CannotStart):
    """The cluster cannot run an ingest: no master answers, no executor is offered, or a folder is missing."""

    code = "CLUSTER_UNUSABLE"


def check_master(master: str) -> None:
    """Check that a standalone master accepts connections; Spark would try for a minute.

    Raises:
        ClusterUnusable: None of the masters in the URL answers.
    """
    if not master.startswith("spark://"):
        return
    faults = []
    for each in master.removeprefix("spark://").split(","):
        try:
            parts = urlsplit(f"//{each}")
            with socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S):
                return
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            faults.append(f"{each}: {str(reason).lower()}")
    raise ClusterUnusable(
        f"no Spark master answers at {master} ({'; '.join(faults)}): check --master, and that the master runs"
    )


def check_cluster(context: SparkContext, shared: Path | None, said: Callable[[], str]) -> None:
    """Run a small job that shows whether the cluster can run an ingest.

    Args:
        context: The context of a session on the cluster.
        shared: A folder that all machines must share; None: none.
        said: Returns the newest warnings of Spark.

    Raises:
        ClusterUnusable: No executor was offered in time, or a worker does not see the folder.
        Exception: Spark's error, if a worker lacks a package or has another Python.
    """
    marker = None if shared is None else shared / f".probe-{uuid4().hex}"
    if marker is not None:
        marker.touch()
    try:
        blind = _asked(context, None if marker is None else str(marker), said)
    finally:
        if marker is not None:
            marker.unlink(missing_ok=True)
    if blind:
        raise ClusterUnusable(
            f"the workers on {', '.join(sorted(blind))} do not see {shared}: tasks write segments into "
            "the log's folder, so put it on a file system that all machines mount at the same path"
        )


def _asked(context: SparkContext, marker: str | None, said: Callable[[], str]) -> set[str]:
    """Return the hosts that do not see a file."""
    found: list[str | None] = []
    failed: list[BaseException] = []
    group = f"tailrace-probe-{uuid4().hex}"

    def ask() -> None:
        try:
            context.setJobGroup(group, "check of the cluster")
            tasks = max(2, context.defaultParallelism)
            found.extend(context.parallelize(range(tasks), tasks).map(_probe(marker)).collect())
        except BaseException as error:
            failed.append(error)

    # A thread of its own: this one watches if a task begins.
    thread = InheritableThread(target=ask, name="check of the cluster", daemon=True)
    thread.start()
    deadline = time.monotonic() + EXECUTORS_WITHIN_S
    try:
        while thread.is_alive() and not _has_begun(context, group):
            if time.monotonic() > deadline:
                raise ClusterUnusable(_no_executor(said()))
            thread.join(_POLL_S)
        thread.join()
    finally:
        # Also after a signal; without effect on a job that has ended.
        with suppress(Py4JError):
            context.cancelJobGroup(group)
    if failed:
        raise failed[0]
    return {host for host in found if host is not None}


def _has_begun(context: SparkContext, group: str) -> bool:
    """Return True if a task of a job group runs or has ended."""
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            progress = tracker.getStageInfo(stage)
            if progress is not None and (progress.numActiveTasks or progress.numCompletedTasks):
                return True
    return False


def _no_executor(said: str) -> str:
    reason = f"Spark says: {said}" if said else "Spark gives no reason"
    return (
        f"the cluster offered no executor within {EXECUTORS_WITHIN_S:.0f} s. {reason}. Check that workers are "
        "registered, and have as many cores and as much memory free as spark.executor.cores and "
        "spark.executor.memory demand"
    )


def _probe(marker: str | None) -> Callable[[int], str | None]:
    """Return a function for tasks: it returns the host if the host does not see a file."""

    def probe(_: int) -> str | None:
        # The writer of segments needs most packages: a worker that lacks one fails here.
        import tailrace_server.wal.segment.writer  # noqa: F401

        return None if marker is None or os.path.exists(marker) else socket.gethostname()

    return probe


_ADVICE: Final = (
    (
        ("No module named", "ModuleNotFoundError"),
        "the workers lack this Python package: give them an environment that has tailrace[spark], "
        "with --spark-submit-args '--archives env.tar.gz#env' and --conf "
        "spark.pyspark.python=./env/bin/python",
    ),
    (
        ("PYTHON_VERSION_MISMATCH",),
        "give the workers the Python of this process by --conf spark.pyspark.python=PATH",
    ),
)


def advice_on(reason: str) -> str:
    """Return what to do about a failure of a task, if the workers' Python is the cause; else an empty text."""
    return next(
        (f"{text}; " for marks, text in _ADVICE if any(each in reason for each in marks)), ""
    )


def warnings_in(lines: Iterable[str]) -> str:
    """Return the last warning of Spark in the lines of its log, without the time and the logger."""
    found = [line.split(": ", 1)[1] for line in lines if " WARN " in line and ": " in line]
    return found[-1].strip() if found else ""
