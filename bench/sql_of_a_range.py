"""What do the newest changes of one entity type cost in SQL, and the history of one key?

::

    2 M records of two types ─▶ CHANGES('product') WHERE _commit_timestamp >= …     the last hundredth
    the same rows in Parquet ─▶ DuckDB, the same WHERE                              baseline
                             ─▶ CHANGES('product') WHERE _primary_key = '…'         with and without key files
    an engine that has read nothing ─▶ history of one key, as `changes --key`       with and without key files

The Parquet file is sorted by time and has the columns of the change table, so DuckDB skips all but the last row
groups of it. Both have a database ready and use one thread. Seconds are the processor's, median
of alternate runs; answers are compared. The log is in the page cache.

What it does not show: logs on slow disks, and many statements at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench._harness import machine, table
from tailrace.criteria import Criteria
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.sql.query import Query, QueryLimits
from tailrace_server.sql.scans import LogSource
from tailrace_server.wal.base.key_files import make_key_files
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace_server.wal.state.view import LogView

RECORDS: Final = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
_KEYS: Final = RECORDS // 5
_A_COMMIT: Final = max(1_000, RECORDS // 200)
_RUNS: Final = 7
_ROW_GROUP: Final = 122_880
"""Rows, as DuckDB itself writes them."""
_ANSWER_ROWS: Final = 2_048
"""Of a batch of the answer, as a statement has them."""
_LOOK_UPS: Final = 40
_HISTORIES: Final = 12
_BUCKETS: Final = (1, 4, 16)
_LIMITS: Final = QueryLimits(seconds=600.0, memory_bytes=1 << 30)
_MAPPING: Final = SchemaMapping.parse(
    "\n".join(
        f'[entity_types.{name}]\nkey = ["id"]\n[entity_types.{name}.columns]\nid = {{ type = "BIGINT" }}\n'
        'price = { type = "DECIMAL(10,2)" }\nnote = { type = "VARCHAR" }\n'
        for name in ("product", "review")
    )
)


def write(root: Path) -> None:
    """Write and publish changes of random keys, every fifth of another entity type."""
    random = np.random.default_rng(3)
    with LogWriter.open(root, "bench", mapping=_MAPPING) as writer:
        for start in range(0, RECORDS, _A_COMMIT):
            count = min(_A_COMMIT, RECORDS - start)
            numbers = random.choice(_KEYS, count, replace=False).tolist()
            images = [
                f'{{"id":{each},"price":{each}.50,"note":"{each * 2_654_435_761:040d}"}}'
                for each in numbers
            ]
            types = ["review" if place % 5 == 0 else "product" for place in range(count)]
            writer.append_batch(
                pa.RecordBatch.from_pydict(
                    {
                        "entity_type": pa.array(types),
                        "primary_key": pa.array(map(str, numbers), pa.utf8()),
                        "after": pa.array(images, pa.utf8()).cast(pa.binary()),
                    }
                )
            )
            writer.commit(publish=True)


def timed(
    ask: Callable[[str], tuple[float, list[pa.RecordBatch]]], text: str
) -> tuple[float, float, list[pa.RecordBatch]]:
    """Return seconds to the first batch and to the last, and the batches."""
    start = time.process_time()
    first, batches = ask(text)
    return first - start, time.process_time() - start, batches


def collected(batches: Iterable[pa.RecordBatch]) -> tuple[float, list[pa.RecordBatch]]:
    """Return when the first batch was there, and all of them."""
    found, first = [], 0.0
    for batch in batches:
        first = first or time.process_time()
        found.append(batch)
    return first or time.process_time(), found


def answered(source: LogSource, text: str) -> tuple[float, list[pa.RecordBatch]]:
    """Ask the log."""
    with Query(source, text, limits=_LIMITS) as query:
        return collected(query.batches())


def from_parquet(
    database: duckdb.DuckDBPyConnection, text: str
) -> tuple[float, list[pa.RecordBatch]]:
    """Ask the file."""
    with database.cursor() as connection:
        return collected(connection.sql(text).to_arrow_reader(_ANSWER_ROWS))


def write_parquet(source: LogSource, path: Path) -> None:
    """Put the rows of the change table into a file, in the order of the log."""
    with (
        Query(source, "SELECT * FROM CHANGES('product')", limits=_LIMITS) as query,
        pq.ParquetWriter(path, query.schema) as writer,
    ):
        waiting: list[pa.RecordBatch] = []
        for batch in query.batches():
            waiting.append(batch)
            if sum(map(len, waiting)) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


def a_range(source: LogSource, path: Path, share: int) -> list[tuple[str, str, str]]:
    """Return the lines about one of so many parts of the log, the newest."""
    view = source.view
    at = view.timestamp_of(view.published - view.published // share + 1)
    where = f"WHERE _commit_timestamp >= make_timestamptz({at})"
    ours, others = [], []
    database = duckdb.connect(config={"threads": "1"})
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    for _ in range(_RUNS):
        mine = timed(partial(answered, source), f"SELECT * FROM CHANGES('product') {where}")
        other = timed(partial(from_parquet, database), f"SELECT * FROM '{path}' {where}")
        rows, same = map(pa.Table.from_batches, (mine[2], other[2]))
        assert rows.equals(same.cast(rows.schema)), "the rows differ"
        ours.append(mine[:2])
        others.append(other[:2])
    lines = []
    for name, place in (("first rows", 0), ("all rows", 1)):
        seconds, theirs = (statistics.median(run[place] for run in each) for each in (ours, others))
        lines.append(
            (
                f"1/{share} of the log ({len(rows):,} rows): {name}",
                f"{1_000 * seconds:.1f} ms",
                f"{seconds / theirs:.2f} of Parquet's {1_000 * theirs:.1f} ms",
            )
        )
    return lines


def one_key(source: LogSource, name: str) -> tuple[str, str, str]:
    """Return the line about histories of single keys."""
    times, rows = [], 0
    keys = np.random.default_rng(7).integers(0, _KEYS, _LOOK_UPS).tolist()
    for key in keys:
        text = f"SELECT * FROM CHANGES('product') WHERE _primary_key = '{key}'"
        _, seconds, found = timed(partial(answered, source), text)
        times.append(1_000 * seconds)
        rows += sum(map(len, found))
    middle, high = np.percentile(times, [50, 99])
    return (
        f"one key, {name}",
        f"{middle:.1f} ms",
        f"p99 {high:.1f} ms, {rows / len(keys):.1f} rows",
    )


def many_scans(source: LogSource, folder: Path) -> list[tuple[str, str, str]]:
    """Return the lines about a change table that several threads read, of the newest fiftieth of the log."""
    view = source.view
    at = view.timestamp_of(view.published - view.published // 50 + 1)
    text = f"SELECT * FROM many WHERE PHOENIX_ROW_TIMESTAMP() >= make_timestamptz({at})"
    defined(source, "CREATE CDC many ON product INCLUDE (POST)")
    runs: dict[tuple[int, bool], list[float]] = {}
    rows: dict[int, int] = {}
    for _ in range(_RUNS):
        for buckets in _BUCKETS:
            defined(source, f"ALTER CDC many SET SALT_BUCKETS = {buckets}")
            for is_cold in (False, True):
                if is_cold:
                    forget_pages(folder)
                start = time.perf_counter()
                rows[buckets] = sum(map(len, answered(source, text)[1]))
                runs.setdefault((buckets, is_cold), []).append(time.perf_counter() - start)
    assert len(set(rows.values())) == 1, rows
    lines = []
    for (buckets, is_cold), seconds in runs.items():
        one = statistics.median(runs[1, is_cold])
        where = "not in the page cache" if is_cold else "in the page cache"
        lines.append(
            (
                f"{rows[buckets]:,} rows of a change table, {where}: {buckets} scans at once",
                f"{1_000 * statistics.median(seconds):.0f} ms, wall",
                f"{statistics.median(seconds) / one:.2f} of one",
            )
        )
    return lines


def defined(source: LogSource, text: str) -> None:
    """Run a statement that defines."""
    with Query(source, text, limits=_LIMITS, may_define=True) as query:
        collected(query.batches())


def forget_pages(folder: Path) -> None:
    """Have the system forget what it holds of the segments of a catalog."""
    for path in folder.rglob("*.arrow"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def history(root: Path, key: str) -> tuple[float, int, int]:
    """Return the seconds of one key's history, the bytes that were read for it, and its records."""
    criteria = [Criteria(entity_type=("product",), primary_key=(key,))]
    async with Engine(root) as engine:
        await engine.history(ANONYMOUS, "bench", criteria, codec=JSON)  # opens the log
        start, before = time.process_time(), bytes_read()
        found = 0
        async for frames in await engine.history(ANONYMOUS, "bench", criteria, codec=JSON):
            found += frames.count
        return time.process_time() - start, bytes_read() - before, found


