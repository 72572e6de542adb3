"""How Spark's idle events are read. That Spark sends them is covered in tests/process/ingest."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pyspark.sql.streaming.listener import QueryIdleEvent

from tailrace_server.pipeline.spark.idle_listener import IdleListener


def test_the_moment_is_that_at_which_the_trigger_began_and_other_queries_say_nothing() -> None:
    listener, other, run = IdleListener(), IdleListener(), uuid4()
    listener.run_id, other.run_id = str(run), str(uuid4())
    began = (datetime.now(UTC) - timedelta(seconds=7)).isoformat(timespec="milliseconds")
    event = QueryIdleEvent(uuid4(), run, began.replace("+00:00", "Z"))
    before = time.monotonic()
    listener.onQueryIdle(event)
    other.onQueryIdle(event)
    assert other.idle_at is None
    assert listener.idle_at is not None
    assert -7.1 < listener.idle_at - before < -5.0


def test_a_moment_in_the_future_is_now() -> None:
    """As when the machine's clock is set back meanwhile."""
    listener, run = IdleListener(), uuid4()
    listener.run_id = str(run)
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
    listener.onQueryIdle(QueryIdleEvent(uuid4(), run, ahead))
    assert listener.idle_at is not None
    assert listener.idle_at <= time.monotonic()
