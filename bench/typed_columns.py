"""How fast images become typed columns: all nine of a row, three of them, and one.

::

    images (Arrow binary) ──▶ where members lie ──▶ values by type ──▶ Arrow columns

A row is 200 bytes: whole numbers, texts, a decimal in base64 and one as a number, microseconds, a moment with a
zone, a truth. Baselines of the same run: `pyarrow.json`, which knows no encodings and gets the same objects as
lines, in one thread; and `orjson`, which makes a Python dict of each. Rounds alternate; figures are processor
time of one thread, a ratio is the median of those of neighbouring rounds.

    python -m bench.typed_columns

It does not show values that compiled code leaves to Python (more than 18 digits): a microsecond or two each.
"""

from __future__ import annotations

import base64
import io
import random
import time
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
from pyarrow import json as arrow_json

from bench._harness import machine, median, table
from tailrace.schema import Column
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.typed.reader import ColumnReader

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = 100_000
ROUNDS: Final = 7
SEED: Final = 1
COLUMNS: Final = (
    Column("id", sql_type="BIGINT"),
    Column("name", sql_type="VARCHAR"),
    Column("price", sql_type="DECIMAL(10,2)", encoding="decimal.bytes(2)"),
    Column("cost", sql_type="DECIMAL(10,2)"),
    Column("made", sql_type="TIMESTAMP", encoding="debezium.MicroTimestamp"),
    Column("stock", sql_type="INTEGER"),
    Column("active", sql_type="BOOLEAN"),
    Column("note", sql_type="VARCHAR"),
    Column("seen", sql_type="TIMESTAMP WITH TIME ZONE", encoding="debezium.ZonedTimestamp"),
)
CHOICES: Final = {"all nine": COLUMNS, "three": COLUMNS[3:6], "one": COLUMNS[3:4]}


def images() -> pa.BinaryArray:
    """Return the images of the rows."""
    chance = random.Random(SEED)
    rows = []
    for row in range(ROWS):
        price = chance.randrange(1_000_000).to_bytes(4, "big")
        image = {
            "id": row,
            "name": f"product {row % 1_000}",
            "price": base64.b64encode(price).decode(),
            "cost": chance.randrange(100_000) / 100,
            "made": 1_700_000_000_000_000 + row * 1_000,
            "stock": chance.randrange(1_000),
            "active": row % 3 == 0,
            "note": "a text of some length, as they are",
            "seen": f"2024-02-29T13:37:{row % 60:02d}.25Z",
        }
        rows.append(orjson.dumps(image))
    return pa.array(rows, pa.binary())


def cpu_of(work: Callable[[], object]) -> float:
    """Return the processor time of one call, in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    loops_made()
    found = images()
    lines = b"\n".join(found.to_pylist())
    options = arrow_json.ReadOptions(use_threads=False)
    readers = {name: ColumnReader(columns) for name, columns in CHOICES.items()}
    work: dict[str, Callable[[], object]] = {
        name: lambda reader=reader: reader.read(found, COLUMNS)  # type: ignore[misc]
        for name, reader in readers.items()
    }
    work["pyarrow.json"] = lambda: arrow_json.read_json(io.BytesIO(lines), read_options=options)
    work["orjson"] = lambda: [orjson.loads(image) for image in found.to_pylist()]
    check(readers["all nine"], found)
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, each in work.items():
            spent[name].append(cpu_of(each))
    rows = []
    for name, figures in spent.items():
        values = ROWS * len(CHOICES.get(name, COLUMNS))
        ratios = [
            median([other / own for own, other in zip(figures, spent[baseline], strict=True)])
            for baseline in ("pyarrow.json", "orjson")
        ]
        rate = values / median(figures) / 1e6
        rows.append(
            (
                name,
                f"{median(figures) / ROWS * 1e9:.0f}",
                f"{rate:.1f}",
                *(f"{each:.1f}" for each in ratios),
            )
        )
    print(machine())
    title = f"{ROWS:,} images of {found.nbytes // ROWS} bytes, CPU of one thread"
    header = ("columns", "ns a row", "M values/s", "× pyarrow.json", "× orjson")
    table(title, header, rows)


def check(reader: ColumnReader, found: pa.BinaryArray) -> None:
    """Compare what is read with what was written."""
    batch = reader.read(found, COLUMNS).batch
    written = [orjson.loads(image) for image in found.to_pylist()]
    assert batch.column("id").to_pylist() == [row["id"] for row in written]
    assert batch.column("note").to_pylist() == [row["note"] for row in written]
    assert [float(cost) for cost in batch.column("cost").to_pylist()] == [
        row["cost"] for row in written
    ]
    assert batch.num_rows == ROWS
    assert all(column.null_count == 0 for column in batch.columns)


if __name__ == "__main__":
    main()
