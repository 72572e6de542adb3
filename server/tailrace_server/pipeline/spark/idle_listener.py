"""When a Spark query last looked for files and found none. The idle clock is set by it.

The status of the query does not tell: for a moment it is that of an idle query while Spark lists a folder, and
after it found files. An idle event names the moment at which a trigger that found nothing began. So every file
that was there at that moment has been read, however long the listing took.
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
"""Least time between two idle events; Spark's default is 10 s."""


class IdleListener(StreamingQueryListener):
    """Keeps the moment at which the last trigger of a query that found nothing began."""

    def __init__(self) -> None:
        """Begin without a query."""
        self.idle_at: float | None = None
        """That moment by the monotonic clock, None for no such trigger; set in a thread of the gateway."""
        self.run_id: str | None = None
        """Run of the query; events of other runs are ignored."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note the moment."""
        if str(event.runId) == self.run_id:
            ago = datetime.now(UTC) - datetime.fromisoformat(event.timestamp)
            self.idle_at = time.monotonic() - max(ago.total_seconds(), 0.0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Do nothing; a test may kill the process here, when Spark has noted that a batch is done."""
        if str(event.progress.runId) == self.run_id:
            reach("pipeline.spark_committed")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""


@contextmanager
def listening(
    spark: SparkSession, start: Callable[[], StreamingQuery]
) -> Iterator[tuple[StreamingQuery, IdleListener]]:
    """Start a query and listen for its idle triggers; when the block ends, stop the query."""
    # 1. A query takes the interval from the session when it starts. Afterwards the session has its own again,
    #    since it may be the caller's.
    listener = IdleListener()
    known = spark.conf.get(_INTERVAL) or _INTERVAL_MS
    spark.conf.set(_INTERVAL, _INTERVAL_MS)
    try:
        query = start()
    finally:
        spark.conf.set(_INTERVAL, known)
    # 2. The run is known only now. An idle event before this is missed; the next one comes in 100 ms.
    try:
        listener.run_id = str(query.runId)
        spark.streams.addListener(listener)
        yield query, listener
    finally:
        # 3. A JVM that has died answers neither call; its own error is on the way already.
        with suppress(Py4JError, OSError):
            spark.streams.removeListener(listener)
        query.stop()
