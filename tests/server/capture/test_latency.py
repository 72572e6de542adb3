"""Commit times by the clock of the process, and the histogram."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace_server.capture.latency import BUCKETS_S, NEVER, LatencyHistogram, committed_at
from tailrace_server.wal.catalog import open_catalog
from tests.server.capture.test_engine import upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


def test_a_latency_counts_in_its_bucket_and_in_all_above() -> None:
    histogram = LatencyHistogram()
    for seconds in (-1.0, 0.001, 0.0011, 1_000.0):
        histogram.observe(seconds)
    found = histogram.cumulative()
    assert found[:2] == [("0.001", 2.0), ("0.0025", 3.0)]
    assert found[-2:] == [("300.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum_s == 1_000.0021
    assert BUCKETS_S[0] <= 0.001
    assert BUCKETS_S[-1] >= 60


def test_commits_are_timed_by_the_monotonic_clock(log_root: Path, writer: ModelWriter) -> None:
    before = time.monotonic()
    writer.write([upsert(1)])
    view = open_catalog(log_root, "shop").view
    # The wall clock and the monotonic one are read apart, and differ in the microseconds that they show.
    assert before - 0.001 <= committed_at(view, 1) <= time.monotonic()
    assert committed_at(view, 0) == NEVER
