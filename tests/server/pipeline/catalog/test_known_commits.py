"""Marks of commits: as many as an age needs, and never more."""

from __future__ import annotations

from tailrace_server.pipeline.catalog.time_to_live import marks_after

SECOND = 1_000_000


def test_commits_are_noted_some_times_within_an_age_and_old_ones_dropped() -> None:
    positions: dict[str, int | str] = {"other": 1}
    assert marks_after(positions, [32], 0, 5) == {}
    for version in range(1, 1_000):
        positions |= marks_after(positions, [32], version, version * SECOND // 2)
    marks = str(positions["ttl:32"]).split(",")
    assert marks[-2:] == [f"997:{997 * SECOND // 2}", f"999:{999 * SECOND // 2}"]
    assert len(marks) == 64
    assert marks_after(positions, [], 1_000, 10**12) == {}
