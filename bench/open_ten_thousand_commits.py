"""How long until a log of 10,000 commits can be read?

The time of ``CommitLog.open``: newest checkpoint, entries after it, newest publication; page cache warm.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench._harness import machine, median, table
from bench._log import CATALOG, write_log
from tailrace_server.wal.state.commit_log import CommitLog

COMMITS = 10_000
RUNS = 5


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=COMMITS, rows_per_transaction=1, transactions_per_commit=1)
        seconds = []
        for _ in range(RUNS):
            started = time.perf_counter()
            view = CommitLog.open(root / CATALOG).view
            seconds.append(time.perf_counter() - started)
            assert view.published == COMMITS
    table(
        f"opening a log of {COMMITS:,} commits, median of {RUNS}",
        ["seconds", "to reach"],
        [[f"{median(seconds):.3f}", "0.5"]],
    )


if __name__ == "__main__":
    main()
