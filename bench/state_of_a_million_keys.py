"""What does a base cost to make, and what is state read over it worth?

::

    5 M records of 1 M keys ─▶ make_base                        seconds, memory
                            ─▶ baseline: pyarrow group_by       of the same files, in memory
    the base                ─▶ all rows                         baseline: the same rows from a Parquet file
                            ─▶ one key after the other          milliseconds, median and 99th percentile
    5 % more records behind it, the same again

Keys are chosen at random, so every part of the base has changes. Each measurement is a process of its own,
after one that has read the files, so they are in the page cache. Seconds are the processor's; memory is by how
much the peak grew.

What it does not show: tables of many gigabytes, whose files are not in memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench._harness import machine, table
from tailrace_server.wal.log_writer import LogWriter

RECORDS: Final = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
KEYS: Final = RECORDS // 5
_A_COMMIT: Final = 100_000

_PROLOGUE: Final = """
import gc, re, sys, time
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tailrace_server.wal.base.making import make_base
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
pa.set_cpu_count(1)
catalog, keys = Path(sys.argv[1]), int(sys.argv[2])
def peak(): return int(re.search(r"VmHWM:\\\\s+(\\\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
def rows_of(state): return sum(map(len, state.parts()))
log = CommitLog.open(catalog)
kept, began = peak(), time.process_time()
"""
_MAKE: Final = """
print(make_base(catalog, 5).rows, end=" ")
"""
_GROUP: Final = """
parts = []
for path in sorted((catalog / "segments").rglob("*.arrow")):
    with pa.memory_map(str(path)) as file:
        read = pa.ipc.open_file(file).read_all().select(["primary_key", "after"])
        parts.append(read.filter(pc.is_valid(read["primary_key"])))
read = pa.concat_tables(parts).append_column("row", pa.array(np.arange(sum(map(len, parts)))))
last = read.group_by("primary_key").aggregate([("row", "max")])["row_max"]
print(len(read.take(last)), end=" ")
"""
_READ: Final = """
with BatchReader(catalog) as reader:
    print(rows_of(table_state(log.view, reader, "product", log.view.published)), end=" ")
"""
_PARQUET: Final = """
print(len(pq.read_table(catalog.parent / "rows.parquet", use_threads=False, pre_buffer=False)), end=" ")
"""
_WRITE_PARQUET: Final = """
with BatchReader(catalog) as reader:
    parts = [
        pa.table({"key": part.primary_keys, "version": part.versions, "after": part.images})
        for part in table_state(log.view, reader, "product", log.view.published).parts()
    ]
pq.write_table(pa.concat_tables(parts), catalog.parent / "rows.parquet")
print(0, end=" ")
"""
_KEYS: Final = """
with BatchReader(catalog) as reader:
    state = table_state(log.view, reader, "product", log.view.published)
    times = []
    for key in np.random.default_rng(7).integers(0, keys, 300).tolist():
        start = time.perf_counter()
        found = state.rows_of([f"{key:09d}"])
        times.append(1_000 * (time.perf_counter() - start))
    print(np.percentile(times, 50), np.percentile(times, 99), len(found), end=" ")
"""
_EPILOGUE: Final = """
print(time.process_time() - began, peak() - kept)
"""


def write(root: Path, records: int, seed: int) -> None:
    """Write and publish changes of random keys."""
    random = np.random.default_rng(seed)
    with LogWriter.open(root, "bench") as writer:
        for start in range(0, records, _A_COMMIT):
            count = min(_A_COMMIT, records - start, KEYS)
            chosen = random.choice(KEYS, count, replace=False)  # a transaction has each key once
            keys = [f"{key:09d}" for key in chosen.tolist()]
            note = "n" * 100
            images = [f'{{"id":"{key}","at":{start},"note":"{note}"}}'.encode() for key in keys]
            writer.append_batch(
                pa.RecordBatch.from_pydict(
                    {
                        "entity_type": pa.array(["product"] * count),
                        "primary_key": pa.array(keys),
                        "after": pa.array(images, pa.binary()),
                    }
                )
            )
            writer.commit(publish=True)


def measured(work: str, catalog: Path) -> list[float]:
    """Return what some work prints in a new process, its processor seconds, and the MiB it took."""
    program = _PROLOGUE.replace("\\\\", "\\") + work + _EPILOGUE
    command = [sys.executable, "-c", program, str(catalog), str(KEYS)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [*map(float, found.stdout.split())]


def main() -> None:
    """Write, measure, print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, RECORDS, 1)
        catalog = root / "bench"
        *_, over_log_s, over_log_mib = measured(_READ, catalog)
        group = measured(_GROUP, catalog)
        made = measured(_MAKE, catalog)
        rows = [
            ("state without a base, all rows", "", over_log_s, over_log_mib),
            ("pyarrow group_by, all in memory", "", *group[-2:]),
            ("make_base", f"{made[-2] / group[-2]:.2f} of group_by", *made[-2:]),
        ]
        assert made[0] == group[0], "the base has other rows than pyarrow finds"
        for what, more in (("the base", 0), ("5 % behind it", RECORDS // 20)):
            write(root, more, 2)
            measured(_WRITE_PARQUET, catalog)
            parquet, read = measured(_PARQUET, catalog), measured(_READ, catalog)
            p50, p99, *_, keys_s, keys_mib = measured(_KEYS, catalog)
            assert parquet[0] == read[0]
            share = f"{parquet[-2] / read[-2]:.2f} of the rows/s of Parquet"
            rows += [
                (f"Parquet of the same rows, {what}", "", *parquet[-2:]),
                (f"all rows, {what}", share, *read[-2:]),
                (f"300 keys, {what}", f"{p50:.2f} ms, p99 {p99:.2f}", keys_s, keys_mib),
            ]
        shown = [(name, note, f"{cpu:.2f}", f"{mib:.0f}") for name, note, cpu, mib in rows]
        header = ("", "", "CPU s", "MiB")
        table(f"{RECORDS:,} records, {KEYS:,} keys, {int(made[0]):,} rows", header, shown)


if __name__ == "__main__":
    main()
