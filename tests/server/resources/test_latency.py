"""Commit times by the clock of the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace_server.resources.statistics import NEVER, committed_at
from tailrace_server.wal.catalog import open_catalog
from tests.server.engine.test_engine import upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


def test_commits_are_timed_by_the_monotonic_clock(log_root: Path, writer: ModelWriter) -> None:
    before = time.monotonic()
    writer.write([upsert(1)])
    view = open_catalog(log_root, "shop").view
    # The wall clock and the monotonic one are read apart, and differ in the microseconds that they show.
    assert before - 0.001 <= committed_at(view, 1) <= time.monotonic()
    assert committed_at(view, 0) == NEVER
