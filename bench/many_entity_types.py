"""What does a log of 2,000 entity types cost: its schemas on disk, and to open it?

::

    2,000 types, seven new ones a transaction ─▶ schemas/*.json
                                              ─▶ a new process opens the log: seconds, memory
    baseline: the same process parses one file that has all of them

Each type has ten columns, and each transaction one row of each of its new types. The opening process is
measured from the moment its modules are imported.

What it does not show: types whose columns change again and again, and readers that ask for old schemas.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench._harness import machine, table
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.schema_documents import SchemaDocument
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state.commit_log import CommitLog

TYPES = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
A_TRANSACTION = 7
COLUMNS = 10

_MEASURED: Final = """
import re, sys, time
from pathlib import Path
from tailrace.schema import Schema
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.schema_documents import SchemaDocument
from tailrace_server.wal.state.commit_log import CommitLog
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
kept, began = peak(), time.process_time()
{work}
print(time.process_time() - began, peak() - kept)
"""
_OPEN_THE_LOG: Final = "log = CommitLog.open(Path(sys.argv[1]))"
_PARSE_ONE_FILE: Final = """
data = Path(sys.argv[1]).read_bytes()
schema = documents.load(sys.argv[1], data, SchemaDocument)[0].schema(Schema())
"""


def write(root: Path) -> Path:
    """Write the log, and return the catalog's folder."""
    image = b"{%s}" % b",".join(b'"c%d":%d' % (place, place) for place in range(COLUMNS))
    with LogWriter.open(root, "wide") as log:
        for first in range(0, TYPES, A_TRANSACTION):
            names = range(first, min(first + A_TRANSACTION, TYPES))
            log.append([Mutation(f"table_{name}", "1", after=image) for name in names])
            log.commit()
    return root / "wide"


def measured(work: str, argument: Path) -> tuple[float, float]:
    """Return the processor seconds of some work in a new process, and the MiB by which its peak grew."""
    program = _MEASURED.format(work=work)
    found = subprocess.run(
        [sys.executable, "-c", program, str(argument)], capture_output=True, text=True, check=True
    )
    seconds, kib = map(float, found.stdout.split())
    return seconds, kib / 1024


def main() -> None:
    """Print the table."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        log = write(Path(folder))
        sizes = [path.stat().st_size for path in (log / "schemas").iterdir()]
        whole = SchemaDocument.of(CommitLog.open(log).schemas.newest, 1)
        one = Path(folder) / "one.json"
        one.write_bytes(documents.sealed(whole)[0])
        rows = [
            ("parse one file with all", one.stat().st_size, *measured(_PARSE_ONE_FILE, one)),
            (f"open the log, {len(sizes)} files", sum(sizes), *measured(_OPEN_THE_LOG, log)),
        ]
    table(
        f"{TYPES:,} entity types of {COLUMNS} columns",
        ("", "bytes of schemas", "CPU s", "MiB"),
        [(what, f"{size:,}", f"{seconds:.2f}", f"{mib:.0f}") for what, size, seconds, mib in rows],
    )


if __name__ == "__main__":
    main()
