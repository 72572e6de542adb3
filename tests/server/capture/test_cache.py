"""The batch cache: what it lets go of where room is short."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tailrace_server.capture.cache import BatchCache, Kind


@dataclass(frozen=True)
class Value:
    """So many bytes."""

    nbytes: int


async def test_scans_of_many_criteria_leave_the_heads_that_are_needed_next() -> None:
    with ThreadPoolExecutor(1) as threads:
        cache = BatchCache(1 << 30, 1 << 20, 1_000, threads)
        cache.put(Kind.HEAD, "head", Value(400))
        for criteria in range(100):
            cache.put(Kind.SCAN, criteria, Value(50))
        assert cache.get_nowait(Kind.HEAD, "head") is not None
        scans = [cache.get_nowait(Kind.SCAN, criteria) is not None for criteria in range(100)]
        assert scans == [False] * 90 + [True] * 10
        for head in range(10):
            cache.put(Kind.HEAD, head, Value(100))
        assert cache.statistics().bytes == 1_000
        assert all(cache.get_nowait(Kind.SCAN, criteria) for criteria in range(90, 100))
