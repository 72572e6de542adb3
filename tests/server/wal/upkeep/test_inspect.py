"""What ``log inspect`` says of a log whose oldest versions are trimmed, and of its newest entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.upkeep import inspect
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path


def test_a_segment_that_holds_trimmed_versions_beside_others_is_told(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for commit in range(2):
            for transaction in range(2):
                writer.append([upsert(f"{commit}{transaction}")])
            writer.commit(publish=True)
        assert not inspect.summarize(log_root / "shop").holds_trimmed
        for before, rows, holds_trimmed in ((2, 9, True), (3, 4, False), (4, 4, True)):
            writer.trim(before=before)
            summary = inspect.summarize(log_root / "shop")
            assert (summary.rows, summary.holds_trimmed) == (rows, holds_trimmed)


def test_the_newest_entries_are_told_from_the_published_ones(log_root: Path) -> None:
    """An entry without versions counts with the one before, also where that is not shown."""
    writer = LogWriter.open(log_root, "shop")
    for version in (1, 2):
        writer.append([upsert(str(version))])
        writer.commit(publish=version == 1)
    writer.close()
    with open_writer(log_root, "shop", writer="log-writer", publish_left=False):
        every = [each.published for each in inspect.entries(log_root / "shop")]
        assert every == [True, True, False, False]
        for first in range(1, len(every) + 1):
            shown = inspect.entries(log_root / "shop", first=first)
            assert [each.published for each in shown] == every[first - 1 :]
