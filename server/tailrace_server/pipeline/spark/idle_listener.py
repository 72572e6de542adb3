"""The time when a Spark query last looked for files and found none; the idle clock starts from it.

The status of the query is no substitute: it is briefly that of an idle query while Spark lists a folder, and
even after Spark found files. An idle event has the start time of a trigger that found nothing. So every file
that existed at that time has been read, however long the listing took.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming.listener import StreamingQueryListener

from tailrace_server.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

_INTERVAL: Final = "spark.sql.streaming.noDataProgressEventInterval"
_INTERVAL_MS: Final = 100
"""Least time between two idle events, in ms; Spark's default is 10 s."""


class IdleListener(StreamingQueryListener):
    """Stores the start time of a query's last trigger that found nothing."""

    def __init__(self) -> None:
        """Start without a query."""
        self.idle_at: float | None = None
        """Start of the last trigger that found nothing, on the monotonic clock; None: no such trigger yet. A
        thread of the gateway sets it.
        """
        self.run_id: str | None = None
        """The run id of the query; events of other runs are ignored."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Store the start time of the trigger."""
        if str(event.runId) == self.run_id:
            ago = datetime.now(UTC) - datetime.fromisoformat(event.timestamp)
            self.idle_at = time.monotonic() - max(ago.total_seconds(), 0.0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Do nothing. A test may kill the process here, once Spark has committed a batch."""
        if str(event.progress.runId) == self.run_id:
            reach("pipeline.spark_committed")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""


@contextmanager
def listening(
    spark: SparkSession, start: Callable[[], StreamingQuery]
) -> Iterator[tuple[StreamingQuery, IdleListener]]:
    """Start a query and listen to its idle events; stop the query when the block ends."""
    # 1. A query takes the interval from the session when it starts. Restore the session's own interval then,
    #    since the session may belong to the caller.
    listener = IdleListener()
    known = spark.conf.get(_INTERVAL) or _INTERVAL_MS
    spark.conf.set(_INTERVAL, _INTERVAL_MS)
    try:
        query = start()
    finally:
        spark.conf.set(_INTERVAL, known)
    # 2. The run id is known only now. An idle event before this line is missed; the next one comes in 100 ms.
    try:
        listener.run_id = str(query.runId)
        spark.streams.addListener(listener)
        yield query, listener
    finally:
        # 3. A JVM that has died answers neither call. Its error is already being raised.
        with suppress(Py4JError, OSError):
            spark.streams.removeListener(listener)
        query.stop()
