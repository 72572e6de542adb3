"""How fast does a resync read the log when its criteria match one record in a hundred?

::

    warm segments ──pread, CRC──▶ heads ──group──▶ predicate ──▶ runs

One thread, one core, checksums on, files in the page cache; the same reading with an empty cache of heads every
round.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench._harness import machine, median, table
from bench._log import CATALOG, write_log
from tailrace.criteria import Area, Criteria, canonical
from tailrace_server.rows.batch_images import NO_IMAGES
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

ROWS = 1_000_000
RUNS = 5


def scan(root: Path) -> tuple[float, int]:
    """Return rows a second and matches of one scan of the whole log."""
    predicate = Predicate(canonical([Criteria(area=Area.DATA, entity_type=("rare",))]))
    view = CommitLog.open(root / CATALOG).view
    matches = 0
    with BatchReader(root / CATALOG) as reader:
        started = time.perf_counter()
        for place in range(len(view)):
            grouped = group_by_class(reader.head(view.batch(place)))
            matches += len(predicate.select(grouped, NO_IMAGES))
        seconds = time.perf_counter() - started
    return view.end_row / seconds, matches


def main() -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {0})
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(
            root, rows=ROWS, rows_per_transaction=100, transactions_per_commit=1000, rare_every=100
        )
        runs = [scan(root) for _ in range(RUNS)]
        assert {matches for _, matches in runs} == {ROWS // 100}
        rate = median([each for each, _ in runs])
        table(
            f"scan of {ROWS:,} rows, 1 % match, warm, checksums on, median of {RUNS}",
            ["rows/s", "to reach"],
            [[f"{rate / 1e6:.1f} M", "10 M"]],
        )


if __name__ == "__main__":
    main()
