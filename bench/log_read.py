"""How fast is a log read into Polars, compared with the same rows in Parquet?

::

    2 M inserts of ten columns ─▶ log ─▶ tailrace.log.read ─▶ Polars
    the rows that it returns   ─▶ Parquet ─▶ polars.read_parquet      baseline

Three reads: all columns of the changes, three typed columns, and the state. A log stores rows as JSON, so it is
about four times as large. Seconds are of the wall clock, medians of alternate runs, with all cores. The files
are in the page cache, and the frames of both are compared first.

What it does not show: slow disks, updates with both images, and conditions.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from polars.testing import assert_frame_equal

from bench._harness import machine, table
from tailrace.log import LogWriter, read
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.wal.schema.mapping import SchemaMapping

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
_A_COMMIT: Final = 100_000
_A_TRANSACTION: Final = 1_000
_RUNS: Final = 7
_TYPES: Final = {
    "id": "BIGINT",
    "customer": "BIGINT",
    "status": "VARCHAR",
    "city": "VARCHAR",
    "price": "DECIMAL(10,2)",
    "tax": "DOUBLE",
    "quantity": "INTEGER",
    "paid": "BOOLEAN",
    "day": "DATE",
    "at": "TIMESTAMP WITH TIME ZONE",
}
_MAPPING: Final = SchemaMapping.parse(
    '[entity_types.sale]\nkey = ["id"]\n[entity_types.sale.columns]\n'
    + "\n".join(f'{name} = {{ type = "{kind}" }}' for name, kind in _TYPES.items())
)
_READS: Final[dict[str, dict[str, Any]]] = {
    "changes, all columns": {},
    "changes, three typed columns": {"columns": ["id", "price", "status"]},
    "state, all columns": {"shape": "state"},
}


def write(root: Path) -> None:
    """Write and publish the rows."""
    random = np.random.default_rng(3)
    with LogWriter.open(root, "bench", mapping=_MAPPING) as writer:
        for start in range(0, ROWS, _A_COMMIT):
            ids = np.arange(start, min(start + _A_COMMIT, ROWS))
            writer.append_batch(
                pa.RecordBatch.from_pydict(
                    {
                        "transaction_id": pa.array(ids // _A_TRANSACTION).cast(pa.string()),
                        "entity_type": pa.repeat("sale", len(ids)),
                        "primary_key": pa.array(ids).cast(pa.string()),
                        "after": images(ids, random),
                    }
                )
            )
            writer.commit(publish=True)


def images(ids: np.ndarray[Any, np.dtype[np.int64]], random: np.random.Generator) -> pa.Array:
    """Return a JSON object with ten members for each id."""
    count = len(ids)

    def whole(least: int, end: int) -> pa.Array:
        return pa.array(random.integers(least, end, count))

    def text(values: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")

    cents = pc.utf8_lpad(whole(0, 100).cast(pa.string()), 2, "0")
    moments = whole(10**15, 2 * 10**15).cast(pa.timestamp("us"))
    words = pa.array(["open", "paid", "sent", "done"])
    members = {
        "id": pa.array(ids),
        "customer": whole(0, 100_000),
        "status": text(words.take(whole(0, 4))),
        "city": text(pc.binary_join_element_wise("city", whole(0, 500).cast(pa.string()), " ")),
        "price": pc.binary_join_element_wise(whole(0, 10_000).cast(pa.string()), cents, "."),
        "tax": pa.array(random.random(count)),
        "quantity": whole(1, 100),
        "paid": whole(0, 2).cast(pa.bool_()),
        "day": text(whole(0, 20_000).cast(pa.int32()).cast(pa.date32())),
        "at": text(pc.binary_join_element_wise(pc.strftime(moments, "%Y-%m-%dT%H:%M:%S"), "Z", "")),
    }
    parts: list[pa.Array | str] = ["{"]
    for place, (name, values) in enumerate(members.items()):
        parts += [f'{"," if place else ""}"{name}":', values.cast(pa.string())]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def timed(act: Callable[[], pl.DataFrame]) -> tuple[float, pl.DataFrame]:
    """Return the seconds of a read, and its frame."""
    gc.collect()
    start = time.perf_counter()
    found = act()
    return time.perf_counter() - start, found


def compared(root: Path, file: Path, name: str, options: dict[str, Any]) -> tuple[str, str, str]:
    """Return the line of one read."""

    def ours() -> pl.DataFrame:
        found = pl.from_arrow(read(root, "bench", "sale", **options))
        assert isinstance(found, pl.DataFrame)
        return found

    with pq.ParquetWriter(file, read(root, "bench", "sale", **options).schema) as writer:
        writer.write_table(read(root, "bench", "sale", **options).read_all())
    # The rows of a state have no order.
    assert_frame_equal(ours(), pl.read_parquet(file), check_row_order=False)
    mine, theirs = [], []
    for _ in range(_RUNS):
        mine.append(timed(ours)[0])
        theirs.append(timed(lambda: pl.read_parquet(file))[0])
    seconds, baseline = statistics.median(mine), statistics.median(theirs)
    return (
        name,
        f"{seconds:.2f} s, {ROWS / seconds / 1e6:.1f} M rows/s",
        f"{baseline / seconds:.2f} of the speed of Parquet ({baseline:.2f} s)",
    )


def main() -> None:
    """Print the speeds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root)
        loops_made()
        size = sum(each.stat().st_size for each in (root / "bench").rglob("*") if each.is_file())
        lines = [
            compared(root, root / "rows.parquet", name, options) for name, options in _READS.items()
        ]
    title = f"{ROWS:,} rows, {size / 1e6:.0f} MB of log, {os.cpu_count()} cores, {machine()}"
    table(title, ("read", "into Polars", "beside Parquet"), lines)


if __name__ == "__main__":
    main()