def bytes_read() -> int:
    """Return the bytes that the process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def one_history(root: Path, name: str) -> tuple[str, str, str]:
    """Return the line about histories of single keys as a server answers them."""
    keys = np.random.default_rng(7).integers(0, _KEYS, _HISTORIES).tolist()
    runs = [asyncio.run(history(root, str(key))) for key in keys]
    seconds, read, rows = ([run[place] for run in runs] for place in range(3))
    return (
        f"history of one key, {name}",
        f"{1_000 * statistics.median(seconds):.1f} ms",
        f"{statistics.median(read):,.0f} bytes read, {sum(rows) / len(keys):.1f} rows",
    )


def main() -> None:
    """Write, measure, print."""
    pa.set_cpu_count(1)
    loops_made()  # a server has them from its first large read on
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root)

        def newer(_: object) -> LogView:
            raise AssertionError("nothing compacts here")

        log = open_catalog(root, "bench")
        with BatchReader(log.path) as reader:
            source = LogSource(log.view, reader, newer)
            write_parquet(source, root / "changes.parquet")
            lines = a_range(source, root / "changes.parquet", 100)
            lines += many_scans(source, log.path)
            # A writer's upkeep has made what it could meanwhile.
            shutil.rmtree(log.path / "keys", ignore_errors=True)
            lines.append(one_key(source, "no key files"))
            lines.append(one_history(root, "no key files"))
            start = time.process_time()
            count = make_key_files(log.path)
            seconds = time.process_time() - start
            size = sum(each.stat().st_size for each in (log.path / "keys").iterdir())
            lines.append((f"{count} key files", f"{seconds:.2f} s", f"{size:,} bytes"))
            lines.append(one_key(source, "key files"))
            lines.append(one_history(root, "key files"))
        table(f"{RECORDS:,} records", ("", "ours", ""), lines)


if __name__ == "__main__":
    main()
