"""Does a log that came in 100,000 commits of ten rows read as fast, once compacted, as one of large commits?

::

    100,000 commits of 10 rows ──compaction──▶ segments ─┐
    100 commits of 10,000 rows ──────────────▶ segments ─┴─▶ resync: pread, CRC, predicate (1 % match)

One thread, one core, warm, as in ``resync_scan_one_percent``; the two logs in turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench._harness import machine, median, table
from bench._log import CATALOG, write_log
from bench.resync_scan_one_percent import scan
from tailrace_server.wal.log_writer import LogWriter

COMMITS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
PER_COMMIT = 10
ROWS = COMMITS * PER_COMMIT
RUNS = 5


def write_small(root: Path) -> None:
    """Write the small commits and compact what the writer's own rule has left."""
    write_log(
        root,
        rows=ROWS,
        rows_per_transaction=PER_COMMIT,
        transactions_per_commit=1,
        rare_every=100,
        publish_every=100,
    )
    with LogWriter.open(root, CATALOG) as writer:
        while writer.compact() is not None:
            pass


def write_large(root: Path) -> None:
    """Write the same transactions in large commits."""
    write_log(
        root,
        rows=ROWS,
        rows_per_transaction=PER_COMMIT,
        transactions_per_commit=1_000,
        rare_every=100,
    )


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        write_small(small)
        write_large(large)
        os.sched_setaffinity(0, {0})
        scan(small), scan(large)
        pairs = [(scan(small), scan(large)) for _ in range(RUNS)]
    assert {matches for pair in pairs for _, matches in pair} == {ROWS // 100}
    table(
        f"resync of {ROWS:,} rows, 1 % match, median of {RUNS}",
        [f"{COMMITS:,} commits, compacted", "large commits", "ratio", "to reach"],
        [
            [
                f"{median([one[0] for one, _ in pairs]) / 1e6:.1f} M rows/s",
                f"{median([other[0] for _, other in pairs]) / 1e6:.1f} M rows/s",
                f"{median([one[0] / other[0] for one, other in pairs]):.2f}",
                "0.7",
            ]
        ],
    )


if __name__ == "__main__":
    main()
