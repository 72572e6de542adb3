"""Latencies by bucket."""

from __future__ import annotations

from tailrace_server.histogram import BUCKETS_S, LatencyHistogram


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
