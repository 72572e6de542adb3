"""When a query of Spark last looked for files and found none: what the idle clock goes by.

Its status will not do: while Spark lists a folder, and after it found files, it says for a moment
what it says of an idle query. An idle event names the moment at which a trigger that found nothing
began, so that all that lay there then has been read, however long the listing took.
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
"""Spark tells of no more idle triggers than one in this time; it would be one in 10 s."""


class QuietQuery(StreamingQueryListener):
    """Keeps when the last trigger of a query that found nothing began."""

    def __init__(self) -> None:
        """Know of none, and of no query."""
        self.at: float | None = None
        """By the monotonic clock; set in a thread of the gateway."""
        self.run_id: str | None = None
        """Of the query; events of others are passed over."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note the moment."""
        if str(event.runId) == self.run_id:
            ago = datetime.now(UTC) - datetime.fromisoformat(event.timestamp)
            self.at = time.monotonic() - max(ago.total_seconds(), 0.0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Pass over."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass over; a test may kill here, after Spark has noted that a batch is done."""
        if str(event.progress.runId) == self.run_id:
            reach("pipeline.spark_committed")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Pass over."""


@contextmanager
def listening(
    spark: SparkSession, start: Callable[[], StreamingQuery]
) -> Iterator[tuple[StreamingQuery, QuietQuery]]:
    """Start a query, and listen for its idle triggers until the block ends; stops the query then."""
    quiet = QuietQuery()
    known = spark.conf.get(_INTERVAL) or _INTERVAL_MS
    spark.conf.set(_INTERVAL, _INTERVAL_MS)
    try:
        query = start()
    finally:
        spark.conf.set(_INTERVAL, known)
    try:
        quiet.run_id = str(query.runId)
        spark.streams.addListener(quiet)
        yield query, quiet
    finally:
        with suppress(Py4JError, OSError):
            spark.streams.removeListener(quiet)
        query.stop()
