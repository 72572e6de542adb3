"""How much of bare Avro decoding does the CDCv2 reader reach on a mangled stream, in flat memory?

::

    3 copies of each update, shuffled in windows of 10,000, cut into messages of 100
      ├─▶ fastavro.schemaless_reader                          the baseline: dicts, dropped at once
      └─▶ AvroForm.decode ─▶ Reader.receive ─▶ finished       each update once

One core, in process. A record has a long, a nullable int and a text of 12 characters; a time has 20
updates, a progress statement covers 5 times. Progress is repeated and moved about like the updates.

The memory run makes its stream as it goes, without Avro, since bytes on disk are not what is held:
`python -m bench.cdcv2_reader 50000000` for that many distinct updates.
"""

from __future__ import annotations

import random
import sys
import time
from io import BytesIO
from typing import TYPE_CHECKING

import fastavro

from bench._harness import machine, median, table
from tailrace.cdcv2 import Progress, Reader, Update
from tailrace_server.cdcv2 import AvroForm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.cdcv2 import Statement

UPDATES = 200_000
COPIES = 3
WINDOW = 10_000
MESSAGE = 100
AT_A_TIME = 20
INTERVAL = 5
RUNS = 5
MEMORY_UPDATES = 1_000_000

DATA = {
    "type": "record",
    "name": "data",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "int"]},
        {"name": "name", "type": "string"},
    ],
}


def history(updates: int) -> Iterator[Update[int] | Progress[int]]:
    """Yield so many updates by time, and progress behind each interval."""
    counts: list[tuple[int, int]] = []
    for i in range(updates):
        price = i % 1000 if i % 3 else None
        yield Update((i * 7919 % updates, price, f"product {i % 10_000:04}"), i // AT_A_TIME, 1)
        if (i + 1) % AT_A_TIME == 0:
            counts.append((i // AT_A_TIME, AT_A_TIME))
        if len(counts) == INTERVAL:
            upper = counts[-1][0] + 1
            yield Progress((upper - INTERVAL,), (upper,), tuple(counts))
            counts = []


def mangled(updates: int) -> Iterator[Statement[int]]:
    """Yield the history in copies, shuffled in windows, in messages of other sizes than it had."""
    chance = random.Random(1)
    window: list[Update[int] | Progress[int]] = []
    for said in history(updates):
        window += [said] * COPIES
        if len(window) >= 2 * WINDOW:
            # Half of it goes, so that what stands near a window's end moves over it.
            chance.shuffle(window)
            yield from messages(window[:WINDOW])
            del window[:WINDOW]
    chance.shuffle(window)
    yield from messages(window)


def messages(window: list[Update[int] | Progress[int]]) -> Iterator[Statement[int]]:
    """Yield updates in messages of a hundred, and progress as it comes."""
    batch: list[Update[int]] = []
    for said in window:
        if isinstance(said, Progress):
            yield said
            continue
        batch.append(said)
        if len(batch) == MESSAGE:
            yield batch
            batch = []
    if batch:
        yield batch


def decode_only(raw: list[bytes], schema: object) -> float:
    """Return the CPU seconds of decoding alone."""
    begin = time.process_time()
    for message in raw:
        fastavro.schemaless_reader(BytesIO(message), schema, None)  # type: ignore[arg-type]
    return time.process_time() - begin


def read_all(raw: list[bytes], form: AvroForm) -> tuple[float, int]:
    """Return the CPU seconds of decoding and reading, and the updates that came out."""
    begin, finished = time.process_time(), 0
    reader = Reader()
    for message in raw:
        for updates, _ in reader.receive(form.decode(message)):
            finished += len(updates)
    return time.process_time() - begin, finished


def receive_only(statements: list[Statement[int]]) -> float:
    """Return the CPU seconds of the reader alone."""
    begin = time.process_time()
    reader = Reader()
    for statement in statements:
        reader.receive(statement)
    return time.process_time() - begin


def speed() -> None:
    """Print rates in updates read, copies included."""
    form = AvroForm.of_data(DATA)
    schema = fastavro.parse_schema(form.schema)
    raw = [form.encode(statement) for statement in mangled(UPDATES)]
    statements = [form.decode(message) for message in raw]
    total = sum(len(each) for each in statements if not isinstance(each, Progress))
    assert total == UPDATES * COPIES
    rows, ratios = [], []
    for run in range(RUNS):
        bare = decode_only(raw, schema)
        whole, finished = read_all(raw, form)
        alone = receive_only(statements)
        assert finished == UPDATES
        ratios.append(bare / whole)
        rows.append(
            [run + 1, *(f"{total / s:,.0f}" for s in (bare, whole, alone)), f"{bare / whole:.2f}"]
        )
    rows.append(["median", "", "", "", f"{median(ratios):.2f}"])
    table(
        "A mangled stream, CPU",
        ["run", "decode only /s", "decode and read /s", "read only /s", "ratio"],
        rows,
    )


def memory(updates: int) -> None:
    """Print what the process holds while a long stream goes by."""
    reader, seen, step = Reader(), 0, max(updates * COPIES // 8, 1)
    rows: list[list[object]] = []
    begin, next_row = time.process_time(), step
    for statement in mangled(updates):
        reader.receive(statement)
        seen += 0 if isinstance(statement, Progress) else len(statement)
        if seen >= next_row:
            figures = reader.statistics()
            rate = seen / (time.process_time() - begin)
            rows.append(
                [f"{seen:,}", f"{figures.held_updates:,}", f"{resident_mib():.1f}", f"{rate:,.0f}"]
            )
            next_row += step
    assert reader.statistics().finished_updates == updates
    table("Memory", ["updates read", "held", "RssAnon MiB", "made and read /s"], rows)


def resident_mib() -> float:
    """Return the anonymous resident memory of this process."""
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
    return kib / 1024


if __name__ == "__main__":
    print(machine())
    if len(sys.argv) > 1:
        memory(int(sys.argv[1]))
    else:
        memory(MEMORY_UPDATES)
        speed()
